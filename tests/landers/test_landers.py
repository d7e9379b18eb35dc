from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from fanout.core.checkpoint import to_wire
from fanout.core.positions import Cursor, Horizon
from fanout.core.statistics import LanderStatistics
from fanout.errors import ServiceError, SplitFailedError
from fanout.landers.messages import Hello, Landed, Piece, Release, SplitWire, encode
from fanout.landing.segments.segment_filler import NoRecords, Stopped
from fanout.landing.segments.segments import publish
from tests.landers.rig import MemoryChannel, Rig, until
from tests.support.manual_source import ManualSource
from tests.support.patience import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path

    from fanout.landing.segments.segments import OpenSegment, SegmentFile
    from fanout.landing.storage.storage import Storage


def numbered(count: int) -> list[bytes]:
    return [str(n).encode() for n in range(count)]


def position_of(rig: Rig, split: str) -> object:
    return rig.progress[split].delivered


def all_of(split: str, count: int) -> list[tuple[str, int]]:
    return [(split, number + 1) for number in range(count)]


async def test_records_of_all_splits_come_once_and_in_order(tmp_path: Path) -> None:
    source = ManualSource("a", "b", "c", "d")
    for split in "abcd":
        source.put(*numbered(250), split=split)
    async with Rig(source, tmp_path).running(0, 1) as rig:
        rows = await rig.read(1000)
    for split in "abcd":
        assert [row for row in rows if row[0] == split] == all_of(split, 250)


async def test_splits_are_spread_over_landers(tmp_path: Path) -> None:
    source = ManualSource("a", "b", "c", "d")
    async with Rig(source, tmp_path).running(0, 1) as rig:
        await until(lambda: len(rig.coordinator._owners) == 4)
        # Those of the first that came were all there was to give, or half of them were.
        assert {s.lander for s in rig.coordinator._owners.values()} <= {0, 1}


async def test_statistics_name_each_lander_that_is_connected(tmp_path: Path) -> None:
    source = ManualSource("a", "b")
    source.put(*numbered(50))
    async with Rig(source, tmp_path).running(2) as rig:
        await rig.read(50)
        rig.coordinator._counters.bytes_per_second = {"a": 30.0, "c": 100.0}
        await asyncio.sleep(0.01)
        (lander,) = rig.coordinator.statistics().landers
        assert lander.connected > 0.0
        assert replace(lander, connected=0.0) == LanderStatistics(
            lander=2,
            host="here",
            pid=1,
            splits=2,
            segments=1,
            bytes_per_second=30.0,
            connected=0.0,
        )
        rig.start(1)
        await until(lambda: len(rig.coordinator.statistics().landers) == 2)
        assert [each.lander for each in rig.coordinator.statistics().landers] == [1, 2]
        await rig.kill(2)
        assert [each.lander for each in rig.coordinator.statistics().landers] == [1]


async def test_a_batch_has_the_positions_after_its_segments(tmp_path: Path) -> None:
    source = ManualSource("a", "b")
    source.put(*numbered(50))
    async with Rig(source, tmp_path).running(0) as rig:
        batch = await rig.batch()
        rows = await rig.rows(batch)
        assert batch.positions.splits["a"].position == Cursor(max(n for _, n in rows))
        assert batch.positions.splits["b"].position == Horizon()


async def test_children_are_read_after_all_that_their_parent_had(tmp_path: Path) -> None:
    source = ManualSource("a")
    source.put(*numbered(30))
    source.end("a", "left", "right")
    source.put(*numbered(5), split="left")
    source.put(*numbered(5), split="right")
    async with Rig(source, tmp_path).running(0, 1) as rig:
        rows = await rig.read(40)
    assert rows[:30] == all_of("a", 30)
    assert sorted(rows[30:]) == all_of("left", 5) + all_of("right", 5)


