"""Drain the stream into the open segment while Spark works on the segment before it."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias, final

from fanout.core.cancellation import in_thread
from fanout.core.error_text import disk_reason
from fanout.errors import CheckpointError, FanOutError, StreamStateError
from fanout.landing.segments.segments import Filled

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fanout.core.checkpoint import Checkpoint
    from fanout.core.drain import Drained
    from fanout.core.fan_out import FanOut
    from fanout.core.statistics import Statistics
    from fanout.landing.segments.segments import SegmentLog

# How long one drain collects after its first record: long enough for the snapshot of positions
# that each drain takes to cost little, short beside Spark's floor of 110 ms for a micro-batch.
_COLLECT = 0.005
# How far apart polls are at the end of the stream. When Spark wants records, the next poll is sent
# at once, and the segment waits for its answer.
_POLL = 0.100
# How long it waits for that at most. Records that come later are in the next segment.
_FIRST_ANSWER = 0.020
# How long it waits for the answers of other brokers after the first.
_OTHER_ANSWERS = 0.002
# While Spark waits, this much silence after a record ends the segment.
_QUIET = 0.010
# How often a bounded run checks whether it has caught up; shards without records report it only in
# their heartbeats.
_LOOK = 0.1


@final
@dataclass(frozen=True, slots=True)
class NoRecords:
    """No record came in time."""

    positions: Checkpoint  # of every split; all records before it were handed over
    # Whether the run has caught up, or the stream has ended: no record will come.
    finished: bool = False


@final
@dataclass(frozen=True, slots=True)
class Stopped:
    """The filler was stopped. Its drained records are dropped, so no position has moved."""


FillResult: TypeAlias = Filled | NoRecords | Stopped
"""The answer to a request of Spark for records."""


@final
@dataclass(slots=True)
class _Request:
    """Spark waits for a segment until a deadline on the loop's clock."""

    deadline: float
    answer: asyncio.Future[FillResult]
    polled_until: float = 0.0  # until then records of a poll may arrive; 0 where none was sent


