"""One subscription to a split: its events, and the bounds on what is waited for and held."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, final

from fanout.core.watchdog import Watchdog
from fanout.errors import SubscribeTimeoutError, SubscriptionEndedError, SubscriptionSilentError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fanout.core.budget import Budget
    from fanout.core.events import Batch, End
    from fanout.core.lineage import Split
    from fanout.core.positions import Position
    from fanout.core.source import Connection
    from fanout.core.turns import Turns

__all__ = ("Subscription",)


@final
class Subscription:
    """Receive the events of a split, and let the service be silent for so long and no longer.

    What is waited for on our side, a turn, memory or the consumer, is no silence of the service.

    `reserved` is the memory, in bytes, of the event that was received or is being assembled.

    Args:
        split: The split.
        connection: The service.
        budget: The bound on memory that all splits share.
        turns: The bound on pending subscribe calls that all splits share.
    """

    def __init__(
        self, split: Split, connection: Connection, *, budget: Budget, turns: Turns
    ) -> None:
        self.reserved = 0
        self._split = split
        self._connection = connection
        self._budget = budget
        self._turns = turns
        self._watchdog = Watchdog(connection.pacing.subscribe_timeout)
        self._events: AsyncIterator[Batch | End]

    @asynccontextmanager
    async def open(self, position: Position) -> AsyncIterator[None]:
        """Subscribe for as long as the block runs; it is entered once.

        Args:
            position: Where to begin.

        Raises:
            SubscribeTimeoutError: If the service does not answer in time; whatever else it refuses
                the call with passes unchanged.

        Cancellation: the subscription is closed, and what was reserved is given back.
        """
        try:
            async with AsyncExitStack() as stack:
                self._events = await self._subscribe(stack, position)
                yield
        finally:
            self._budget.release(self.reserved)
            self.reserved = 0

    async def receive(self) -> Batch | End:
        """Wait for the next event.

        Raises:
            SubscriptionEndedError: If the service has ended the subscription.
            SubscriptionSilentError: If nothing came for too long.

        Cancellation: the subscription is of no use any more.
        """
        silence = self._connection.pacing.silence_timeout
        try:
            async with Watchdog(silence) as self._watchdog:
                return await anext(self._events)
        except StopAsyncIteration:
            raise SubscriptionEndedError(
                f"the service ended the subscription to {self._split}"
            ) from None
        except TimeoutError as error:
            if not self._watchdog.expired:
                raise
            raise SubscriptionSilentError(
                f"nothing came from {self._split} for {silence:g} s, not even a heartbeat"
            ) from error

    def handed_over(self) -> None:
        """Leave the memory of the event to whoever has the event now."""
        self.reserved = 0

    async def _subscribe(
        self, stack: AsyncExitStack, position: Position
    ) -> AsyncIterator[Batch | End]:
        timeout = self._connection.pacing.subscribe_timeout
        try:
            # The wait for a turn is outside the watchdog: it measures the server only.
            async with self._turns.turn(), self._watchdog:
                return await stack.enter_async_context(
                    self._connection.subscribe(self._split, position, self._reserve)
                )
        except TimeoutError as error:
            if not self._watchdog.expired:
                raise
            raise SubscribeTimeoutError(
                f"no answer to subscribing to {self._split} within {timeout:g} s"
            ) from error

    async def _reserve(self, nbytes: int) -> None:
        """Reserve memory for an event that is about to be assembled."""
        if self._budget.reserve_now(nbytes):
            self.reserved += nbytes
            return
        # What is held is asked for again together with the rest: two splits that each held a
        # piece and waited for more could wait for each other.
        total = self.reserved + nbytes
        self._budget.release(self.reserved)
        self.reserved = 0
        with self._watchdog.paused():
            await self._budget.reserve(total)
        self.reserved = total