async def test_the_ends_of_many_splits_in_one_message_are_one_assignment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 5,000 shards an assignment takes 15 ms, and a lander may have hundreds of them."""
    planned = []
    source = ManualSource("a", "b", "c")
    async with Rig(source, tmp_path).running(0) as rig:
        await until(lambda: len(rig.coordinator._owners) == 3)
        monkeypatch.setattr(rig.coordinator, "_assign", lambda: planned.append(1))
        at = to_wire(Horizon())
        ended = tuple(
            Piece(id_, at, at, ended=True, children=(SplitWire(f"{id_}1", (id_,)),))
            for id_ in "abc"
        )
        rig.coordinator._take_landed(rig.coordinator._sessions[0], Landed(0, (), ended))
        assert len(planned) == 1


async def test_a_lander_that_is_killed_is_replaced_without_loss(tmp_path: Path) -> None:
    source = ManualSource("a", "b")
    source.put(*numbered(150))
    source.put(*numbered(150), split="b")
    async with Rig(source, tmp_path).running(0, 1) as rig:
        rows = await rig.rows(await rig.batch())
        await rig.kill(0)
        source.put(*numbered(100))
        rows += await rig.read(400 - len(rows))
        rig.start(0)
        await until(lambda: 0 in rig.coordinator._sessions)
        source.put(*numbered(50), split="b")
        rows += await rig.read(50)
    for split, count in (("a", 250), ("b", 200)):
        assert [row for row in rows if row[0] == split] == all_of(split, count)


async def test_the_next_attempt_of_a_lander_has_its_splits_at_once(tmp_path: Path) -> None:
    source = ManualSource("a")
    async with Rig(source, tmp_path).running(0) as rig:
        await until(lambda: "a" in rig.coordinator._owners)
        now = asyncio.get_running_loop().time()
        rig.coordinator._time = lambda: now  # no lease ends while a busy machine stands still
        await rig.break_off(0)
        await until(lambda: 0 not in rig.coordinator._sessions)
        assert "a" not in rig.coordinator._owners  # the lease of the lost lander
        rig.start(0)
        await until(lambda: 0 in rig.coordinator._sessions)
        assert "a" in rig.coordinator._owners


class SlowChannel(MemoryChannel):
    """An end of a connection whose other end does not read for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = asyncio.Event()

    async def send(self, message: bytes) -> None:
        await self.reads.wait()
        await super().send(message)


async def test_an_older_attempt_does_not_replace_a_newer_one(tmp_path: Path) -> None:
    async with Rig(ManualSource("a"), tmp_path).running() as rig, asyncio.TaskGroup() as tasks:
        lander, slow = SlowChannel.pair()
        assert isinstance(slow, SlowChannel)
        serving = tasks.create_task(rig.coordinator.serve(slow))
        slow._messages.put_nowait(encode(Hello(0, 0, "here", 1)))
        await asyncio.sleep(0.01)
        rig.start(0)
        await until(lambda: 0 in rig.coordinator._sessions)
        await until(lambda: rig.coordinator._sessions[0].attempt == 1)
        slow.reads.set()
        await asyncio.sleep(0.01)
        assert rig.coordinator._sessions[0].attempt == 1
        await lander.close()
        await serving


async def test_another_lander_waits_for_the_lease_of_a_lost_one(tmp_path: Path) -> None:
    source = ManualSource("a")
    async with Rig(source, tmp_path).running(0) as rig:
        await until(lambda: "a" in rig.coordinator._owners)
        now = asyncio.get_running_loop().time()
        rig.coordinator._time = lambda: now  # no lease ends while a busy machine stands still
        await rig.break_off(0)
        await until(lambda: 0 not in rig.coordinator._sessions)
        rig.start(1)
        await until(lambda: 1 in rig.coordinator._sessions)
        assert "a" not in rig.coordinator._owners


async def test_a_lander_stops_at_its_credit(tmp_path: Path) -> None:
    source = ManualSource("a")
    source.put(*numbered(1000))
    async with Rig(source, tmp_path, max_records=100).running(0) as rig:
        await until(lambda: position_of(rig, "a") == Cursor(100))
        await asyncio.sleep(0.1)
        assert position_of(rig, "a") == Cursor(100)  # the second segment waits
        assert await rig.rows(await rig.batch()) == all_of("a", 100)
        await until(lambda: position_of(rig, "a") == Cursor(200))


