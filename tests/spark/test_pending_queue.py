"""Pending segments of acquired records between the source and Spark, without a JVM."""

from __future__ import annotations

import asyncio
import operator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, cast

import pyarrow.parquet as pq
import pytest

from fanout.core.opening import open_stream
from fanout.core.positions import Cursor
from fanout.errors import CheckpointError, ServiceError, SplitFailedError
from fanout.landing.log.entries import BatchEntry
from fanout.landing.log.ledger import BatchLedger
from fanout.landing.segments.segment_filler import NoRecords, SegmentFiller, Stopped
from fanout.landing.segments.segments import SegmentLog
from fanout.landing.storage.local_storage import LocalStorage
from fanout.spark.query.query_stream import PendingBatch, PendingQueue
from tests.spark.lending import LendingSource
from tests.support.manual_source import SCHEMA

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from fanout.core.fan_out import FanOut
    from fanout.landing.claims import Ownership
    from fanout.landing.log.pending import Pending

LONG = 600.0


@dataclass
class Owner:
    """A claim without a JVM: it is lost when a test says so."""

    run: int = 1
    lost: bool = False

    def check(self) -> None:
        if self.lost:
            raise CheckpointError("taken over")


@dataclass
class Run:
    """One run of a query, as far as the queue and the ledger make it up."""

    queue: PendingQueue
    stream: FanOut
    ledger: BatchLedger
    storage: LocalStorage
    owner: Owner
    batches: int = field(init=False)

    def __post_init__(self) -> None:
        newest = self.ledger.newest
        self.batches = 0 if newest is None else newest.batch_id + 1

    async def take(self) -> list[int]:
        """Do what Spark does with a batch; return its records."""
        taken = await self.queue.next(LONG)
        assert isinstance(taken, PendingBatch)
        return await self.finish(taken)

    async def finish(self, taken: PendingBatch) -> list[int]:
        return await asyncio.to_thread(self._finish, taken.pending)

    def _finish(self, pending: tuple[Pending, ...]) -> list[int]:
        segments = tuple(one.segment for one in pending)
        taking = self.ledger.pending.taking(pending)
        entry = BatchEntry(self.batches, "query", segments, pending[-1].positions, None, taking)
        self.ledger.write(entry)
        self.ledger.prune()
        self.batches += 1
        tables = [pq.read_table(self.storage.root / one.segment.name) for one in pending]
        return [number for table in tables for number in table.column("sequence").to_pylist()]

    async def idle(self) -> None:
        """Do what Spark does when there were no records."""
        idle = await self.queue.next(0.01)
        assert isinstance(idle, NoRecords)
        taking = self.ledger.pending.taking()
        entry = BatchEntry(self.batches, "query", (), idle.positions, taken=taking)
        self.batches += 1
        await asyncio.to_thread(self.ledger.write, entry)
        await asyncio.to_thread(self.ledger.prune)

    async def files(self, directory: str) -> list[str]:
        listed = await asyncio.to_thread(self.storage.list, directory)
        return [file.name for file in listed]


@asynccontextmanager
async def running(
    source: LendingSource,
    root: Path,
    *,
    run: int = 1,
    max_records: int = 100,
    bounded: bool = False,
) -> AsyncIterator[Run]:
    owner = Owner(run)
    storage, ledger = await asyncio.to_thread(_open, root, owner)
    scratch = await asyncio.to_thread(storage.scratch)
    log = SegmentLog(scratch, run, SCHEMA, max_records=max_records, max_bytes=1 << 20)
    stored = ledger.pending.positions or ledger.positions()
    resume = None if stored is None else stored.to_json()
    async with open_stream(source, resume=resume) as stream:
        locks = stream.capabilities.lending
        assert locks is not None
        locks.remember(ledger.pending.unconfirmed)
        await asyncio.to_thread(ledger.pending.open)
        filler = SegmentFiller(stream, log, max_wait=0.05, bounded=bounded)
        queue = PendingQueue(
            stream, locks, filler, ledger.pending, max_records=max_records, max_bytes=1 << 20
        )
        async with asyncio.TaskGroup() as tasks:
            work = [tasks.create_task(filler.run()), tasks.create_task(queue.run())]
            await asyncio.sleep(0)
            yield Run(queue, stream, ledger, storage, owner)
            for task in work:
                task.cancel()


