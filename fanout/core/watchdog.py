"""Bound a wait for the service, without blaming it for a loop that stood still."""

from __future__ import annotations

import asyncio
import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

__all__ = ("Watchdog",)

# A timer that strikes later than this, as a part of its time, struck when the loop came back to
# life. The bytes that arrived meanwhile are still in the socket, and nobody has looked.
_LATE: Final = 0.05


@final
class Watchdog:
    """Raise TimeoutError in a block that waits too long, like `asyncio.timeout`.

    Two things do not count: pauses, and a time at whose end the loop was blocked by other code.
    After the latter the wait begins anew. Otherwise every subscription would be taken for silent
    after a minute of blocking code, while the service's data lies in its socket.

    What arrives in the very turn of the loop in which the time is up has arrived in time.

    Args:
        seconds: How long the block may wait; infinity for ever.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timeout = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def expired(self) -> bool:
        """Whether a TimeoutError of the block is this one's."""
        return self._timeout.expired()

    async def __aenter__(self) -> Watchdog:
        """Begin to measure."""
        await self._timeout.__aenter__()
        self._start(self._seconds)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop measuring; raise TimeoutError if the time was up."""
        self._stop()
        await self._timeout.__aexit__(kind, error, traceback)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let the time stand still during an inner block; what is left of it comes after."""
        if self._timer is None:
            yield
            return
        left = self._timer.when() - asyncio.get_running_loop().time()
        self._stop()
        self._timeout.reschedule(None)
        yield
        self._start(left)

    def _start(self, seconds: float) -> None:
        if seconds < math.inf:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._strike)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _strike(self) -> None:
        assert self._timer is not None
        now = asyncio.get_running_loop().time()
        if now - self._timer.when() > _LATE * self._seconds:
            self._start(self._seconds)
        else:
            self._timeout.reschedule(now)  # strikes in the next turn, after those who have data
