from __future__ import annotations

import math
import pickle  # noqa: TID251 - what users do with it
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fanout
from fanout.core.event_time import EventTime, SplitWatermark, late, parse_event_time
from fanout.core.events import Batch, Split
from fanout.core.positions import Cursor, Range
from fanout.errors import EventTimeError, OptionError, SplitFailedError
from fanout.testing.virtual_time.loop import simulate
from tests.support.scripted_source import Log, ScriptedSource, sequences

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

A = Split("a")
MILLIS = pa.timestamp("ms", tz="UTC")
SCHEMA = pa.schema([("when", MILLIS), ("local", pa.timestamp("us")), ("count", pa.int64())])


def batch(times: Sequence[int | None], type_: pa.DataType = MILLIS) -> Batch:
    records = pa.record_batch([pa.array(times, type_)], names=["when"])
    return Batch(A, records, Range(Cursor(4), Cursor(4 + len(times))))


def watermarks(event_time: EventTime, *batches: Batch) -> list[int | None]:
    split = SplitWatermark(event_time)
    return [split.stamp(each).watermark for each in batches]


def test_the_watermark_is_a_millisecond_before_the_newest_event() -> None:
    assert watermarks(EventTime("when"), batch([3000, 5000, 4000])) == [4999]


@pytest.mark.parametrize(("seconds", "watermark"), [(2, 2999), (0.5, 4499), (0.0001, 4998)])
def test_events_may_come_so_much_out_of_order(seconds: float, watermark: int) -> None:
    event_time = EventTime("when", out_of_orderness=seconds)
    assert watermarks(event_time, batch([5000])) == [watermark]


def test_the_watermark_of_a_split_never_goes_back() -> None:
    batches = batch([5000]), batch([1000]), batch([6000])
    assert watermarks(EventTime("when"), *batches) == [4999, 4999, 5999]


def test_there_is_none_before_the_first_event_time() -> None:
    batches = batch([]), batch([None, None]), batch([None, 10, None]), batch([None]), batch([])
    assert watermarks(EventTime("when"), *batches) == [None, None, 9, 9, 9]


def test_a_time_before_1970_is_one() -> None:
    assert watermarks(EventTime("when"), batch([-10])) == [-11]


@pytest.mark.parametrize(
    ("unit", "value", "watermark"),
    [("s", 5, 4999), ("ms", 5, 4), ("us", 5999, 4), ("ns", 5_999_999, 4), ("us", -1, -2)],
)
def test_every_unit_is_read_in_whole_milliseconds(unit: str, value: int, watermark: int) -> None:
    type_ = pa.timestamp(unit, tz="Europe/Berlin")
    assert watermarks(EventTime("when"), batch([value], type_)) == [watermark]


def from_count(records: pa.RecordBatch) -> pa.Array:
    return pc.multiply(records.column(0), 1000).cast(MILLIS)


def test_a_function_computes_the_event_times_of_a_whole_batch() -> None:
    numbers = batch([3, None, 2], pa.int64())
    assert watermarks(EventTime(from_count, out_of_orderness=1), numbers) == [1999]


@given(st.lists(st.lists(st.none() | st.integers(-(10**12), 10**12), max_size=4), max_size=6))
def test_the_watermark_follows_the_maximum(batches: list[list[int | None]]) -> None:
    newest: list[int] = []
    split = SplitWatermark(EventTime("when", out_of_orderness=0.25))
    for times in batches:
        newest += [time for time in times if time is not None]
        assert split.stamp(batch(times)).watermark == (max(newest) - 251 if newest else None)


MOMENTS = st.lists(st.none() | st.integers(-3_000_000, 3_000_000), max_size=5)


@given(MOMENTS, st.none() | st.integers(-4000, 4000), st.sampled_from(["s", "ms", "us", "ns"]))
def test_late_is_what_is_not_newer_than_the_watermark(
    values: list[int | None], watermark: int | None, unit: str
) -> None:
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    millis = [value * 1000 // per_second for value in values if value is not None]
    expected = 0 if watermark is None else sum(each <= watermark for each in millis)
    assert late(pa.array(values, pa.timestamp(unit, tz="UTC")), watermark) == expected


def test_a_watermark_beyond_what_a_timestamp_can_hold_makes_all_late() -> None:
    times = pa.array([1, None, 2**63 - 1], pa.timestamp("ns", tz="UTC"))
    assert late(times, 10**15) == 2
    assert late(times, -(10**15)) == 0
    assert late(None, 10**15) == 0


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (lambda _: [5], "the function returned list, not a pyarrow.Array"),
        (lambda _: pa.chunked_array([[5]], MILLIS), "returned ChunkedArray, not a pyarrow.Array"),
        (lambda _: pa.array([1, 2]), "returned is of int64, which is no timestamp"),
        (lambda _: pa.array([1, 2], pa.timestamp("ms")), r"timestamp\[ms\], without a time zone"),
        (lambda _: pa.array([1], MILLIS), "the function returned 1 times for 2 records"),
        (lambda _: pa.array([1, 2, 3], MILLIS), "the function returned 3 times for 2 records"),
    ],
)
def test_what_a_function_returns_is_checked(
    function: Callable[[pa.RecordBatch], Any], error: str
) -> None:
    with pytest.raises(
        EventTimeError, match=rf"^a has no event time from .*4.* to .*6.*: .*{error}"
    ):
        watermarks(EventTime(function), batch([1, 2]))