def _open(root: Path, owner: Owner) -> tuple[LocalStorage, BatchLedger]:
    storage = LocalStorage(root)
    return storage, BatchLedger(storage, cast("Ownership", owner))


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - nothing signals what the queue has done
            await asyncio.sleep(0.001)


def numbers(count: int) -> list[int]:
    return list(range(1, count + 1))


@pytest.fixture
def source() -> LendingSource:
    return LendingSource()


async def test_records_are_acknowledged_when_their_segment_is_named(
    source: LendingSource, tmp_path: Path
) -> None:
    named: list[list[str]] = []
    async with running(source, tmp_path) as run:

        async def look() -> None:
            named.append(await run.files("pending"))

        source.on_acknowledge = look
        source.put(3)
        await until(lambda: source.accepted == numbers(3))
        assert named == [["000000000001.json", "000000000002.json"]]
        assert await run.files("segments") == ["run-000001-00000001.parquet"]
        assert await run.take() == numbers(3)


async def test_a_batch_takes_what_was_named_while_spark_was_busy(
    source: LendingSource, tmp_path: Path
) -> None:
    async with running(source, tmp_path) as run:
        for count in (3, 6, 9):
            source.put(3)
            await until(partial(operator.eq, source.accepted, numbers(count)))
        assert len(await run.files("segments")) == 3
        assert await run.take() == numbers(9)
        assert await run.files("pending") == ["000000000001.json"]


async def test_a_batch_has_at_most_max_records(source: LendingSource, tmp_path: Path) -> None:
    source.put(25)
    async with running(source, tmp_path, max_records=10) as run:
        await until(lambda: source.accepted == numbers(25))
        batches = [await run.take() for _ in range(3)]
    assert batches == [numbers(25)[:10], numbers(25)[10:20], numbers(25)[20:]]


async def test_a_pause_holds_nothing(tmp_path: Path) -> None:
    source = LendingSource(members=3, per_poll=4)
    source.put(100)
    async with running(source, tmp_path, max_records=10) as run:
        await until(lambda: source.paused and not any(source.held.values()))
        assert 10 <= len(source.accepted) < 100
        await asyncio.sleep(0.2)
        assert source.paused
        assert not any(source.held.values())
        held = len(source.accepted)
        taken = await run.take()
        while len(taken) < 100:
            taken += await run.take()
        assert held < 100
    assert sorted(taken) == numbers(100)


async def test_what_comes_late_in_a_pause_is_made_safe_as_well(tmp_path: Path) -> None:
    source = LendingSource(per_poll=4)
    source.put(12)
    async with running(source, tmp_path, max_records=10):
        await until(lambda: source.paused and source.accepted == numbers(12))
        source.put(3)
        source.paused = False  # as if it had been asked for before
        await until(lambda: source.accepted == numbers(15))


async def test_what_was_acknowledged_too_late_is_dropped_when_it_comes_again(
    source: LendingSource, tmp_path: Path
) -> None:
    async with running(source, tmp_path) as run:
        source.late = True
        source.put(3)
        await until(lambda: source.dropped == numbers(3))
        source.put(1)
        await until(lambda: source.accepted == numbers(4))
        assert await run.take() == numbers(4)


async def test_what_a_run_has_left_comes_first_in_the_next(
    source: LendingSource, tmp_path: Path
) -> None:
    async with running(source, tmp_path):
        source.put(3)
        await until(lambda: source.accepted == numbers(3))
    async with running(source, tmp_path, run=2) as run:
        source.put(2)
        await until(lambda: source.accepted == numbers(5))
        assert await run.take() == numbers(5)
        assert await run.files("pending") == ["000000000003.json"]


async def test_what_a_run_has_left_unconfirmed_is_dropped_by_the_next(
    source: LendingSource, tmp_path: Path
) -> None:
    async with running(source, tmp_path) as run:

        async def die() -> None:
            source.paused = True

        source.on_acknowledge, source.late = die, True  # none of it arrives
        source.put(3)
        await until(lambda: not source.late)
    assert source.accepted == source.dropped == []
    async with running(source, tmp_path, run=2) as run:
        await until(lambda: source.dropped == numbers(3))
        assert await run.take() == numbers(3)
        source.put(1)
        assert await run.take() == [4]


