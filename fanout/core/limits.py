"""Limits that the splits of a stream share: pending calls, memory, and lines of the log."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

_PATIENCE: Final = 5.0


@final
class SubscribeLimit:
    """Let so many calls be pending at once, first come first served.

    Subscriptions that were opened together are ended together, five minutes later. Their renewals
    go out as fast as the service answers, and no faster; a single one waits for nothing.

    A call that has had no answer for 5 seconds gives its turn up and continues without it, so that
    splits whose calls hang cannot keep the others from theirs.
    """

    def __init__(self, limit: int) -> None:
        self._free = asyncio.Semaphore(limit)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, and keep it for the block.

        Cancellation: no turn is kept, nor lost to those who wait.
        """
        await self._free.acquire()
        with ExitStack() as turn:
            turn.callback(self._free.release)
            given_up = asyncio.get_running_loop().call_later(_PATIENCE, turn.close)
            turn.callback(given_up.cancel)
            yield


@final
class MemoryLimit:
    """Hand out bytes up to a limit, first come first served.

    Invariant: at most `limit` bytes are out, except that a single reservation larger than the limit
    is granted while nothing else is out, so that it cannot wait for ever.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def limit(self) -> int:
        """The bytes that may be out at once."""
        return self._limit

    @property
    def used(self) -> int:
        """The bytes that are out now."""
        return self._used

    def reserve_now(self, nbytes: int) -> bool:
        """Take bytes if no caller has to wait for them; return whether they were taken."""
        if self._waiting or not self._fits(nbytes):
            return False
        self._used += nbytes
        return True

    async def reserve(self, nbytes: int) -> None:
        """Take bytes, waiting for their release where the limit is reached.

        Cancellation: nothing stays reserved.
        """
        if self.reserve_now(nbytes):
            return
        granted = asyncio.get_running_loop().create_future()
        self._waiting.append((nbytes, granted))
        try:
            await granted
        except asyncio.CancelledError:
            if granted.cancelled():
                self._waiting.remove((nbytes, granted))
                self._grant()
            else:
                self.release(nbytes)
            raise

    def release(self, nbytes: int) -> None:
        """Give bytes back."""
        self._used -= nbytes
        assert self._used >= 0, "more bytes were released than reserved"
        self._grant()

    def _fits(self, nbytes: int) -> bool:
        return self._used == 0 or self._used + nbytes <= self._limit

    def _grant(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            nbytes, granted = self._waiting[0]
            if granted.cancelled():  # its owner is about to remove it
                return
            self._waiting.popleft()
            self._used += nbytes
            granted.set_result(None)


WINDOW: Final = 60.0
"""Seconds for which lines of a kind are counted, from its first line."""

MAX_LINES: Final = 10
"""So many lines of a kind are logged in that time."""


@final
@dataclass(slots=True)
class _Window:
    """The lines of one kind since its first one."""

    until: float  # when it ends, in the loop's time
    lines: int = 0  # lines that were logged
    # Those that were not, by what they were about.
    left_out: Counter[str] = field(default_factory=Counter)
    end: asyncio.TimerHandle | None = None  # ends it where lines were left out


@final
class LogLimit:
    """Bound the lines that a stream of thousands of splits logs.

    `summarize` logs one line for the lines of a kind that were left out; it gets the kind, and the
    number of lines by what they were about.
    """

    def __init__(self, summarize: Callable[[str, Counter[str]], None]) -> None:
        self._summarize = summarize
        self._windows: dict[str, _Window] = {}

    def admits(self, kind: str, about: str) -> bool:
        """Return whether a line is to be logged; one that is not is counted by what it is about."""
        loop = asyncio.get_running_loop()
        window = self._windows.get(kind)
        if window is None or (window.end is None and window.until <= loop.time()):
            window = self._windows[kind] = _Window(loop.time() + WINDOW)
        if window.lines < MAX_LINES:
            window.lines += 1
            return True
        if window.end is None:
            window.end = loop.call_at(window.until, self._end, kind)
        window.left_out[about] += 1
        return False

    def close(self) -> None:
        """Log what is still to be summarized; idempotent."""
        for kind in list(self._windows):
            self._end(kind)

    def _end(self, kind: str) -> None:
        window = self._windows.pop(kind)
        if window.end is not None:
            window.end.cancel()
            self._summarize(kind, window.left_out)
