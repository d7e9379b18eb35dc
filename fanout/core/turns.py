"""How many subscribe calls may be on their way at once."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ("Turns",)

_PATIENCE: Final = 5.0


@final
class Turns:
    """Let so many calls be pending at once, first come first served.

    Subscriptions that were opened together are ended together, five minutes later. Their renewals
    go out as fast as the service answers, and no faster; a single one waits for nothing.

    A call that has had no answer for 5 seconds gives its turn up and goes on without, so that
    splits whose calls hang cannot keep the others from theirs.

    Args:
        limit: How many.
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