async def test_the_next_session_of_a_lander_has_the_credit_of_the_one_before(
    tmp_path: Path,
) -> None:
    source = ManualSource("a")
    source.put(*numbered(1000))
    async with Rig(source, tmp_path, max_records=100).running(0) as rig:
        await until(lambda: position_of(rig, "a") == Cursor(100))
        for _ in range(2):  # a lander that dies again and again while a batch is handled
            await rig.kill(0)
            rig.start(0)
            await until(lambda: "a" in rig.coordinator._owners)
            await until(lambda: rig.landers[0]._filler.waiting)
            await asyncio.sleep(0.1)
        assert position_of(rig, "a") == Cursor(100)
        batch = await rig.batch()
        assert await rig.rows(batch) == all_of("a", 100)
        assert len(batch.segments) == 1
        await until(lambda: position_of(rig, "a") == Cursor(200))
        await rig.kill(0)  # what has landed is taken while no session is there
        assert len((await rig.batch()).segments) == 1
        rig.start(0)
        await until(lambda: position_of(rig, "a") == Cursor(300))


async def test_an_end_and_a_move_wait_for_no_batch(tmp_path: Path) -> None:
    source = ManualSource("a", "b", "c")
    source.put(*numbered(10))
    async with asyncio.timeout(20.0), Rig(source, tmp_path).running(0) as rig:
        await until(lambda: position_of(rig, "a") == Cursor(10))
        owner = rig.coordinator._owners["c"]
        source.put(b"c", split="c")  # waits for credit
        source.end("a", "left")
        await until(lambda: "left" in rig.coordinator._owners)
        for split in "bc":
            owner.releasing.add(split)
            owner._outbox.put_nowait(Release((split,)))
        await until(lambda: "b" not in owner.releasing)
        assert "c" in owner.releasing
        assert await rig.rows(await rig.batch()) == all_of("a", 10)
        assert await rig.rows(await rig.batch()) == all_of("c", 1)


async def test_splits_are_told_of_and_lost_in_one_order_in_each_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"split-{number}" for number in range(8)]
    told: list[str] = []
    lost: list[str] = []
    async with asyncio.timeout(20.0), Rig(ManualSource(*names), tmp_path).running(0, 1) as rig:
        await until(lambda: len(rig.coordinator._owners) == 8)
        delays = rig.coordinator._delays
        monkeypatch.setattr(delays, "moved", lambda split_id, _now: told.append(split_id))
        monkeypatch.setattr(delays, "lost", lambda split_id, *_rest: lost.append(split_id))
        first, second = rig.coordinator._sessions[0], rig.coordinator._sessions[1]
        first.tell(Release(tuple(first.splits)))
        of_first = sorted(first.splits)
        await until(lambda: len(told) == 4)
        of_second = sorted(second.splits)  # some of the first are its own now
        await rig.kill(1)
        assert (told, lost) == (of_first, of_second)


async def test_a_position_that_was_told_without_records_never_goes_back(tmp_path: Path) -> None:
    source = ManualSource("a", "b", "c")
    source.put(*numbered(10))
    async with asyncio.timeout(20.0), Rig(source, tmp_path).running(0) as rig:
        await until(lambda: position_of(rig, "a") == Cursor(10))
        source.put(b"waits for credit")
        await until(lambda: rig.landers[0]._filler.waiting == {"a"})
        source.idle("b")  # after the last record of the segment that waits
        source.end("c")  # is told at once, and with it where b stands
        await until(lambda: position_of(rig, "b") == Cursor(1))
        batch = await rig.batch()
        await until(lambda: position_of(rig, "a") == Cursor(11))
        assert position_of(rig, "b") == Cursor(1)
        reached = {id_: state.position for id_, state in batch.positions.splits.items()}
        rig.progress.acknowledge(reached)  # the batch was handled


async def test_a_message_of_a_session_that_is_over_counts_for_nothing(tmp_path: Path) -> None:
    source = ManualSource("a")
    source.put(*numbered(10))
    async with Rig(source, tmp_path).running(0) as rig:
        await until(lambda: position_of(rig, "a") == Cursor(10))
        stale = rig.channels[0]
        rig.start(0)  # a newer attempt
        await until(lambda: rig.coordinator._sessions[0].attempt == 2)
        piece = Piece("a", to_wire(Cursor(10)), to_wire(Cursor(12)))
        stale.other._messages.put_nowait(encode(Landed(1, (), (piece,))))
        await asyncio.sleep(0.01)
        assert position_of(rig, "a") == Cursor(10)


