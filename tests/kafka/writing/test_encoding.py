"""Batches that are made of columns are read back by aiokafka's decoder of batches."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given
from hypothesis import strategies as st

from fanout.kafka.writing import row_batches
from fanout.kafka.writing.encoding import CODECS, encode_record_batch, record_sizes
from fanout.kafka.writing.producer_id import NO_PRODUCER_ID, ProducerId
from fanout.kafka.writing.row_batches import cut_batches, cut_together, split_by_partition
from tests.support.kafka.writing import HEADERS

BYTES = st.none() | st.binary(max_size=300)
RECORDS = st.tuples(
    BYTES,
    BYTES,
    st.integers(0, 2**62),
    st.lists(st.tuples(st.text(max_size=70), BYTES), max_size=4) | st.none(),
)
BATCH = 61


def columns(records: list[Any]) -> pa.RecordBatch:
    keys, values, times, headers = zip(*records, strict=True)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(keys, pa.binary()),
            pa.array(values, pa.binary()),
            pa.array(times, pa.int64()),
            pa.array(headers, HEADERS),
        ],
        names=["key", "value", "timestamp", "headers"],
    )


def encoded(*arguments: Any) -> bytes:
    return b"".join(encode_record_batch(*arguments))


def decoded(batch: bytes) -> list[Any]:
    return [
        (record.key, record.value, record.timestamp, list(record.headers))
        for record in DefaultRecordBatch(bytearray(batch))
    ]


def plain(records: list[Any]) -> list[Any]:
    return [(*fields, headers or []) for *fields, headers in records]


@given(st.lists(RECORDS, min_size=1, max_size=8), st.integers(0, 3), st.sampled_from([*CODECS]))
def test_what_is_encoded_is_what_is_decoded(records: list[Any], skipped: int, codec: str) -> None:
    skipped = min(skipped, len(records) - 1)
    rows = columns(records)[skipped:]
    given_ = plain(records[skipped:])
    batch = encoded(rows, codec, ProducerId(7, 3, transactional=True), 2**31 - 1)
    read = DefaultRecordBatch(bytearray(batch))
    assert read.validate_crc()
    assert int.from_bytes(batch[8:12]) == len(batch) - 12  # what follows its length
    assert (read.is_transactional, read.producer_id, read.producer_epoch) == (True, 7, 3)
    assert read.base_sequence == 2**31 - 1
    assert read.last_offset_delta == len(given_) - 1
    assert read.max_timestamp == max(time for _, _, time, _ in given_)
    assert decoded(batch) == given_
    assert codec != "none" or len(batch) <= record_sizes(rows).sum() + BATCH


@pytest.mark.parametrize("count", [1, 63, 64, 65, 8_191, 8_193])
def test_numbers_of_any_width_are_encoded(count: int) -> None:
    records = [(None, b"x" * (row % 200), 10**12 - row * 10**6, None) for row in range(count)]
    assert decoded(encoded(columns(records), "none", NO_PRODUCER_ID, -1)) == plain(records)


def test_nobody_writes_in_no_transaction() -> None:
    read = DefaultRecordBatch(
        bytearray(encoded(columns([(b"", b"", 0, [])]), "none", NO_PRODUCER_ID, -1))
    )
    assert not read.is_transactional
    assert (read.producer_id, read.producer_epoch, read.base_sequence) == (-1, -1, -1)


@pytest.mark.long
@given(st.lists(RECORDS, max_size=30), st.integers(1, 2_000))
def test_rows_are_cut_into_batches_that_fit(records: list[Any], limit: int) -> None:
    rows = columns([(None, None, 0, None), *records])
    parts = [*cut_batches(rows, limit)]
    assert pa.Table.from_batches([part for part, _ in parts]).to_pylist() == rows.to_pylist()
    for (part, nbytes), (after, _) in zip(parts, [*parts[1:], (rows[:1], 0)], strict=True):
        assert nbytes == record_sizes(part).sum()
        assert nbytes <= limit or len(part) == 1
        together = nbytes + int(record_sizes(after[:1]).sum())
        assert together > limit or after is rows[:1] or (part, nbytes) == parts[-1]


@given(st.lists(RECORDS, min_size=1, max_size=30), st.integers(0, 3), st.integers(1, 2_000))
def test_batches_are_encoded_together_as_each_alone(
    records: list[Any], skipped: int, limit: int
) -> None:
    rows = columns(records)[min(skipped, len(records) - 1) :]
    with patch.object(row_batches, "_TOGETHER", 3 * limit):
        parts = [*cut_together(rows, limit)]
    assert [part[:2] for part in parts] == [*cut_batches(rows, limit)]
    for part, _, together in parts:
        alone = encoded(part, "none", NO_PRODUCER_ID, -1)
        assert encoded(part, "none", NO_PRODUCER_ID, -1, together) == alone


def test_few_bytes_are_encoded_together() -> None:
    rows = columns([(None, bytes(1 << 20), 0, None)] * 5)
    first, *others = [together for *_, together in cut_together(rows, 1)]
    before = pa.total_allocated_bytes()
    first()
    one = 1 << 20
    assert one < pa.total_allocated_bytes() - before < 2 * one
    assert [len(records()) for records in others] == [len(first())] * 4


def test_a_batch_is_filled_to_its_last_byte() -> None:
    rows = columns([(b"key", b"value", 0, [("a", b"b")])] * 4)
    two = int(record_sizes(rows[:2]).sum())
    assert [len(part) for part, _ in cut_batches(rows, two)] == [2, 2]
    assert [len(part) for part, _ in cut_batches(rows, two - 1)] == [1, 1, 1, 1]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=40))
def test_rows_are_told_apart_by_partitions_in_their_order(places: list[tuple[str, int]]) -> None:
    topics = pa.array([topic for topic, _ in places], pa.string())
    numbers = pa.array([number for _, number in places], pa.int32())
    rows = pa.RecordBatch.from_arrays(
        [topics, numbers, pa.array(range(len(places)), pa.int64())],
        names=["topic", "partition", "row"],
    )
    found = {
        (partition.topic, partition.number): some["row"].to_pylist()
        for partition, some in split_by_partition(rows)
    }
    expected: dict[tuple[str, int], list[int]] = {}
    for row, place in enumerate(places):
        expected.setdefault(place, []).append(row)
    assert found == expected
