from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout.core.positions import WHOLE_RECORD, Cursor, Horizon, Position, Timestamp, reaches
from fanout.errors import OptionError

positions = st.one_of(
    st.just(Horizon()),
    st.builds(Timestamp, st.integers(0, WHOLE_RECORD)),
    st.builds(Cursor, st.integers(-1, 10**128 - 1), st.integers(0, WHOLE_RECORD)),
)


def test_cursors_are_ordered_by_sequence_and_then_sub_sequence() -> None:
    assert sorted([Cursor(10), Cursor(9), Cursor(10, 3)]) == [Cursor(9), Cursor(10, 3), Cursor(10)]


@given(positions, positions)
def test_any_two_positions_are_ordered(one: Position, other: Position) -> None:
    assert reaches(one, other) or reaches(other, one)
    assert (reaches(one, other) and reaches(other, one)) == (one == other)


def test_a_cursor_before_the_first_offset_is_below_every_other() -> None:
    assert reaches(Cursor(0), Cursor(-1))
    assert not reaches(Cursor(-1), Cursor(0, 0))
    assert reaches(Cursor(-1), Horizon())


@pytest.mark.parametrize("sequence", [-2, -(10**30)])
def test_no_cursor_is_further_before_the_first_offset(sequence: int) -> None:
    with pytest.raises(OptionError, match=f"sequence number {sequence} .* -1"):
        Cursor(sequence)


def test_a_reader_moves_from_the_horizon_over_a_timestamp_to_cursors() -> None:
    assert reaches(Cursor(0), Timestamp(10**15))
    assert reaches(Timestamp(0), Horizon())
    assert not reaches(Horizon(), Cursor(0))


BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.fault("Clocks are put back or forward for daylight saving")
@pytest.mark.parametrize(
    ("moment", "millis"),
    [
        (datetime(1970, 1, 1, 0, 0, 1, 500_999, tzinfo=UTC), 1500),
        (datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), 0),
        # The clock was put back from 3 to 2 o'clock: that hour came twice.
        (datetime(2025, 10, 26, 2, 30, tzinfo=BERLIN), 1_761_438_600_000),
        (datetime(2025, 10, 26, 2, 30, fold=1, tzinfo=BERLIN), 1_761_442_200_000),
        # It was put forward from 2 to 3 o'clock: what is written in that hour counts from before.
        (datetime(2025, 3, 30, 1, 59, 59, 999_000, tzinfo=BERLIN), 1_743_296_399_999),
        (datetime(2025, 3, 30, 2, 30, tzinfo=BERLIN), 1_743_298_200_000),
        (datetime(2025, 3, 30, 3, 0, tzinfo=BERLIN), 1_743_296_400_000),
        # A leap second lies between these; the Unix epoch does not count it.
        (datetime(2016, 12, 31, 23, 59, 59, tzinfo=UTC), 1_483_228_799_000),
        (datetime(2017, 1, 1, tzinfo=UTC), 1_483_228_800_000),
    ],
    ids=str,
)
def test_an_aware_datetime_becomes_the_milliseconds_of_its_moment(
    moment: datetime, millis: int
) -> None:
    assert Timestamp.at(moment) == Timestamp(millis)


@pytest.mark.fault("Clocks are put back or forward for daylight saving")
def test_a_naive_datetime_is_refused() -> None:
    with pytest.raises(OptionError, match="no time zone"):
        Timestamp.at(datetime(2026, 1, 1))  # noqa: DTZ001 - the point


def test_a_moment_before_1970_is_refused() -> None:
    with pytest.raises(OptionError):
        Timestamp.at(datetime(1969, 12, 31, tzinfo=UTC))
