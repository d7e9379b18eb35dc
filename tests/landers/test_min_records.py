from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from fanout.landers.messages import Hello, Landed
from fanout.landers.session import BatchMinimum, LanderSession
from fanout.landing.segments.segment_filler import NoRecords, Stopped
from fanout.landing.segments.segments import SegmentFile
from tests.landers.rig import MemoryChannel, Rig, until
from tests.support.manual_source import ManualSource

if TYPE_CHECKING:
    from pathlib import Path

LONG = 600.0


def numbered(count: int) -> list[bytes]:
    return [str(n).encode() for n in range(count)]


def held(rig: Rig) -> list[int]:
    return sorted(session.held for session in rig.coordinator._sessions.values())


async def one_split_each(rig: Rig) -> None:
    await until(lambda: len({id(one) for one in rig.coordinator._owners.values()}) == 2)


async def test_a_batch_waits_until_all_landers_together_hold_min_records(tmp_path: Path) -> None:
    source = ManualSource("a", "b")
    rig = Rig(source, tmp_path, min_records=5, max_wait=LONG)
    async with rig.running(0, 1):
        await one_split_each(rig)
        asking = asyncio.create_task(rig.batch(LONG))
        source.put(*numbered(3), split="a")
        source.put(*numbered(1), split="b")
        await until(lambda: held(rig) == [1, 3])
        await asyncio.sleep(0)
        assert not asking.done()
        source.put(b"fifth", split="b")
        batch = await asking
        assert len(batch.segments) == 2
        rows = [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2)]
        assert sorted(await rig.rows(batch)) == rows


async def test_max_wait_ends_the_wait_for_min_records(tmp_path: Path) -> None:
    source = ManualSource("a")
    source.put(*numbered(3), split="a")
    async with Rig(source, tmp_path, min_records=10**6, max_wait=0.1).running(0) as rig:
        assert len(await rig.rows(await rig.batch(LONG))) == 3


async def test_what_ends_the_wait_of_one_lander_ends_it_for_all_in_one_batch(
    tmp_path: Path,
) -> None:
    source = ManualSource("a", "b")
    rig = Rig(source, tmp_path, min_records=10**6, max_wait=LONG)
    async with rig.running(0, 1):
        await one_split_each(rig)
        asking = asyncio.create_task(rig.batch(LONG))
        source.put(*numbered(3), split="a")
        source.put(*numbered(2), split="b")
        await until(lambda: held(rig) == [2, 3])
        source.end("a")
        assert len(await rig.rows(await asking)) == 5


async def test_a_full_segment_ends_the_wait_for_min_records(tmp_path: Path) -> None:
    """Its lander can land no other one until a batch has taken it."""
    source = ManualSource("a")
    source.put(*numbered(7), split="a")
    rig = Rig(source, tmp_path, max_records=3, min_records=5, max_wait=LONG)
    async with rig.running(0):
        assert len(await rig.rows(await rig.batch(LONG))) == 3


async def test_segments_that_landed_meanwhile_are_a_batch_with_min_records(tmp_path: Path) -> None:
    source = ManualSource("a", "b")
    rig = Rig(source, tmp_path, max_records=3, min_records=6, max_wait=LONG)
    async with rig.running(0, 1):
        await one_split_each(rig)
        source.put(*numbered(5), split="a")
        source.put(*numbered(5), split="b")
        await until(lambda: len(rig.coordinator._landed) == 2)
        assert len(await rig.rows(await rig.batch(LONG))) == 6


async def test_a_bounded_run_hands_its_last_records_over_below_min_records(tmp_path: Path) -> None:
    source = ManualSource("a")
    source.put(*numbered(3), split="a")
    rig = Rig(source, tmp_path, bounded=True, min_records=100, max_wait=LONG)
    async with rig.running(0):
        assert len(await rig.rows(await rig.batch(LONG))) == 3
        last = await rig.coordinator.next(LONG)
        assert isinstance(last, NoRecords)
        assert last.finished


async def test_stop_ends_the_wait_for_min_records(tmp_path: Path) -> None:
    source = ManualSource("a")
    source.put(*numbered(3), split="a")
    async with Rig(source, tmp_path, min_records=100, max_wait=LONG).running(0) as rig:
        await until(lambda: held(rig) == [3])
        asking = asyncio.create_task(rig.coordinator.next(LONG))
        await asyncio.sleep(0)
        rig.coordinator.stop()
        assert await asking == Stopped()


async def session(lander: int, records: int) -> LanderSession:
    one = LanderSession(Hello(lander, 1, "here", 1), lander + 1, MemoryChannel())
    one.held = records
    return one


def segment(rows: int) -> Landed:
    return Landed(0, (SegmentFile(f"segments/{rows}.parquet", rows, rows),), ())


@pytest.mark.parametrize("number", [2, 3])
async def test_a_batch_waits_for_all_that_were_asked(number: int) -> None:
    minimum = BatchMinimum(10)
    sessions = [await session(lander, 10) for lander in range(number)]
    assert minimum.to_ask(sessions, []) == (*sessions,)
    landed: list[tuple[LanderSession, Landed]] = []
    for one in sessions:
        assert not minimum.is_met(landed)
        landed.append((one, segment(1)))  # the rest of its records has gone to another lander
        minimum.answered(one)
    assert minimum.is_met(landed)


async def test_a_lander_that_is_lost_ends_no_wait_for_ever() -> None:
    minimum = BatchMinimum(10)
    here, lost = await session(0, 9), await session(1, 1)
    minimum.to_ask([here, lost], [])
    minimum.answered(here)
    assert not minimum.is_met([(here, segment(9))])
    minimum.answered(lost)
    assert minimum.is_met([(here, segment(9))])


async def test_a_lander_without_credit_is_not_asked() -> None:
    minimum = BatchMinimum(10)
    waiting, holding = await session(0, 7), await session(1, 1)
    assert minimum.to_ask([waiting, holding], [(waiting, segment(2))]) == (holding,)


async def test_a_late_answer_is_none_to_the_next_question() -> None:
    minimum = BatchMinimum(10)
    here, late = await session(0, 9), await session(1, 1)
    minimum.to_ask([here, late], [])
    minimum.taken()  # by a caller that waits no longer
    assert minimum.is_met([(late, segment(1))])
