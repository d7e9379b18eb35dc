"""The stream of a query: it runs in the loop thread, and Spark's threads call it blocking."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias, final

from fanout.core.cancellation import in_thread
from fanout.core.error_text import first_error
from fanout.core.opening import open_stored
from fanout.errors import AcknowledgementError, OptionError, StreamStateError
from fanout.landing.segments.segment_filler import FillResult, NoRecords, SegmentFiller, Stopped
from fanout.landing.segments.segments import Filled, LandedBatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from fanout.core.checkpoint import Checkpoint
    from fanout.core.fan_out import FanOut
    from fanout.core.opening import ResumePoint
    from fanout.core.source import RecordLocks, Source
    from fanout.core.statistics import OnResubscribe, Statistics
    from fanout.landing.log.pending import Pending, PendingSegments
    from fanout.landing.log.reading import BatchLimits
    from fanout.landing.segments.segments import SegmentLog
    from fanout.spark.workers.loop_thread import LoopThread

    _Opened: TypeAlias = "tuple[FanOut, SegmentFiller | PendingQueue]"

log = logging.getLogger(__name__)

# How long records are collected while Spark is busy. Each pending segment costs files and a round
# trip, but the members of the group receive nothing more until it is stored.
_COLLECT_SECONDS: Final = 0.05
# One batch takes no more pending segments: Spark lists more than 32 paths with a job of its own.
_MAX_SEGMENTS: Final = 16
# How often a paused source is checked for room.
_CHECK_SECONDS: Final = 0.05
_IDLE_SECONDS: Final = 60.0


@final
@dataclass(frozen=True, slots=True)
class PendingBatch:
    """Records for one batch in stored segments, at least one, in the order of their numbers."""

    pending: tuple[Pending, ...]


BatchContent: TypeAlias = FillResult | PendingBatch | LandedBatch
"""The records of a batch, or why there are none."""


@final
class PendingQueue:
    """Store filled segments as pending, acknowledge their records, and keep them for Spark.

    The lock of an acquired record expires, however long a handler takes. So every segment is stored
    soon after its records came. At most the records of one batch wait for Spark; then the source is
    paused, and the records that it had requested are stored too, so that a paused source holds no
    locks. Nothing else calls the filler. `failure` is the error that ended `run`; None while it
    runs, and after a cancellation.
    """

    def __init__(
        self,
        stream: FanOut,
        locks: RecordLocks,
        filler: SegmentFiller,
        pending: PendingSegments,
        *,
        max_records: int,
        max_bytes: int,
    ) -> None:
        self.failure: Exception | None = None
        self._stream = stream
        self._locks = locks
        self._filler = filler
        self._segments = pending
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._time = asyncio.get_running_loop().time
        self._pending = deque(pending.left)
        self._waits_since = deque([self._time()] * len(self._pending))  # of each pending one
        self._positions = stream.delivered
        self._requested = False
        self._ended = False
        self._finished = False
        self._stopping = False
        self._closed = False
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Store and acknowledge until cancelled, until a failure, or until the run has caught up.

        Cancellation: stored segments stay pending, also those that were not acknowledged; all other
        records come again.
        """
        try:
            while not self._ended:
                if self._full:
                    await self._pause()
                else:
                    await self._store_next(_IDLE_SECONDS)
                    await self._until(lambda: self._requested or self._ended, _COLLECT_SECONDS)
            self._locks.pause()
        finally:
            self._ended = self._closed = True
            self._changed.set()

    async def next(self, idle: float) -> BatchContent:
        """Wait `idle` seconds for pending segments, and return as many as one batch may have.

        One caller at a time. The failure of the stream is raised after its last records.

        Cancellation: nothing is handed over.
        """
        self._requested = True
        self._changed.set()
        try:
            await self._until(lambda: bool(self._pending) or self._ended, idle)
        finally:
            self._requested = False
        if self._stopping:
            return Stopped()
        if self._pending:
            return PendingBatch(tuple(self._take()))
        if self.failure is not None:
            raise self.failure
        if self._closed and not self._finished:
            raise StreamStateError("the query has stopped")
        return NoRecords(self._positions, finished=self._finished)

    def statistics(self) -> Statistics:
        """Return the counters of the stream, with the age of what is stored; from any thread."""
        statistics, waits_since = self._filler.statistics(), tuple(self._waits_since)
        if not waits_since:
            return statistics
        return replace(statistics, held=self._time() - waits_since[0])

    def stop(self) -> None:
        """Let the present and every later call of `next` return `Stopped` at once."""
        self._stopping = self._ended = True
        self._changed.set()
        self._filler.stop()

    @property
    def _full(self) -> bool:
        """Whether the records of one batch are pending."""
        return (
            len(self._pending) >= _MAX_SEGMENTS
            or sum(one.segment.rows for one in self._pending) >= self._max_records
            or sum(one.segment.size for one in self._pending) >= self._max_bytes
        )

    async def _store_next(self, idle: float) -> bool:
        """Store and acknowledge a segment of the filler; return whether there was one."""
        try:
            match await self._filler.next(idle):
                case Filled() as filled:
                    await self._keep(filled)
                    return True
                case NoRecords(positions, finished):
                    self._positions, self._finished = positions, finished
                    self._ended = self._ended or finished
                case Stopped():
                    self._ended = True
        except Exception as error:  # noqa: BLE001 - Spark gets any error
            self.failure, self._ended = error, True
        self._changed.set()
        return False

    async def _keep(self, filled: Filled) -> None:
        positions = {id_: state.position for id_, state in filled.positions.splits.items()}
        unconfirmed = self._locks.unconfirmed(positions)
        self._pending.append(await in_thread(lambda: self._segments.keep(filled, unconfirmed)))
        self._waits_since.append(self._time())
        self._positions = filled.positions
        self._changed.set()
        try:
            await self._stream.acknowledge(filled.positions)
        except AcknowledgementError as error:
            # They are unconfirmed, so they are dropped when they are delivered again.
            log.warning("stored records were acknowledged too late: %s", error)

    async def _pause(self) -> None:
        """Pause the source until there is room, and store the records that it had requested."""
        self._locks.pause()
        while self._full and not self._ended:
            await self._store_next(_CHECK_SECONDS)
        self._locks.resume()

    async def _until(self, reached: Callable[[], bool], seconds: float | None) -> None:
        """Wait until a condition holds, for at most some seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not reached():
                    self._changed.clear()
                    await self._changed.wait()

    def _take(self) -> list[Pending]:
        """Return the segments that fit into a batch, at least one."""
        taken = [self._pending.popleft()]
        rows, size = taken[0].segment.rows, taken[0].segment.size
        while self._pending and len(taken) < _MAX_SEGMENTS:
            following = self._pending[0].segment
            rows, size = rows + following.rows, size + following.size
            if rows > self._max_records or size > self._max_bytes:
                break
            taken.append(self._pending.popleft())
        for _ in taken:
            self._waits_since.popleft()
        self._changed.set()
        return taken


@final
class QueryStream:
    """Open a stream in the loop thread, and fill segments from it until the loop thread ends.

    Segments are stored as pending where the source locks records (a share group). `bounded`
    finishes when every split has reached its newest record; `on_resubscribe` is called in the loop
    thread.

    Raises:
        FanOutError: If the stream cannot be opened.
    """

    def __init__(
        self,
        loop: LoopThread,
        source: Source,
        resume: ResumePoint,
        log: SegmentLog,
        pending: PendingSegments,
        *,
        limits: BatchLimits,
        bounded: bool,
        on_resubscribe: OnResubscribe | None,
    ) -> None:
        self._loop = loop
        self._source = source
        self._resume = resume
        self._log = log
        self._pending = pending
        self._limits = limits
        self._bounded = bounded
        self._on_resubscribe = on_resubscribe
        opened: concurrent.futures.Future[_Opened] = concurrent.futures.Future()
        self._serving = loop.start(self._serve(opened))
        self._stream, self._filler = opened.result()

    @property
    def failure(self) -> BaseException | None:
        """The error that ended the stream or the filling of segments, as soon as it is known."""
        return self._stream.failure or self._filler.failure or self._outcome()

    def statistics(self) -> Statistics:
        """Return the stream's counters."""
        return self._filler.statistics()

    def take(self, idle: float) -> BatchContent:
        """Block until there are records, for `idle` seconds at most.

        The failure of the stream is raised after its last records.
        """
        try:
            return self._loop.call(self._filler.next(idle))
        except StreamStateError:
            # The filler was cancelled; the result of its task has the reason.
            concurrent.futures.wait([self._serving])
            if (failure := self.failure) is not None:
                raise failure from failure.__cause__
            raise

    def acknowledge(self, positions: Checkpoint) -> None:
        """Acknowledge to the service everything up to `positions`; it is durable and was handled.

        Records of a share group were acknowledged as soon as they were durable.
        """
        if self._stream.capabilities.lending is None:
            self._loop.call(self._stream.acknowledge(positions))

    def stop(self) -> None:
        """Let `take` return `Stopped` at once from now on."""
        self._loop.call_soon(self._filler.stop)

    def _outcome(self) -> BaseException | None:
        if not self._serving.done() or self._serving.cancelled():
            return None
        error = self._serving.exception()
        return None if error is None else first_error(error)

    async def _serve(self, opened: concurrent.futures.Future[_Opened]) -> None:
        try:
            async with open_stored(
                self._source,
                self._resume,
                available_now=self._bounded,
                on_resubscribe=self._on_resubscribe,
            ) as stream:
                offered = stream.capabilities
                if offered.lending is not None:
                    await self._serve_acquired(stream, offered.lending, opened)
                    return
                filler = SegmentFiller(
                    stream,
                    self._log,
                    max_wait=self._limits.max_wait,
                    min_records=self._limits.min_records,
                    bounded=self._bounded,
                )
                opened.set_result((stream, filler))
                await filler.run()
        except BaseException as error:
            if not opened.done():
                opened.set_exception(error)
            raise

    async def _serve_acquired(
        self,
        stream: FanOut,
        locks: RecordLocks,
        opened: concurrent.futures.Future[_Opened],
    ) -> None:
        """Serve a stream whose records are locked until they are acknowledged."""
        if self._limits.min_records > 1:
            raise OptionError(
                f"min_records={self._limits.min_records} contradicts {stream.delivered.source}, "
                f"which locks records, so that they are stored at once; leave min_records out"
            )
        locks.remember(self._pending.unconfirmed)  # before any split subscribes
        await in_thread(self._pending.open)
        max_wait = min(self._limits.max_wait, locks.seconds / 3)
        filler = SegmentFiller(stream, self._log, max_wait=max_wait, bounded=self._bounded)
        queue = PendingQueue(
            stream,
            locks,
            filler,
            self._pending,
            max_records=self._limits.max_records,
            max_bytes=self._limits.max_bytes,
        )
        opened.set_result((stream, queue))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(filler.run())
            tasks.create_task(queue.run())
