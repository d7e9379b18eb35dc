"""Store acquired records in pending segments and acknowledge them, before Spark asks for them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias, final

from fanout.core.cancellation import in_thread
from fanout.errors import AcknowledgementError, StreamStateError
from fanout.landing.segments.segment_filler import FillResult, NoRecords, Stopped
from fanout.landing.segments.segments import Filled, LandedBatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from fanout.core.fan_out import FanOut
    from fanout.core.source import RecordLocks
    from fanout.core.statistics import Statistics
    from fanout.landing.log.pending import Pending, PendingSegments
    from fanout.landing.segments.segment_filler import SegmentFiller

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
