from __future__ import annotations

import struct
from io import BytesIO
from typing import Any

import pytest
from aiokafka.protocol.struct import Struct
from hypothesis import given
from hypothesis import strategies as st

from fanout.kafka.protocol.broker_connection import ResponseFrame
from fanout.kafka.protocol.messages.fetch import (
    CheckedFetchRequest,
    FetchRequest_v12,
    FetchResponse_v12,
)
from tests.support.damage import damaged

VERSIONS = {1: (4, 12)}

names = st.text(max_size=20) | st.just("orders" * 40)
shorts, ints = st.integers(-(2**15), 2**15 - 1), st.integers(-(2**31), 2**31 - 1)
longs = st.integers(-(2**63), 2**63 - 1)
pieces = st.none() | st.binary(max_size=300) | st.just(bytes(40_000))
aborted: st.SearchStrategy[list[Any]] = st.lists(
    st.tuples(longs, longs, st.just({})), max_size=3
) | st.just([(1, 2, {})] * 200)
partitions = st.tuples(ints, shorts, longs, longs, longs, aborted, ints, pieces, st.just({}))
topics = st.lists(st.tuples(names, st.lists(partitions, max_size=4), st.just({})), max_size=3)
asked = st.lists(st.tuples(ints, longs, ints, ints), max_size=200)


def fields(answer: Any) -> list[object]:
    return [getattr(answer, name) for name in FetchResponse_v12.SCHEMA.names]


def by_schema(data: bytes) -> Any:
    """Read an answer as aiokafka does."""
    return Struct.decode.__func__(FetchResponse_v12, BytesIO(data))


@given(st.tuples(ints, shorts, ints), topics)
def test_an_answer_is_read_as_its_schema_says(
    head: tuple[int, int, int], topics: list[Any]
) -> None:
    data = FetchResponse_v12(*head, topics, {}).encode()
    assert fields(FetchResponse_v12.decode(ResponseFrame(bytearray(data)))) == [*head, topics, {}]
    assert fields(by_schema(data)) == [*head, topics, {}]


def test_the_tags_of_an_answer_are_read() -> None:
    tag = b"\1\0\x0c" + struct.pack(">iq", 4, 7)
    row = struct.pack(">ihqqq", 0, 0, 9, 9, 0) + b"\1" + struct.pack(">i", -1) + b"\0" + tag
    data = struct.pack(">ihi", 0, 0, 0) + b"\2" + b"\2t" + b"\2" + row + b"\0" + b"\0"
    answer = FetchResponse_v12.decode(ResponseFrame(bytearray(data)))
    assert answer.topics[0][1][0][-1] == {0: tag[3:]}


def test_no_array_is_as_one_without_elements() -> None:
    row = struct.pack(">ihqqq", 0, 0, 9, 9, 0) + b"\0" + struct.pack(">i", -1) + b"\0\0"
    data = struct.pack(">ihi", 0, 0, 0) + b"\2" + b"\2t" + b"\2" + row + b"\0" + b"\0"
    answer = FetchResponse_v12.decode(ResponseFrame(bytearray(data)))
    assert answer.topics == [("t", [(0, 0, 9, 9, 0, [], -1, None, {})], {})]


@given(damaged(topics.map(lambda topics: FetchResponse_v12(0, 0, 0, topics, {}).encode())))
def test_an_answer_that_is_damaged_is_an_error_or_what_its_schema_says(data: bytes) -> None:
    try:
        found = FetchResponse_v12.decode(ResponseFrame(bytearray(data)))
    except (ValueError, struct.error):
        return
    expected = by_schema(data)
    expected.topics = [
        (topic, [(*row[:5], row[5] or [], *row[6:]) for row in rows or []], tags)
        for topic, rows, tags in expected.topics or []
    ]
    assert fields(found) == fields(expected)


def test_an_answer_that_ends_too_early_is_an_error() -> None:
    rows: list[Any] = [(0, 0, 9, 9, 0, [(1, 2, {})], -1, b"records", {})]
    data = FetchResponse_v12(0, 0, 0, [("t", rows, {})], {}).encode()
    for size in range(len(data)):
        with pytest.raises((ValueError, struct.error)):
            FetchResponse_v12.decode(ResponseFrame(bytearray(data[:size])))


@given(st.lists(st.tuples(names, asked), max_size=3), names)
def test_a_request_is_written_as_its_schema_says(topics: list[Any], rack: str) -> None:
    request = CheckedFetchRequest((500, 1, 1 << 24, 1), topics, rack).prepare(VERSIONS)
    assert isinstance(request, FetchRequest_v12)
    assert request.encode() == Struct.encode(request)


def test_a_few_records_do_not_keep_the_answer_in_memory() -> None:
    partition: Any = (0, 0, 9, 9, 0, [], -1)
    rows: Any = [(*partition, b"few", {}), (*partition, b"x" * 100_000, {})]
    data = FetchResponse_v12(0, 0, 0, [("t", rows, {})], {}).encode()
    answer = FetchResponse_v12.decode(ResponseFrame(bytearray(data)))
    few, many = [records for *_, records, _ in answer.topics[0][1]]
    assert (few, bytes(many)) == (b"few", b"x" * 100_000)
    assert (type(few), type(many)) == (bytes, memoryview)
