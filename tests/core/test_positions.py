from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout.core.positions import (
    WHOLE_RECORD,
    Cursor,
    Horizon,
    Latest,
    Position,
    Timestamp,
    parse_start,
    reaches,
)
from fanout.errors import OptionError

positions = st.one_of(
    st.just(Horizon()),
    st.builds(Timestamp, st.integers(0, WHOLE_RECORD)),
    st.builds(Cursor, st.integers(0, 10**128 - 1), st.integers(0, WHOLE_RECORD)),
)


def test_cursors_are_ordered_by_sequence_and_then_sub_sequence() -> None:
    assert sorted([Cursor(10), Cursor(9), Cursor(10, 3)]) == [Cursor(9), Cursor(10, 3), Cursor(10)]


@given(positions, positions)
def test_any_two_positions_are_ordered(one: Position, other: Position) -> None:
    assert reaches(one, other) or reaches(other, one)
    assert (reaches(one, other) and reaches(other, one)) == (one == other)


def test_a_reader_moves_from_the_horizon_over_a_timestamp_to_cursors() -> None:
    assert reaches(Cursor(0), Timestamp(10**15))
    assert reaches(Timestamp(0), Horizon())
    assert not reaches(Horizon(), Cursor(0))


@pytest.mark.parametrize(
    ("written", "start"),
    [
        ("TRIM_HORIZON", Horizon()),
        ("earliest", Horizon()),
        ("LATEST", Latest()),
        ("latest", Latest()),
        (Timestamp(3), Timestamp(3)),
        (datetime(1970, 1, 1, 0, 0, 1, 500_999, tzinfo=UTC), Timestamp(1500)),
        (datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), Timestamp(0)),
    ],
)
def test_a_start_is_understood(written: object, start: object) -> None:
    assert parse_start(written) == start


@pytest.mark.parametrize(
    "written",
    ["newest", 1_700_000_000, None, Cursor(1), datetime(2026, 1, 1)],  # noqa: DTZ001 - the point
)
def test_a_start_that_could_mean_anything_is_refused(written: object) -> None:
    with pytest.raises(OptionError):
        parse_start(written)


def test_a_moment_before_1970_is_refused() -> None:
    with pytest.raises(OptionError):
        parse_start(datetime(1969, 12, 31, tzinfo=UTC))
