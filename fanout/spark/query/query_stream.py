"""The stream of a query: it runs in the loop thread, and Spark's threads call it blocking."""

from __future__ import annotations

import asyncio
import concurrent.futures
from typing import TYPE_CHECKING, TypeAlias, final

from fanout.core.cancellation import in_thread
from fanout.core.error_text import first_error
from fanout.core.opening import open_stored
from fanout.errors import OptionError, StreamStateError
from fanout.landing.segments.segment_filler import SegmentFiller
from fanout.spark.query.pending_queue import PendingQueue

if TYPE_CHECKING:
    from fanout.core.checkpoint import Checkpoint
    from fanout.core.fan_out import FanOut
    from fanout.core.opening import ResumePoint
    from fanout.core.source import RecordLocks, Source
    from fanout.core.statistics import OnResubscribe, Statistics
    from fanout.landing.log.pending import PendingSegments
    from fanout.landing.log.reading import BatchLimits
    from fanout.landing.segments.segments import SegmentLog
    from fanout.spark.query.pending_queue import BatchContent
    from fanout.spark.workers.loop_thread import LoopThread

    _Opened: TypeAlias = tuple[FanOut, SegmentFiller | PendingQueue]


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
