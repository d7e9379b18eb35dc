from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout.errors import MalformedEventError
from fanout.kinesis.reading.deaggregation import MAGIC, MAX_SUB_RECORDS, parse_aggregate
from fanout.kinesis.writing.kpl_format import encode_aggregate, seal_aggregate

PAIRS = [("a", b"1"), ("b", b""), ("a", b"\x00\xff")]
# As the format's documentation lays a message out: tables, then a sub-record with every field.
KEY = b"\x0a\x01k"
HASH_KEY = b"\x12\x0217"
SUB_RECORD = b"\x08\x00\x10\x00\x1a\x04data\x22\x03\x0a\x01t"
MESSAGE = KEY + HASH_KEY + b"\x1a" + bytes([len(SUB_RECORD)]) + SUB_RECORD


def sub_record(*fields: bytes) -> bytes:
    """A message with one key, one hash key, and one sub-record of these fields."""
    record = b"".join(fields)
    return KEY + HASH_KEY + b"\x1a" + bytes([len(record)]) + record


def pairs(data: bytes) -> list[tuple[str, bytes]] | None:
    aggregate = parse_aggregate(data)
    if aggregate is None:
        return None
    return list(zip(aggregate.partition_keys, aggregate.data, strict=True))


def refused(message: bytes) -> str:
    with pytest.raises(MalformedEventError) as caught:
        parse_aggregate(seal_aggregate(message))
    return str(caught.value)


def test_a_message_with_every_field_is_read() -> None:
    assert pairs(seal_aggregate(MESSAGE)) == [("k", b"data")]


@given(st.lists(st.tuples(st.text(max_size=20), st.binary(max_size=300)), min_size=1, max_size=20))
def test_what_is_aggregated_comes_apart_again(records: list[tuple[str, bytes]]) -> None:
    assert pairs(encode_aggregate(records)) == records


def test_more_keys_than_fit_into_one_byte_come_apart_again() -> None:
    records = [(f"key-{number}", b"x" * number) for number in range(300)]
    assert pairs(encode_aggregate(records)) == records


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(MAGIC, id="magic alone"),
        pytest.param(MAGIC + bytes(16), id="no message"),
        pytest.param(seal_aggregate(b""), id="an empty message"),
        pytest.param(b"\xf3\x89\x9a\xc3" + encode_aggregate(PAIRS)[4:], id="other magic"),
        pytest.param(encode_aggregate(PAIRS)[:-1], id="a digest cut short"),
        pytest.param(encode_aggregate(PAIRS)[:-1] + b"!", id="another digest"),
        pytest.param(MAGIC + b"!" + encode_aggregate(PAIRS)[5:], id="another message"),
    ],
)
def test_without_magic_and_digest_a_record_is_not_aggregated(data: bytes) -> None:
    assert parse_aggregate(data) is None


def test_fields_that_the_format_gets_later_are_ignored() -> None:
    later = b"\x20\x07" + b"\x29" + bytes(8) + b"\x35" + bytes(4) + b"\x3a\x03new"
    assert pairs(seal_aggregate(later + MESSAGE + later)) == [("k", b"data")]


def test_of_a_field_that_comes_twice_the_last_one_counts() -> None:
    twice = sub_record(b"\x08\x09", b"\x08\x00", b"\x1a\x01a", b"\x1a\x01b")
    assert pairs(seal_aggregate(twice)) == [("k", b"b")]