def broken(records: pa.RecordBatch) -> pa.Array:
    raise LookupError(f"cannot parse {records.to_pylist()}")


def test_an_error_of_a_function_names_the_split_and_the_range_and_no_record() -> None:
    with pytest.raises(
        EventTimeError, match=r"^a has .*4.* to .*5.* raised LookupError$"
    ) as raised:
        watermarks(EventTime(broken), batch([1]))
    assert isinstance(raised.value.__cause__, LookupError)


def test_a_function_is_not_called_for_a_batch_without_records() -> None:
    assert watermarks(EventTime(broken), batch([])) == [None]


def test_a_column_is_named_by_the_user_or_is_that_of_the_arrival() -> None:
    assert parse_event_time(EventTime(idleness=5), SCHEMA, default="when") == EventTime(
        "when", idleness=5
    )
    for asked in (None, EventTime("when"), EventTime(from_count)):
        assert parse_event_time(asked, SCHEMA, default="other") == asked


@pytest.mark.parametrize(
    ("column", "error"),
    [
        ("then", "there is no column 'then'; there are when, local, count"),
        ("count", "the column 'count' is of int64, which is no timestamp"),
        ("local", r"the column 'local' is of timestamp\[us\], without a time zone"),
    ],
)
def test_a_column_that_holds_no_event_times_is_refused(column: str, error: str) -> None:
    with pytest.raises(OptionError, match=error):
        parse_event_time(EventTime(column), SCHEMA, default="when")


@pytest.mark.parametrize(
    "options",
    [
        {"column": 5},
        {"out_of_orderness": -1},
        {"out_of_orderness": math.inf},
        {"out_of_orderness": math.nan},
        {"out_of_orderness": "5"},
        {"out_of_orderness": True},
        {"out_of_orderness": None},
        {"idleness": 0},
        {"idleness": -1},
        {"idleness": math.inf},
        {"idleness": math.nan},
        {"idleness": "60"},
    ],
    ids=repr,
)
def test_an_option_that_cannot_work_is_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=f"^event_time: {next(iter(options))}="):
        EventTime(**options)


def test_an_event_time_is_a_value() -> None:
    one = EventTime("when", out_of_orderness=1, idleness=2)
    assert one == EventTime("when", out_of_orderness=1, idleness=2)
    assert hash(one) == hash(EventTime("when", out_of_orderness=1, idleness=2))
    assert pickle.loads(pickle.dumps(one)) == one  # noqa: S301 - our own bytes


def test_a_function_that_fails_ends_the_stream_after_what_came_before() -> None:
    def picky(records: pa.RecordBatch) -> pa.Array:
        if 3 in records.column("sequence").to_pylist():
            raise LookupError("three")
        return records.column("sequence").cast(MILLIS)

    async def main() -> None:
        source = ScriptedSource(
            logs=[Log(split=A, entries=(1, 2, 3, 4))], event_time=EventTime(picky)
        )
        async with fanout.open(source) as stream:
            assert sequences(await anext(stream)) == [1, 2]
            with pytest.raises(SplitFailedError, match="a cannot go on: a has no event") as raised:
                await anext(stream)
            assert isinstance(raised.value.__cause__, EventTimeError)
            assert isinstance(stream.failure, SplitFailedError)
            assert stream.delivered.splits["a"].position == Cursor(2)
        assert len(source.calls) == 1
        assert source.judged == []

    simulate(main)


def test_the_docs_example_of_a_moment_is_in_milliseconds() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    records = pa.record_batch([pa.array([moment], pa.timestamp("us", tz="UTC"))], names=["when"])
    (watermark,) = watermarks(EventTime("when"), Batch(A, records, Range(Cursor(1), Cursor(2))))
    assert watermark == moment.timestamp() * 1000 - 1
