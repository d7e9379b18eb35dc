"""Frames that come damaged each time, end to end: exactly their records are missing."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from fanout.core.policy import Retry
from fanout.core.positions import Cursor, Horizon
from fanout.errors import DamagedFrameError, MalformedEventError, SplitFailedError
from fanout.kinesis.reading.subscription import DamagedFrames
from fanout.testing.faults import CorruptFrame, EndEarly, IgnoreSubscribe
from fanout.testing.kinesis.rules import KinesisRules
from tests.support.kinesis.reading import FIRST, Stream, eventually

if TYPE_CHECKING:
    from fanout.core.positions import Position

PAIRS = pytest.mark.parametrize(
    "rules", [replace(KinesisRules.fast(), max_event_records=2)], ids=["2 records an event"]
)


def counted(frames: DamagedFrames, *positions: Position) -> list[int]:
    """Return how many frames the subscriptions from these positions may drop; each fails."""
    droppable = []
    for position in positions:
        droppable.append(frames.droppable(FIRST, position))
        frames.found(FIRST, position)
    return droppable


def test_each_frame_in_a_row_has_three_tries() -> None:
    assert counted(DamagedFrames("gap"), *[Cursor(5)] * 7) == [0, 0, 1, 1, 2, 2, 3]


def test_another_position_begins_to_count_anew() -> None:
    positions = Cursor(5), Cursor(5), Cursor(6), Cursor(6), Cursor(6), Horizon()
    assert counted(DamagedFrames("gap"), *positions) == [0, 0, 0, 0, 1, 0]


def test_one_shard_is_not_another() -> None:
    frames = DamagedFrames("gap")
    counted(frames, *[Cursor(5)] * 4)
    assert frames.droppable("another", Cursor(5)) == 0


def test_nothing_is_dropped_where_nobody_has_chosen_that() -> None:
    assert counted(DamagedFrames("fail"), *[Cursor(5)] * 7) == [0] * 7
    assert DamagedFrames("fail").found(FIRST, Cursor(5)) == Retry(limit=3)
    assert DamagedFrames("gap").found(FIRST, Cursor(5)) == Retry()


async def read_and_close(stream: Stream, count: int) -> str:
    """Read what is there; return the positions behind it."""
    async with stream.reading() as reader:
        await reader.has(count)
    return reader.stream.positions


@pytest.mark.fault("A checksum is wrong")
@PAIRS
@pytest.mark.parametrize("before", [0, 2, 4])
async def test_exactly_the_records_of_the_damaged_frame_are_missing(
    stream: Stream, before: int
) -> None:
    stream.put(before)
    saved = await read_and_close(stream, before) if before else None
    stream.put(6)
    stream.inject(CorruptFrame(event=1, times=3))
    async with stream.reading(on_bad_frame="gap", resume=saved) as reader:
        await reader.has(4)
        stream.put(2)
        await reader.has(6)
        statistics = reader.stream.statistics()
    assert reader.log[FIRST] == stream.log[FIRST][before + 2 :]
    assert reader.kinds == ["DamagedFrameError"] * 2
    assert statistics.gaps == 1
    assert stream.server.statistics().faults == {"CorruptFrame": 3}


@PAIRS
async def test_the_batch_behind_it_tells_where_the_gap_is(stream: Stream) -> None:
    stream.put(6)
    stream.inject(CorruptFrame(event=1, times=3))
    async with stream.open(on_bad_frame="gap") as opened:
        batch = await anext(opened)
    (gap,) = batch.gaps
    first, second, third, *_ = map(int, stream.log[FIRST])
    assert gap.after == Horizon()
    assert isinstance(gap.until, Cursor)
    assert first < second <= gap.until.sequence < third
    assert "checksum" in gap.reason
    assert batch.records.column("sequenceNumber")[0].as_py() == str(third)


@PAIRS
@pytest.mark.parametrize("frames", [2, 3])
async def test_frames_in_a_row_that_stay_damaged_are_all_that_is_missing(
    stream: Stream, frames: int
) -> None:
    stream.put(10)
    stream.inject(*(CorruptFrame(event=number, times=99) for number in range(1, frames + 1)))
    async with stream.reading(on_bad_frame="gap") as reader:
        await reader.has(10 - 2 * frames)
    assert reader.log[FIRST] == stream.log[FIRST][2 * frames :]
    assert reader.kinds == ["DamagedFrameError"] * 2 * frames


@PAIRS
async def test_a_frame_that_is_damaged_twice_is_read_in_the_end(stream: Stream) -> None:
    stream.put(6)
    stream.inject(CorruptFrame(event=1, times=2))
    async with stream.reading(on_bad_frame="gap") as reader:
        await reader.has(6)
        assert reader.stream.statistics().gaps == 0
    assert reader.log == stream.log


@PAIRS
async def test_a_restart_between_the_tries_begins_them_anew(stream: Stream) -> None:
    stream.put(2)
    saved = await read_and_close(stream, 2)
    stream.put(8)
    stream.inject(CorruptFrame(event=1, times=2), IgnoreSubscribe(call=3))
    async with stream.reading(on_bad_frame="gap", resume=saved) as reader:
        await eventually(lambda: stream.server.statistics().faults.get("IgnoreSubscribe"))
    assert reader.kinds == ["DamagedFrameError"] * 2
    assert reader.count == 0
    stream.inject(CorruptFrame(event=1, times=3))
    async with stream.reading(on_bad_frame="gap", resume=reader.stream.positions) as reader:
        await reader.has(6)
    assert reader.log[FIRST] == stream.log[FIRST][4:]
    assert reader.kinds == ["DamagedFrameError"] * 2


@pytest.mark.parametrize("on_bad_frame", ["fail", "gap"])
async def test_a_frame_whose_length_stays_damaged_is_fatal(
    stream: Stream, on_bad_frame: str
) -> None:
    stream.put(3)
    stream.inject(CorruptFrame(checksum="prelude", times=9))
    async with stream.reading(on_bad_frame=on_bad_frame) as reader:
        failure = await reader.failed()
    assert isinstance(failure, SplitFailedError)
    assert type(failure.__cause__) is MalformedEventError
    assert re.search("it is unknown where the next frame begins .*3 times", str(failure))
    assert stream.server.statistics().subscribe_calls == {FIRST: 3}


@PAIRS
@pytest.mark.parametrize("times", [3, 4])
async def test_a_damaged_end_does_not_end_the_shard(stream: Stream, times: int) -> None:
    stream.put(2)
    async with stream.reading(on_bad_frame="gap") as reader:
        await reader.has(2)
        stream.inject(CorruptFrame(shard=FIRST, event=None, times=times))
        stream.server.split_shard("orders", FIRST)
        stream.put(6)
        await reader.has(8)
    assert {key: log for key, log in reader.log.items() if log} == dict(stream.log)
    assert reader.stream.statistics().gaps <= 1


async def test_an_end_that_stays_damaged_is_fatal_and_says_what_it_may_be(stream: Stream) -> None:
    stream.put(2)
    stream.server.split_shard("orders", FIRST)
    stream.inject(CorruptFrame(shard=FIRST, event=None, times=99))
    async with stream.reading(on_bad_frame="gap") as reader:
        failure = await reader.failed()
    assert "nothing after a damaged frame, which may have been its end" in str(failure)


async def test_other_failures_between_the_tries_change_nothing(stream: Stream) -> None:
    stream.put(3)
    stream.inject(CorruptFrame(event=1), EndEarly(event=1), CorruptFrame(event=1))
    async with stream.reading(on_bad_frame="gap") as reader:
        await reader.has(3)
        await eventually(lambda: len(reader.causes) == 3)
    assert reader.log == stream.log
    assert any(isinstance(cause, DamagedFrameError) for cause in reader.causes)
