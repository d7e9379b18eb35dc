from __future__ import annotations

from random import Random

import pytest

from fanout.testing.trials.records import Record, RecordProducer, read_number, value_of


def produced(count: int, seed: int = 1) -> list[Record]:
    return RecordProducer("orders", Random(seed)).make(count)


def test_a_record_carries_its_number() -> None:
    records = produced(3)
    assert [record.number for record in records] == [0, 1, 2]
    assert [read_number("orders", record.key, record.value) for record in records] == [0, 1, 2]


@pytest.mark.parametrize(
    "value",
    [b"", b"\xff", b":", b"{}", b"1:", "\u0664:".encode(), b"-1:", b"9" * 5_000 + b":"],
    ids=lambda value: repr(value[:20]),
)
def test_foreign_data_has_no_number(value: bytes) -> None:
    assert read_number("orders", "key-1", value) is None


def test_a_value_is_that_of_one_stream_one_key_and_one_number() -> None:
    value = value_of("orders", "key-1", 7)
    assert read_number("orders", "key-1", value) == 7
    assert read_number("orders", "key-1", value + b"!", b"!") == 7
    assert read_number("orders", "key-1", b"0" + value) is None
    assert read_number("orders", "key-1", value.replace(b"7:", b"8:")) is None
    assert read_number("orders", "key-1", value, b"!") is None
    assert read_number("orders", "key-2", value) is None
    assert read_number("others", "key-1", value) is None


def test_a_seed_draws_the_same_records_again() -> None:
    assert produced(5, seed=7) == produced(5, seed=7)
    assert produced(5, seed=7) != produced(5, seed=8)


def test_records_differ_in_more_than_their_number() -> None:
    first, second = produced(2)
    assert first.value.replace(b"0:", b"1:", 1) != second.value


def test_records_that_were_taken_are_followed_by_the_next_ones() -> None:
    producer = RecordProducer("orders", Random(1))
    lost = producer.make(2)
    assert [record.number for record in lost] == [0, 1]
    records = producer.make(100)
    producer.taken(records)
    assert (producer.total, producer.make(1)[0].number) == (100, 100)
    assert producer.newest == {record.key: record.number for record in records}