@pytest.mark.parametrize(
    "message",
    [
        Landed(7, (), ()),
        Landed(0, (), (Piece("a", to_wire(Cursor(3)), to_wire(Cursor(5))),)),
        Landed(0, (), (Piece("z", to_wire(Horizon()), to_wire(Cursor(5))),)),
        Landed(0, (), (Piece("a", to_wire(Horizon()), to_wire(Cursor(5)), records=5),)),
    ],
    ids=["another number", "another position", "another split", "records without a segment"],
)
async def test_a_message_that_does_not_fit_ends_the_session(
    tmp_path: Path, message: Landed
) -> None:
    async with Rig(ManualSource("a"), tmp_path).running(0) as rig:
        await until(lambda: "a" in rig.coordinator._owners)
        await rig.channels[0].send(encode(message))
        await until(lambda: 0 not in rig.coordinator._sessions)
        assert position_of(rig, "a") == Horizon()


async def test_a_lander_reads_no_longer_while_its_last_segment_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publishing, published = threading.Event(), threading.Event()

    def publish_slowly(storage: Storage, segment: OpenSegment) -> SegmentFile:
        publishing.set()
        published.wait(2 * PATIENCE)
        return publish(storage, segment)

    monkeypatch.setattr("fanout.landing.segments.by_date.publish", publish_slowly)
    source = ManualSource("a")
    source.put(*numbered(10))
    async with Rig(source, tmp_path).running(0) as rig:
        try:
            await until(publishing.is_set)
            assert source.subscriptions == 1
            await rig.channels[0].other.close()  # the lander has lost its coordinator
            async with asyncio.timeout(PATIENCE):
                await until(lambda: not source.subscriptions)
        finally:
            published.set()


async def test_a_split_is_moved_without_loss(tmp_path: Path) -> None:
    source = ManualSource("a")
    source.put(*numbered(20))
    async with Rig(source, tmp_path).running(0) as rig:
        rows = await rig.read(20)
        rig.start(1)
        await until(lambda: 1 in rig.coordinator._sessions)
        source.put(*numbered(20))
        await until(lambda: len(rows) == 20)
        owner = rig.coordinator._owners["a"]
        owner.releasing.add("a")
        owner._outbox.put_nowait(Release(("a",)))
        await until(lambda: "a" not in owner.releasing)
        source.put(*numbered(20))
        rows += await rig.read(40)
    assert rows == all_of("a", 60)


async def test_the_failure_of_a_split_is_the_querys_after_its_records(tmp_path: Path) -> None:
    source = ManualSource("a", "b")
    source.put(*numbered(20))
    async with Rig(source, tmp_path).running(0) as rig:
        await until(lambda: position_of(rig, "a") == Cursor(20))
        source.fail(ServiceError("the consumer is gone"))
        await until(lambda: rig.coordinator.failure)
        assert await rig.rows(await rig.batch()) == all_of("a", 20)
        with pytest.raises(SplitFailedError, match="the consumer is gone") as caught:
            await rig.coordinator.next(1.0)
        assert isinstance(caught.value.__cause__, ServiceError)


async def test_what_comes_while_a_segment_is_published_does_not_hide_that_a_split_caught_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ManualSource("a")
    source.put(*numbered(10))

    def publish_slowly(storage: Storage, segment: OpenSegment) -> SegmentFile:
        source.put(b"more")
        time.sleep(0.05)  # the filler drains it meanwhile
        return publish(storage, segment)

    monkeypatch.setattr("fanout.landing.segments.by_date.publish", publish_slowly)
    async with Rig(source, tmp_path).running(0) as rig:
        await rig.batch()
        assert rig.progress["a"].caught_up


async def test_a_bounded_run_finishes(tmp_path: Path) -> None:
    source = ManualSource("a", "b", bounded=True)
    source.put(*numbered(30))
    async with Rig(source, tmp_path, bounded=True).running(0, 1) as rig:
        assert await rig.read(30) == all_of("a", 30)
        last = await rig.coordinator.next(20.0)
        assert isinstance(last, NoRecords)
        assert last.finished


async def test_no_records_in_time(tmp_path: Path) -> None:
    async with Rig(ManualSource("a"), tmp_path).running(0) as rig:
        assert await rig.coordinator.next(0.01) == NoRecords(rig.progress.delivered())


async def test_stop_ends_the_wait(tmp_path: Path) -> None:
    async with Rig(ManualSource("a"), tmp_path).running(0) as rig:
        waiting = asyncio.create_task(rig.coordinator.next(60.0))
        await asyncio.sleep(0)
        rig.coordinator.stop()
        assert await waiting == Stopped()
