"""The bounds that all splits share: pending subscribe calls, and bytes in memory."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

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
