from __future__ import annotations

import asyncio
import errno
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

import pytest

from fanout.core.checkpoint import Checkpoint, SplitPosition
from fanout.core.events import Split
from fanout.core.opening import ResumePoint, resolve_start
from fanout.core.positions import Cursor
from fanout.errors import CheckpointError, OptionError, ServiceError, SplitFailedError
from fanout.landing.log.entries import TakenSegments
from fanout.landing.log.pending import PendingSegments
from fanout.landing.log.reading import BatchLimits
from fanout.landing.segments.segment_filler import Stopped
from fanout.landing.segments.segments import Filled, OpenSegment, SegmentLog
from fanout.landing.storage.local_storage import LocalStorage
from fanout.spark.query.query_stream import PendingBatch, PendingQueue, QueryStream
from fanout.spark.workers.loop_thread import LoopThread
from tests.spark.lending import LendingConnection, LendingSource
from tests.support.manual_source import SCHEMA, ManualSource
from tests.support.owner import Owner
from tests.support.spark.harness import PATIENCE, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from fanout.core.source import Source
    from fanout.landing.claims import Ownership
    from tests.support.manual_source import ManualConnection


class BreakingSource(ManualSource):
    """A source whose connection can break without an error for any split."""

    def __init__(self) -> None:
        super().__init__()
        self._broken = asyncio.Event()

    def break_connection(self, loop: LoopThread) -> None:
        loop.call_soon(self._broken.set)

    @asynccontextmanager
    async def connect(self, *, available_now: bool = False) -> AsyncIterator[ManualConnection]:
        opening = super().connect(available_now=available_now)
        async with opening as connection, asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(self._watch())
            yield connection
            watching.cancel()

    async def _watch(self) -> None:
        await self._broken.wait()
        raise ZeroDivisionError("the connection broke")


@pytest.fixture
def source() -> BreakingSource:
    return BreakingSource()


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    with LoopThread() as loop:
        yield loop


def open_feed(
    loop: LoopThread,
    source: Source,
    directory: Path,
    *,
    bounded: bool = False,
    taken: TakenSegments | None = None,
    max_wait: float = 1.0,
    min_records: int = 1,
) -> QueryStream:
    return QueryStream(
        loop,
        source,
        ResumePoint(Checkpoint.from_json(loop.call(resolve_start(source)))),
        SegmentLog(directory, 1, SCHEMA, max_records=4, max_bytes=1 << 20),
        PendingSegments(LocalStorage(directory), cast("Ownership", Owner()), taken),
        limits=BatchLimits(4, 1 << 20, max_wait, min_records),
        bounded=bounded,
        on_resubscribe=None,
    )


@pytest.fixture
def feed(loop: LoopThread, source: BreakingSource, tmp_path: Path) -> QueryStream:
    return open_feed(loop, source, tmp_path)


def test_a_failure_of_the_stream_is_known_though_nobody_takes(
    feed: QueryStream, source: BreakingSource
) -> None:
    assert feed.failure is None
    source.fail(ServiceError("gone"))
    eventually(lambda: feed.failure is not None)
    assert isinstance(feed.failure, SplitFailedError)


def test_a_full_disk_is_known_though_nobody_takes(
    feed: QueryStream, source: BreakingSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: OpenSegment) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(OpenSegment, "write_row_group", refuse)
    source.put(b"one", b"two")
    eventually(lambda: feed.failure is not None)
    assert isinstance(feed.failure, CheckpointError)
    assert "No space left" in str(feed.failure)


def test_what_ended_the_stream_is_known_though_nobody_takes(
    feed: QueryStream, loop: LoopThread, source: BreakingSource
) -> None:
    source.break_connection(loop)
    eventually(lambda: feed.failure is not None)
    assert isinstance(feed.failure, ZeroDivisionError)


def test_what_ended_the_stream_is_told_to_who_waits(
    feed: QueryStream, loop: LoopThread, source: BreakingSource
) -> None:
    source.break_connection(loop)
    with pytest.raises(ZeroDivisionError) as caught:
        feed.take(PATIENCE)
    assert caught.value is feed.failure


def test_a_stop_is_no_failure(feed: QueryStream) -> None:
    feed.stop()
    assert feed.take(PATIENCE) == Stopped()
    assert feed.failure is None


def test_the_end_of_the_loop_is_no_failure(source: BreakingSource, tmp_path: Path) -> None:
    with LoopThread() as loop:
        feed = open_feed(loop, source, tmp_path)
    assert feed.failure is None


def test_acquired_records_are_acknowledged_before_they_are_taken(
    loop: LoopThread, tmp_path: Path
) -> None:
    source = LendingSource()
    source.put(3)
    feed = open_feed(loop, source, tmp_path)
    eventually(lambda: source.accepted == [1, 2, 3])
    taken = feed.take(PATIENCE)
    assert isinstance(taken, PendingBatch)
    assert [one.segment.rows for one in taken.pending] == [3]


def test_acquired_records_are_not_acknowledged_when_they_were_handled(
    loop: LoopThread, tmp_path: Path
) -> None:
    feed = open_feed(loop, LendingSource(), tmp_path)
    split = Split("member-0")
    # A batch that is replayed may have positions that this stream has nothing to say about.
    feed.acknowledge(Checkpoint("lending:one", {split.id: SplitPosition(split, Cursor(9))}))


@pytest.mark.parametrize(("max_wait", "used"), [(600.0, 10.0), (1.0, 1.0)])
def test_a_segment_is_filled_for_a_third_of_its_locks_time_at_most(
    loop: LoopThread, tmp_path: Path, max_wait: float, used: float
) -> None:
    feed = open_feed(loop, LendingSource(), tmp_path, max_wait=max_wait)
    assert LendingConnection.seconds == 30.0
    assert isinstance(feed._filler, PendingQueue)
    assert feed._filler._filler._max_wait == used


def test_min_records_of_a_source_that_locks_records_is_refused(
    loop: LoopThread, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=r"min_records=3 contradicts .* leave min_records out"):
        open_feed(loop, LendingSource(), tmp_path, min_records=3)


def test_a_feed_waits_for_min_records(
    loop: LoopThread, source: BreakingSource, tmp_path: Path
) -> None:
    feed = open_feed(loop, source, tmp_path, max_wait=600.0, min_records=3)
    source.put(b"1")
    eventually(lambda: sum(one.records for one in feed.statistics().splits.values()) == 1)
    source.put(b"2", b"3")
    taken = feed.take(PATIENCE)
    assert isinstance(taken, Filled)
    assert taken.segment.rows == 3


def test_unconfirmed_deliveries_are_known_before_a_record_can_come_again(
    loop: LoopThread, tmp_path: Path
) -> None:
    source = LendingSource()
    source.put(3)
    open_feed(loop, source, tmp_path, taken=TakenSegments(0, "[1, 2]"))
    eventually(lambda: source.accepted == [1, 2, 3])
    assert source.dropped == [1, 2]


@pytest.mark.parametrize("bounded", [False, True])
def test_the_source_is_told_whether_only_what_is_there_now_is_read(
    loop: LoopThread, tmp_path: Path, *, bounded: bool
) -> None:
    source = ManualSource()
    open_feed(loop, source, tmp_path, bounded=bounded)
    assert source.available_now == [False, bounded]  # the start is resolved by itself
