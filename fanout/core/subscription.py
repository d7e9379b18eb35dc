"""One subscription to a split: its events, its timeouts and its memory."""

from __future__ import annotations

import asyncio
import math
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final, Self, final

from fanout.errors import SubscribeTimeoutError, SubscriptionEndedError, SubscriptionSilentError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from fanout.core.events import Batch, End, Split
    from fanout.core.limits import MemoryLimit, SubscribeLimit
    from fanout.core.positions import Position
    from fanout.core.source import Connection


@final
class Subscription:
    """Receive the events of a split, with a limit on how long the service may be silent.

    Waits on this side, for a turn, for memory or for the consumer, do not count as silence.
    `reserved` is the memory, in bytes, of the event that was received or is being assembled. All
    splits share the two limits.
    """

    def __init__(
        self,
        split: Split,
        connection: Connection,
        *,
        memory_limit: MemoryLimit,
        subscribe_limit: SubscribeLimit,
    ) -> None:
        self.reserved = 0
        self._split = split
        self._connection = connection
        self._memory_limit = memory_limit
        self._subscribe_limit = subscribe_limit
        self._pacing = connection.pacing
        self._silence = Watchdog(self._pacing.silence_timeout, again=True)
        self._watchdog = Watchdog(self._pacing.subscribe_timeout)
        self._events: AsyncIterator[Batch | End]

    @asynccontextmanager
    async def open(self, position: Position) -> AsyncIterator[None]:
        """Subscribe for as long as the block runs; it is entered once.

        A service that does not answer in time is a SubscribeTimeoutError; other errors of the call
        pass unchanged.

        Cancellation: the subscription is closed, and what was reserved is given back.
        """
        try:
            async with AsyncExitStack() as stack:
                self._events = await self._subscribe(stack, position)
                yield
        finally:
            self._silence.close()
            self._memory_limit.release(self.reserved)
            self.reserved = 0

    async def receive(self) -> Batch | End:
        """Wait for the next event.

        Raises:
            SubscriptionEndedError: If the service has ended the subscription.
            SubscriptionSilentError: If nothing came for too long.

        Cancellation: the subscription is of no use any more.
        """
        try:
            async with self._silence as self._watchdog:
                return await anext(self._events)
        except StopAsyncIteration:
            raise SubscriptionEndedError(
                f"the service ended the subscription to {self._split}"
            ) from None
        except TimeoutError as error:
            if not self._watchdog.expired:
                raise
            raise SubscriptionSilentError(
                f"nothing came from {self._split} for {self._pacing.silence_timeout:g} s, "
                "not even a heartbeat"
            ) from error

    async def reserve_at_least(self, nbytes: int) -> None:
        """Wait until so many bytes are reserved for the event that was received."""
        if nbytes > self.reserved:
            await self._reserve(nbytes - self.reserved)

    def handed_over(self) -> None:
        """Leave the memory of the event to its new owner."""
        self.reserved = 0

    async def _subscribe(
        self, stack: AsyncExitStack, position: Position
    ) -> AsyncIterator[Batch | End]:
        timeout = self._pacing.subscribe_timeout
        try:
            # The wait for a turn is outside the watchdog: it measures the server only.
            async with self._subscribe_limit.turn(), self._watchdog:
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
        if self._memory_limit.reserve_now(nbytes):
            self.reserved += nbytes
            return
        # What is held is reserved again together with the rest: two splits that each held a
        # piece and waited for more could wait for each other.
        total = self.reserved + nbytes
        self._memory_limit.release(self.reserved)
        self.reserved = 0
        with self._watchdog.paused():
            await self._memory_limit.reserve(total)
        self.reserved = total


# A timer that fires later than this, as a part of its time, fired after the loop was blocked. The
# bytes that arrived meanwhile are still in the socket, unread.
_LATE: Final = 0.05


@final
class Watchdog:
    """Raise TimeoutError in a block that waits too long, like `asyncio.timeout`.

    Two things do not count: pauses, and a time at whose end the loop was blocked by other code.
    After the latter the wait begins anew. Otherwise every subscription would count as silent after
    a minute of blocking code, while the service's data is in its socket. What arrives in the same
    turn of the loop in which the time ends has arrived in time. Infinity waits for ever.

    With `again` it is entered for one block after the other, and its timer stays until `close`: a
    timer for each block takes five times as long.
    """

    def __init__(self, seconds: float, *, again: bool = False) -> None:
        self.expired = False  # whether a TimeoutError of the last block is this one's
        self._seconds = seconds
        self._again = again
        self._time = asyncio.get_running_loop().time
        self._ends = math.inf  # when the time of the wait is over
        # When the timer fires. Its handle does not say it in every event loop: uvloop rounds the
        # time to milliseconds, and a timer for now has no time.
        self._fires = math.inf
        self._timer: asyncio.Handle | None = None
        self._expiry: asyncio.Handle | None = None
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0

    async def __aenter__(self) -> Watchdog:
        """Begin to measure."""
        task = self._task = asyncio.current_task()
        assert task is not None, "a task waits"
        self._cancelling = task.cancelling()
        self.expired = False
        self._start(self._seconds)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Stop measuring; raise TimeoutError if the time was up."""
        task, self._task = self._task, None
        self._stop()
        if not self._again:
            self.close()
        if self.expired:
            assert task is not None, "a task waits"
            self.expired = task.uncancel() <= self._cancelling and kind is asyncio.CancelledError
            if self.expired:
                raise TimeoutError from error

    def close(self) -> None:
        """Leave no timer behind, after the last block."""
        self._set(math.inf)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let the time stand still during an inner block; what is left of it comes after."""
        if self._ends == math.inf:
            yield
            return
        left = self._ends - self._time()
        self._stop()
        yield
        self._start(left)

    def _start(self, seconds: float) -> None:
        """Wait so long; a timer that fires earlier is for an earlier wait, and then goes on."""
        self._expiry = None
        self._ends = self._time() + seconds
        if self._ends < self._fires:
            self._set(self._ends)

    def _stop(self) -> None:
        self._ends = math.inf
        if self._expiry is not None:
            self._expiry.cancel()

    def _set(self, when: float) -> None:
        """Fire at a time, in place of the one before; infinity is never."""
        if self._timer is not None:
            self._timer.cancel()
        self._fires, self._timer = when, None
        if when < math.inf:
            self._timer = asyncio.get_running_loop().call_at(when, self._strike)

    def _strike(self) -> None:
        fired = self._fires
        self._fires, self._timer = math.inf, None
        if fired < self._ends:  # infinity where nothing waits
            self._set(self._ends)
        elif self._time() - fired > _LATE * self._seconds:
            self._start(self._seconds)
        else:
            # In the next turn, after the tasks that have data.
            self._expiry = asyncio.get_running_loop().call_soon(self._expire)

    def _expire(self) -> None:
        assert self._task is not None
        self.expired = True
        self._task.cancel()


@final
class Tap:
    """Pass a subscription's events on, hold none of them, and show each to a function first."""

    def __init__(
        self, events: AsyncIterator[Batch | End], show: Callable[[Batch | End], None]
    ) -> None:
        self._events = events
        self._show = show

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch | End:
        event = await anext(self._events)
        self._show(event)
        return event
