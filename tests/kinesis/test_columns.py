from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout.kinesis.reading.decode import (
    ARRIVAL,
    FEW_ROWS,
    microseconds,
    timestamps,
)
from fanout.kinesis.reading.shard_reader import all_decimal, is_decimal

# Repeated so often, any rows are more than a few.
MANY = FEW_ROWS + 1

# Digits of other scripts, and a superscript, are digits to Python, each in its own way.
texts = st.text(st.sampled_from("0123456789aé٣²\0 +-_"), max_size=6) | st.text("0123456789")
seconds = st.floats(min_value=0, max_value=253_402_300_799)


def strings(values: list[str]) -> pa.StringArray:
    return pa.array(values, pa.string())


@pytest.mark.parametrize("text", ["", "-1", "+1", "1_0", " 1", "1\n", "٣", "²", "1a", "12345"])
def test_what_is_no_decimal_of_up_to_four_digits_is_refused(text: str) -> None:
    assert not is_decimal(text, 4)


@pytest.mark.parametrize("text", ["0", "007", "1234"])
def test_a_decimal_of_up_to_four_digits_is_accepted(text: str) -> None:
    assert is_decimal(text, 4)


@given(st.lists(texts, max_size=FEW_ROWS))
def test_few_texts_and_many_are_held_to_the_same_rule(values: list[str]) -> None:
    expected = all(is_decimal(value, 4) for value in values)
    assert all_decimal(strings(values), 4) == expected
    assert all_decimal(strings(values * MANY), 4) == expected


def test_one_bad_text_among_many_is_seen() -> None:
    good = ["123"] * MANY
    assert all_decimal(strings(good), 4)
    for bad in ("", "12345", "x"):
        assert not all_decimal(strings([*good, bad, *good]), 4)


@given(st.lists(st.none() | seconds))
def test_a_column_of_times_becomes_what_each_becomes_alone(values: list[float | None]) -> None:
    expected = pa.array([microseconds(value) for value in values], pa.int64())
    assert timestamps(values).type == ARRIVAL
    assert timestamps(values).view(pa.int64()).equals(expected)


def test_a_time_is_exact_to_the_millisecond() -> None:
    assert timestamps([1795218308.174]).to_pylist() == [
        datetime(2026, 11, 20, 23, 45, 8, 174000, UTC)
    ]


def test_half_a_millisecond_goes_to_the_even_one() -> None:
    assert [microseconds(0.0005), microseconds(0.0015)] == [0, 2000]
