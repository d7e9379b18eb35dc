"""Bring lent records to a safe place and acknowledge them, before Spark asks for them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, final

from fanout.errors import AcknowledgementError, StreamStateError
from fanout.landing.segments import Filled
from fanout.spark.loop_thread import in_thread
from fanout.spark.pump import Handover, Idle, Stopped

if TYPE_CHECKING:
    from collections.abc import Callable

    from fanout.core.fan_out import FanOut
    from fanout.core.source import Spooling
    from fanout.landing.pending import Pending, PendingSegments
    from fanout.spark.pump import Pump

__all__ = ("Spool", "Spooled", "Taken")

log = logging.getLogger(__name__)

# How long records are collected while Spark is busy: each pending segment costs files and a round
# trip, but until it is named its consumers are given nothing more.
_COLLECT: Final = 0.05
# One batch takes no more pending segments: Spark lists more than 32 paths with a job of its own.
_MOST: Final = 16
# While the source is paused, this often is looked whether there is room again.
_LOOK: Final = 0.05
_LONG: Final = 60.0


@final
@dataclass(frozen=True, slots=True)
class Spooled:
    """There are records, in segments that are safe already.

    Args:
        pending: The segments, at least one, in the order of their numbers.
    """

    pending: tuple[Pending, ...]


Taken: TypeAlias = Handover | Spooled
"""What a batch is made of."""


@final
class Spool:
    """Name what a pump has filled as pending, acknowledge it, and keep it until Spark asks.

    The lock of a record that was lent runs out, however long a handler takes. So everything is
    named soon after it came, and at most what one batch takes waits for Spark; then the source is
    paused, and what it had asked for is named too: a pause holds no locks.

    Args:
        stream: The stream.
        spooling: Pauses the source, and names unconfirmed records.
        pump: Fills segments; nobody else may ask it.
        pending: Names them.
        max_records: The most records in a batch.
        max_bytes: The most bytes in a batch.

    Attributes:
        failure: The error that ended `run`; None while it runs, and after a cancellation.
    """

    def __init__(
        self,
        stream: FanOut,
        spooling: Spooling,
        pump: Pump,
        pending: PendingSegments,
        *,
        max_records: int,
        max_bytes: int,
    ) -> None:
        self.failure: Exception | None = None
        self._stream = stream
        self._spooling = spooling
        self._pump = pump
        self._segments = pending
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._pending = deque(pending.left)
        self._positions = stream.delivered
        self._asked = False
        self._over = False
        self._finished = False
        self._stopping = False
        self._closed = False
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Name and acknowledge until cancelled, until a failure, or until the run has caught up.

        Cancellation: what was named is pending, also if it was not acknowledged; the rest comes
        again.
        """
        try:
            while not self._over:
                if self._crowded:
                    await self._pause()
                else:
                    await self._take_in(_LONG)
                    await self._until(lambda: self._asked or self._over, _COLLECT)
            self._spooling.pause()
        finally:
            self._over = self._closed = True
            self._changed.set()

    async def next(self, idle: float) -> Taken:
        """Wait for pending segments and take as many as one batch may have; one caller at a time.

        Args:
            idle: Seconds to wait for the first; then the answer is `Idle`.

        Raises:
            FanOutError: The failure of the stream, after its last records were handed over.

        Cancellation: nothing is handed over.
        """
        self._asked = True
        self._changed.set()
        try:
            await self._until(lambda: bool(self._pending) or self._over, idle)
        finally:
            self._asked = False
        if self._stopping:
            return Stopped()
        if self._pending:
            return Spooled(tuple(self._take()))
        if self.failure is not None:
            raise self.failure
        if self._closed and not self._finished:
            raise StreamStateError("the query has stopped")
        return Idle(self._positions, finished=self._finished)

    def stop(self) -> None:
        """Let the present and every later call of `next` return `Stopped` at once."""
        self._stopping = self._over = True
        self._changed.set()
        self._pump.stop()

    @property
    def _crowded(self) -> bool:
        """Whether as much is pending as one batch takes."""
        return (
            len(self._pending) >= _MOST
            or sum(one.segment.rows for one in self._pending) >= self._max_records
            or sum(one.segment.size for one in self._pending) >= self._max_bytes
        )

    async def _take_in(self, idle: float) -> bool:
        """Take what the pump has, make it safe, and acknowledge it; return whether it had any."""
        try:
            match await self._pump.next(idle):
                case Filled() as filled:
                    await self._keep(filled)
                    return True
                case Idle(positions, finished):
                    self._positions, self._finished = positions, finished
                    self._over = self._over or finished
                case Stopped():
                    self._over = True
        except Exception as error:  # noqa: BLE001 - whatever it is, Spark gets it
            self.failure, self._over = error, True
        self._changed.set()
        return False

    async def _keep(self, filled: Filled) -> None:
        positions = {id_: state.position for id_, state in filled.positions.splits.items()}
        unconfirmed = self._spooling.unconfirmed(positions)
        self._pending.append(await in_thread(lambda: self._segments.keep(filled, unconfirmed)))
        self._positions = filled.positions
        self._changed.set()
        try:
            await self._stream.acknowledge(filled.positions)
        except AcknowledgementError as error:
            # They are unconfirmed, so they are dropped when they come again.
            log.warning("records that are safe were acknowledged too late: %s", error)

    async def _pause(self) -> None:
        """Ask for no more until there is room again, and take in what was asked for before."""
        self._spooling.pause()
        while self._crowded and not self._over:
            await self._take_in(_LOOK)
        self._spooling.resume()

    async def _until(self, reached: Callable[[], bool], seconds: float | None) -> None:
        """Wait until something is so, but no longer than so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not reached():
                    self._changed.clear()
                    await self._changed.wait()

    def _take(self) -> list[Pending]:
        """Take what fits into a batch, but at least one segment."""
        taken = [self._pending.popleft()]
        rows, size = taken[0].segment.rows, taken[0].segment.size
        while self._pending and len(taken) < _MOST:
            following = self._pending[0].segment
            rows, size = rows + following.rows, size + following.size
            if rows > self._max_records or size > self._max_bytes:
                break
            taken.append(self._pending.popleft())
        self._changed.set()
        return taken
