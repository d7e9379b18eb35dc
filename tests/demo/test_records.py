from __future__ import annotations

import pytest

from fanout.demo.records import digest, generate, number_in


def test_a_record_carries_its_number() -> None:
    assert [number_in(record.data) for record in generate(3, seed=1)] == [0, 1, 2]


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff", b"{}", b'{"number":"1","payload":""}', b'{"x":' + b"[" * 100_000],
    ids=lambda data: repr(data[:20]),
)
def test_foreign_data_has_no_number(data: bytes) -> None:
    assert number_in(data) is None


def test_a_seed_draws_the_same_records_again() -> None:
    assert list(generate(5, seed=7)) == list(generate(5, seed=7))


def test_records_differ_in_more_than_their_number() -> None:
    first, second = generate(2, seed=1)
    assert first.data.replace(b":0,", b":1,") != second.data
    assert digest(first.data) != digest(second.data)