@final
class SegmentFiller:
    """Fill the open segment and hand it over; one task owns it.

    While Spark waits and records keep coming, it goes on filling for `max_wait` seconds. An eager
    segment is handed over as soon as no record has come for 10 ms; any other is filled until it is
    full, or until `max_wait` is over. From `min_records` on an eager segment may be handed over
    before that. A `bounded` run finishes when every split has once reached its newest record; later
    records are left to the next run. A stream that ends by itself is finished in any case.

    `failure` is the error that ended `run`; None while it runs, and after a cancellation.
    """

    def __init__(
        self,
        stream: FanOut,
        log: SegmentLog,
        *,
        max_wait: float,
        bounded: bool,
        min_records: int = 1,
        eager: bool = True,
    ) -> None:
        self._stream = stream
        self._log = log
        self._max_wait = max_wait
        self._min_records = min_records
        self._eager = eager
        self._bounded = bounded
        self.failure: Exception | None = None
        self._time = asyncio.get_running_loop().time
        self._polling = stream.capabilities.polling
        if self._polling is not None:
            self._polling.poll_every(_POLL)
        self._segment = log.open()
        self._carried: Drained | None = None
        self._complete = False  # a run that has caught up takes no more records
        self._first_record_at = 0.0
        self._hurried = False
        self._between: deque[Callable[[], Awaitable[None]]] = deque()
        self._request: _Request | None = None
        self._untaken: FillResult | None = None
        self._interrupt: asyncio.Timeout | None = None
        self._stream_failure: FanOutError | None = None
        self._stopping = False
        self._closed: Exception | None = None

    async def run(self) -> None:
        """Drain and hand over until cancelled, or until the disk refuses a segment.

        Cancellation: the open segment is discarded; its records were not acknowledged and come
        again.
        """
        closed: Exception = StreamStateError("reading has stopped")
        try:
            while True:
                arrived = await self._drain()
                self._complete = self._complete or (self._bounded and self._stream.caught_up)
                self._answer(arrived=arrived)
                while self._between:
                    await self._between.popleft()()
        except OSError as error:
            closed = self.failure = CheckpointError(
                f"a segment cannot be written to {self._segment.path.parent}: {disk_reason(error)}"
            )
            closed.__cause__ = error
        except Exception as error:
            closed = self.failure = error
            raise
        finally:
            self._closed = closed
            if self._request is not None and not self._request.answer.done():
                self._request.answer.set_exception(closed)
            await in_thread(self._segment.discard)
            if self.failure is None and isinstance(self._untaken, Filled):
                untaken, self._untaken = self._untaken, None  # its caller was cancelled too
                await in_thread(untaken.segment.discard)

    async def next(self, idle: float) -> FillResult:
        """Wait for records and take the open segment; one caller at a time.

        A segment that was full before the call is handed over at once. Otherwise the wait is for
        the first record, and then until nothing came for 10 ms, or `max_wait` is over, or the
        segment is full. Where the next poll of the service was due later, it is sent now. Then the
        wait goes on until 2 ms after its first answer, for 20 ms at most. Without a first record
        for `idle` seconds the answer is `NoRecords`. The failure of the stream is raised after its
        last records were handed over.

        Cancellation: nothing is handed over; the next call gets what would have been.
        """
        if self._untaken is not None:
            untaken, self._untaken = self._untaken, None
            return untaken
        if self._closed is not None:
            raise self._closed
        loop = asyncio.get_running_loop()
        request = self._request = _Request(loop.time() + idle, loop.create_future())
        self._poll()
        self._wake()
        try:
            return await request.answer
        except asyncio.CancelledError:
            if not request.answer.cancelled() and request.answer.exception() is None:
                self._untaken = request.answer.result()
            raise
        finally:
            self._request = None

    @property
    def waiting(self) -> set[str]:
        """The splits of which records wait to be handed over."""
        carried = () if self._carried is None else self._carried.batches
        return {*self._segment.parts, *(batch.split.id for batch in carried)}

    @property
    def held(self) -> int:
        """How many records wait to be handed over."""
        carried = () if self._carried is None else self._carried.batches
        return self._segment.rows + sum(batch.num_records for batch in carried)

    def statistics(self) -> Statistics:
        """Return the counters of the stream, with the age of what is held; from any thread."""
        held = self._time() - self._first_record_at if self._segment.rows else None
        return replace(self._stream.statistics(), held=held)

    def hurry(self) -> None:
        """Hand the open segment, or the next one, over as soon as no record has come for 10 ms."""
        self._hurried = True
        self._poll()
        self._wake()

    def between_drains(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run work soon, at a moment when all records that were taken are in a segment."""
        self._between.append(work)
        self._wake()

    def stop(self) -> None:
        """Let the present and every later call of `next` return `Stopped` at once."""
        self._stopping = True
        self._wake()

    def _wake(self) -> None:
        # A wait that has just run out wakes the filler by itself.
        if self._interrupt is not None and not self._interrupt.expired():
            self._interrupt.reschedule(asyncio.get_running_loop().time())

    async def _drain(self) -> bool:
        """Add drained records to the segment; return False if the wait for them ended first."""
        interrupt = self._interrupt = asyncio.timeout_at(self._deadline())
        try:
            async with interrupt:
                if self._full or self._complete or self._stream_failure is not None:
                    await asyncio.get_running_loop().create_future()  # until interrupted
                drained = await self._stream.drain(
                    max_records=self._segment.room_records,
                    max_bytes=self._segment.room_bytes,
                    max_wait=0.0 if self._is_polling else _COLLECT,
                    first_wait=math.inf,
                )
        except TimeoutError:
            if not interrupt.expired():
                raise
            return False
        except FanOutError as error:
            self._stream_failure = error
            return False
        finally:
            self._interrupt = None
        if not drained.batches:
            self._complete = True
            return False
        if self._request is not None:
            answered = self._time() + _OTHER_ANSWERS
            self._request.polled_until = min(self._request.polled_until, answered)
        await self._store(drained)
        return True

    async def _store(self, drained: Drained) -> None:
        """Add records to the segment, and write what is ready to be written."""
        if self._segment.rows and drained.nbytes > self._segment.room_bytes:
            # A drain returns at least one record, however large: this one begins the next segment.
            self._carried = drained
        else:
            first = not self._segment.rows
            self._add(drained)
            if first:
                self._poll()  # records seldom come alone
        if self._full:
            # A caller that waits seals it, while records of the next one are drained. Otherwise
            # seal it while Spark works on the one before.
            if self._request is None and self._segment.good:
                await in_thread(self._segment.seal)
        elif self._segment.row_group_ready:
            await in_thread(self._segment.write_row_group)

    @property
    def _full(self) -> bool:
        return self._segment.full or self._carried is not None

    @property
    def _is_polling(self) -> bool:
        """Whether the records of a poll may be on their way, which Spark waits for."""
        return self._request is not None and self._time() < self._request.polled_until

    @property
    def _prompt(self) -> bool:
        """Whether silence ends the segment."""
        return self._hurried or (self._eager and self._segment.rows >= self._min_records)

    def _poll(self) -> None:
        """Poll the service for a request that waits, if the next poll is due later."""
        if self._request is not None and self._polling is not None and self._polling.poll_now():
            self._request.polled_until = self._time() + _FIRST_ANSWER

    def _add(self, drained: Drained) -> None:
        if not self._segment.rows:
            self._first_record_at = asyncio.get_running_loop().time()
        self._segment.add(drained)

    def _hand_over(self) -> Filled:
        segment, self._segment = self._segment, self._log.open()
        self._hurried = False
        seconds = asyncio.get_running_loop().time() - self._first_record_at
        assert segment.positions is not None
        if self._carried is not None:
            self._add(self._carried)
            self._carried = None
        return Filled(segment, segment.positions, seconds)

    def _deadline(self) -> float | None:
        """Return the deadline for the next record; None while there is no request."""
        now = asyncio.get_running_loop().time()
        if self._between:
            return now
        if self._request is None:
            return None
        if self._stopping:
            return now
        if not self._segment.rows:
            until = self._request.deadline
        elif self._is_polling:
            until = self._request.polled_until
        elif self._prompt:
            until = now + _QUIET
        else:
            until = self._first_record_at + self._max_wait
        return min(until, now + _LOOK) if self._bounded else until

    def _answer(self, *, arrived: bool) -> None:
        request, segment = self._request, self._segment
        if request is None or request.answer.done():  # its caller may have been cancelled
            return
        now = asyncio.get_running_loop().time()
        if self._stopping:
            request.answer.set_result(Stopped())
        elif segment.rows:
            waited = now >= self._first_record_at + self._max_wait
            quiet = self._prompt and not arrived
            over = self._complete or self._stream_failure is not None
            if self._full or over or ((quiet or waited) and not self._is_polling):
                request.answer.set_result(self._hand_over())
        elif self._stream_failure is not None:
            request.answer.set_exception(self._stream_failure)
        elif self._complete:
            request.answer.set_result(NoRecords(self._stream.delivered, finished=True))
        elif now >= request.deadline:
            request.answer.set_result(NoRecords(self._stream.delivered))
        if request.answer.done():
            self._request = None  # its deadline is over