@pytest.mark.parametrize(
    ("message", "error"),
    [
        pytest.param(b"\x0a\x02k", "longer than what holds it", id="length"),
        pytest.param(b"\x0a" + b"\xff" * 8 + b"\x01", "longer than what holds it", id="2**56"),
        pytest.param(b"\x29" + bytes(7), "longer than what holds it", id="fixed64"),
        pytest.param(b"\x35" + bytes(3), "longer than what holds it", id="fixed32"),
        pytest.param(b"\x0a", "number that does not end", id="no length"),
        pytest.param(b"\x80", "number that does not end", id="half a tag"),
        pytest.param(b"\x20" + b"\x80" * 10 + b"\x00", "number that does not end", id="11 bytes"),
        pytest.param(b"\x0b", "unknown type 3", id="group"),
        pytest.param(b"\x08\x01", "a number as field 1", id="a number as key"),
        pytest.param(b"\x10\x01", "a number as field 2", id="a number as hash key"),
        pytest.param(b"\x18\x01", "a number as field 3", id="a number as sub-record"),
        pytest.param(sub_record(b"\x08\x00"), "without a key or data", id="no data"),
        pytest.param(sub_record(b"\x1a\x01d"), "without a key or data", id="no index"),
        pytest.param(sub_record(b"\x0a\x01\x00", b"\x1a\x01d"), "without a key", id="bytes as key"),
        pytest.param(sub_record(b"\x08\x00", b"\x18\x05"), "without a key", id="number as data"),
        pytest.param(sub_record(b"\x08\x01", b"\x1a\x01d"), "outside of a table", id="key index"),
        pytest.param(
            sub_record(b"\x08\x00", b"\x10\x01", b"\x1a\x01d"),
            "outside of a table",
            id="hash index",
        ),
        pytest.param(
            sub_record(b"\x08\x00", b"\x12\x00", b"\x1a\x01d"),
            "outside of a table",
            id="hash bytes",
        ),
        pytest.param(b"\x0a\x01\xff", "not UTF-8", id="key not UTF-8"),
        pytest.param(b"\x0a\x81\x02" + b"k" * 257, "more than 256 characters", id="long key"),
    ],
)
def test_a_message_that_breaks_the_format_is_malformed(message: bytes, error: str) -> None:
    assert error in refused(message)


@pytest.mark.parametrize(
    "entry", [b"\x0a\x00", b"\x12\x00", b"\x1a\x04\x08\x00\x1a\x00"], ids=["key", "hash", "record"]
)
def test_the_entries_of_each_field_have_a_limit(
    entry: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanout.kinesis.reading.deaggregation.MAX_SUB_RECORDS", 100)
    assert parse_aggregate(seal_aggregate(KEY + entry * 99)) is not None
    assert f"more than 100 entries as field {entry[0] >> 3}" in refused(KEY + entry * 101)


def test_a_record_may_have_100_000_sub_records() -> None:
    assert MAX_SUB_RECORDS == 100_000


def test_a_key_of_256_characters_is_read_whatever_its_bytes() -> None:
    records = [("\U0001f600" * 256, b"x")]
    assert pairs(encode_aggregate(records)) == records


@given(st.binary(max_size=300))
def test_any_message_is_an_aggregate_or_malformed(message: bytes) -> None:
    with suppress(MalformedEventError):
        parse_aggregate(seal_aggregate(message))


@given(st.data())
def test_any_damage_to_a_message_is_read_or_malformed(data: st.DataObject) -> None:
    message = bytearray(MESSAGE)
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    with suppress(MalformedEventError):
        aggregate = parse_aggregate(seal_aggregate(bytes(message)))
        assert aggregate is not None
        assert sum(map(len, aggregate.data)) <= len(message)


@given(st.binary(max_size=100))
def test_any_bytes_after_the_magic_are_a_plain_record(data: bytes) -> None:
    assert parse_aggregate(MAGIC + data) is None


def test_a_key_that_is_not_utf8_is_not_quoted_by_a_cause() -> None:
    with pytest.raises(MalformedEventError) as caught:
        parse_aggregate(seal_aggregate(b"\x0a\x07canary\xff"))
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_explicit_hash_keys_are_read_from_their_table() -> None:
    aggregate = parse_aggregate(encode_aggregate([("k", b"")] * 4, [7, None, 2**128 - 1, 7]))
    assert aggregate is not None
    assert aggregate.hash_keys == [b"7", None, str(2**128 - 1).encode(), b"7"]