async def test_unconfirmed_deliveries_are_carried_on_when_no_pending_segment_is_left(
    source: LendingSource, tmp_path: Path
) -> None:
    async with running(source, tmp_path) as run:

        async def pause() -> None:
            source.paused = True

        source.on_acknowledge, source.late = pause, True
        source.put(2)
        taken = await run.take()
        await until(lambda: not source.late)
        await run.idle()
        assert await run.files("pending") == ["000000000001.json"]
    assert (taken, source.dropped) == ([1, 2], [])
    async with running(source, tmp_path, run=2):
        await until(lambda: source.dropped == [1, 2])


async def test_what_was_not_named_comes_again(source: LendingSource, tmp_path: Path) -> None:
    async with running(source, tmp_path) as run:
        run.owner.lost = True
        source.put(3)
        with pytest.raises(CheckpointError, match="taken over"):
            await run.queue.next(LONG)
        assert isinstance(run.queue.failure, CheckpointError)
    assert source.accepted == []
    async with running(source, tmp_path, run=2) as run:
        assert await run.take() == numbers(3)


async def test_nothing_is_acknowledged_that_a_newer_run_has_not_seen(
    source: LendingSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(source, tmp_path) as run:
        create = LocalStorage.create

        def lose(self: LocalStorage, name: str, data: bytes) -> None:
            create(self, name, data)
            run.owner.lost = True

        monkeypatch.setattr(LocalStorage, "create", lose)
        source.put(3)
        with pytest.raises(CheckpointError, match="taken over"):
            await run.queue.next(LONG)
    assert source.accepted == []


async def test_without_records_the_answer_is_the_progress_that_is_safe(
    source: LendingSource, tmp_path: Path
) -> None:
    async with running(source, tmp_path) as run:
        assert isinstance(await run.queue.next(0.01), NoRecords)
        source.put(2)
        await run.take()
        idle = await run.queue.next(0.01)
        assert isinstance(idle, NoRecords)
        assert idle.positions.splits["member-0"].position == Cursor(2)


async def test_stop_leaves_what_is_pending_to_the_next_run(
    source: LendingSource, tmp_path: Path
) -> None:
    async with running(source, tmp_path) as run:
        source.put(3)
        await until(lambda: source.accepted == numbers(3))
        run.queue.stop()
        assert [await run.queue.next(LONG) for _ in range(2)] == [Stopped(), Stopped()]
    async with running(source, tmp_path, run=2) as run:
        assert await run.take() == numbers(3)


async def test_stop_ends_a_wait_for_records(source: LendingSource, tmp_path: Path) -> None:
    async with running(source, tmp_path) as run:
        asking = asyncio.create_task(run.queue.next(LONG))
        await asyncio.sleep(0.01)
        run.queue.stop()
        assert await asking == Stopped()


async def test_a_bounded_run_finishes_when_all_is_handed_over(tmp_path: Path) -> None:
    source = LendingSource(members=2, per_poll=4)
    source.put(30)
    taken: list[int] = []
    async with running(source, tmp_path, max_records=10, bounded=True) as run:
        while isinstance(given := await run.queue.next(LONG), PendingBatch):
            taken += await run.finish(given)
        assert given == NoRecords(run.stream.delivered, finished=True)
        assert await run.queue.next(LONG) == given
        await until(lambda: source.paused)
    assert sorted(taken) == numbers(30)


async def test_a_failure_comes_after_the_records_before_it(
    source: LendingSource, tmp_path: Path
) -> None:
    async with running(source, tmp_path) as run:
        source.put(3)
        await until(lambda: source.accepted == numbers(3))
        source.fail(ServiceError("gone"))
        await until(lambda: run.queue.failure)
        assert await run.take() == numbers(3)
        for _ in range(2):
            with pytest.raises(SplitFailedError, match="gone"):
                await run.queue.next(LONG)


async def test_a_cancelled_call_takes_nothing(source: LendingSource, tmp_path: Path) -> None:
    async with running(source, tmp_path) as run:
        asking = asyncio.create_task(run.queue.next(LONG))
        await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.wait([asking])
        source.put(2)
        assert await run.take() == [1, 2]


async def test_the_age_of_what_is_stored_is_in_the_statistics(
    source: LendingSource, tmp_path: Path
) -> None:
    time = asyncio.get_running_loop().time
    async with running(source, tmp_path) as run:
        assert run.queue.statistics().held is None
        begun = time()
        source.put(1)
        await until(lambda: len(run.queue._pending) == 1)
        stored = time()
        await asyncio.sleep(0.2)
        least = time() - stored
        held = run.queue.statistics().held
        assert held is not None
        assert least - 0.1 <= held <= time() - begun
        await run.take()
        assert run.queue.statistics().held is None
