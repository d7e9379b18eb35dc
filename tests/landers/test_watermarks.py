"""The watermarks of what landers read, and those of one process that reads the same events."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pyarrow as pa

from fanout.core.event_time import EventTime
from fanout.core.opening import open_stream
from fanout.core.positions import Cursor, Horizon
from fanout.landers.messages import Release
from fanout.landing.segments.segments import LandedBatch
from tests.landers.rig import Rig, until
from tests.support.manual_source import ManualSource

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from fanout.core.checkpoint import Checkpoint

    Step = Callable[[ManualSource], None]


def times(records: pa.RecordBatch) -> pa.Array:
    """Return the event times of records whose data is a number of milliseconds."""
    millis = [int(data) for data in records.column("data").to_pylist()]
    return pa.array(millis, pa.int64()).cast(pa.timestamp("ms", tz="UTC"))


def timed(*, idleness: float | None = None, bounded: bool = False) -> ManualSource:
    source = ManualSource("a", "b", bounded=bounded)
    source.event_time = EventTime(times, idleness=idleness)
    return source


def put(split: str, *millis: int) -> Step:
    return lambda source: source.put(*(str(one).encode() for one in millis), split=split)


def end(split: str, *children: str) -> Step:
    return lambda source: source.end(split, *children)


def is_read(source: ManualSource, positions: Checkpoint) -> bool:
    """Return whether positions are behind everything that a source has."""
    for split, entries in source._logs.items():
        state = positions.splits.get(split.id)
        at = Cursor(len(entries)) if entries else Horizon()
        if state is None or state.position != at or state.ended != (split in source._ended):
            return False
    return True


async def in_process(source: ManualSource, steps: Sequence[Step]) -> list[int | None]:
    """Return the watermark after each step, where one process reads."""
    watermarks = []
    async with open_stream(source) as stream:
        for step in steps:
            step(source)
            while not is_read(source, stream.delivered):
                await stream.drain(max_wait=0.0, first_wait=0.01)
            watermarks.append(stream.watermark)
    return watermarks


async def with_landers(
    source: ManualSource, steps: Sequence[Step], directory: Path
) -> list[int | None]:
    """Return the watermark after each step, where two landers read."""
    watermarks = []
    async with asyncio.timeout(20.0), Rig(source, directory).running(0, 1) as rig:
        for step in steps:
            step(source)
            while not is_read(source, rig.progress.delivered()):
                await rig.coordinator.next(0.01)
            watermarks.append(watermark(rig))
    return watermarks


def watermark(rig: Rig) -> int | None:
    assert rig.progress.watermarks is not None
    return rig.progress.watermarks.stream


async def test_landers_come_to_the_watermarks_of_one_process(tmp_path: Path) -> None:
    steps = [
        put("a", 100),
        put("b", 50),
        put("b", 40, 60),
        put("a", 90),
        put("b", 300),
        end("a", "left", "right"),
        put("left", 110),
        put("right", 105),
        put("right", 400),
        put("left", 500),
        end("b"),
        end("left"),
        put("right", 600),
    ]
    expected = [None, 49, 59, 59, 99, 99, 99, 104, 109, 299, 399, 399, 599]
    assert await in_process(timed(), steps) == expected
    assert await with_landers(timed(), steps, tmp_path) == expected


async def test_a_moved_split_goes_on_from_its_watermark(tmp_path: Path) -> None:
    steps = [put("a", 100), put("b", 20), put("a", 50), put("b", 200)]
    assert await in_process(timed(), steps) == [None, 19, 19, 99]
    source = timed()
    async with asyncio.timeout(20.0), Rig(source, tmp_path).running(0) as rig:
        for step in steps[:2]:
            step(source)
        await until(lambda: is_read(source, rig.progress.delivered()))
        owner = rig.coordinator._owners["a"]
        owner.releasing.add("a")
        owner._outbox.put_nowait(Release(("a",)))
        await until(lambda: "a" not in rig.coordinator._owners or "a" not in owner.releasing)
        for step in steps[2:]:
            step(source)
        while not is_read(source, rig.progress.delivered()):
            await rig.coordinator.next(0.01)
        assert watermark(rig) == 99


async def test_a_batch_has_the_watermark_after_its_last_record(tmp_path: Path) -> None:
    source = timed()
    for step in (put("a", 10, 20, 30, 40), put("b", 1000)):
        step(source)
    expected = [(2, None), (2, None), (1, 39)]
    async with open_stream(source) as stream:
        drained = [await stream.drain(max_records=2) for _ in range(3)]
    assert [(one.num_records, one.watermark) for one in drained] == expected
    async with asyncio.timeout(20.0), Rig(source, tmp_path, max_records=2).running(0) as rig:
        batches = [await rig.batch() for _ in range(3)]
    landed = [(sum(file.rows for file in one.segments), one.watermark) for one in batches]
    assert landed == expected


async def test_an_idle_split_holds_the_watermark_back_no_longer(tmp_path: Path) -> None:
    """Its position moves all the time, in the messages that have the records of another one."""
    source = timed(idleness=0.3)
    put("b", 5)(source)
    now = 0

    def move() -> None:
        nonlocal now
        now += 10
        put("a", now)(source)
        source.idle("b")

    async with asyncio.timeout(20.0), open_stream(source) as stream:
        while (stream.watermark or 0) < 100:
            move()
            await stream.drain(max_wait=0.0, first_wait=0.01)
    async with asyncio.timeout(20.0), Rig(source, tmp_path).running(0) as rig:
        while (watermark(rig) or 0) < 100:
            move()
            await rig.coordinator.next(0.01)


async def test_a_split_becomes_idle_while_the_handler_works(tmp_path: Path) -> None:
    source = timed(idleness=0.3)
    put("b", 5)(source)
    async with asyncio.timeout(20.0), Rig(source, tmp_path).running(0) as rig:
        await rig.batch()
        while watermark(rig) != 19:  # no batch is requested meanwhile
            put("a", 20)(source)
            await asyncio.sleep(0.05)


async def test_records_that_wait_for_credit_make_no_split_idle(tmp_path: Path) -> None:
    source = timed(idleness=0.5)
    put("a", 10, 20, 30)(source)
    put("b", 5)(source)
    async with asyncio.timeout(20.0), Rig(source, tmp_path, max_records=1).running(0) as rig:
        await until(lambda: rig.coordinator._landed)
        await asyncio.sleep(1.0)
        assert watermark(rig) is None
        batches = [await rig.batch() for _ in range(4)]
        assert batches[-1].watermark == 4


async def test_splits_at_their_stop_hold_no_watermark_back(tmp_path: Path) -> None:
    source = timed(bounded=True)
    put("a", 10)(source)
    rig = Rig(source, tmp_path, bounded=True)
    async with asyncio.timeout(20.0), rig.running(0, 1):
        while isinstance(await rig.coordinator.next(20.0), LandedBatch):
            pass
        assert rig.progress.watermarks is not None
        assert not rig.progress.watermarks._members
