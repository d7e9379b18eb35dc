"""Run one subscriber for each split that is to be read, and hand out their events."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, final

from fanout.core.cancellation import TaskScope
from fanout.core.error_text import Causes
from fanout.core.events import End, Failure
from fanout.core.limits import MemoryLimit, SubscribeLimit
from fanout.core.slot import Slot, Waiting
from fanout.core.statistics import SplitState
from fanout.core.subscriber import Subscriber
from fanout.core.user_functions import call_listener
from fanout.errors import StreamStateError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping

    from fanout.core.backoff import FullJitter
    from fanout.core.event_time import EventTime
    from fanout.core.events import Batch, Split
    from fanout.core.lifecycle_log import LifecycleLog
    from fanout.core.positions import Position
    from fanout.core.source import Connection
    from fanout.core.statistics import OnResubscribe
    from fanout.errors import FanOutError

log = logging.getLogger(__name__)


@final
class Subscribers:
    """Run the subscribers of a stream and hand out their events.

    The first fatal error of any split sets `failure` at once and stops every subscriber; what they
    have buffered can still be taken.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        jitter: FullJitter,
        on_resubscribe: OnResubscribe,
        lifecycle: LifecycleLog,
        event_time: EventTime | None = None,
    ) -> None:
        self.failure: FanOutError | None = None
        self.stopping = False
        self.by_split: dict[str, Subscriber] = {}
        self.memory_limit = MemoryLimit(connection.pacing.max_bytes_in_flight)
        self._subscribe_limit = SubscribeLimit(connection.pacing.max_pending_subscribes)
        self._connection = connection
        self._jitter = jitter
        self.causes = Causes()
        self._cause = connection.capabilities.terms.cause
        self._on_resubscribe = on_resubscribe
        self._lifecycle = lifecycle
        self._event_time = event_time
        self._ready: deque[Slot] = deque()
        self._returned: deque[Waiting] = deque()
        self._changed = asyncio.Event()
        self._tasks = TaskScope()
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._on_end: Callable[[End], None] = lambda _: None
        self._at_end: Callable[[], bool] = lambda: False
        self._closed = False

    @asynccontextmanager
    async def running(
        self,
        on_end: Callable[[End], None],
        at_end: Callable[[], bool] = lambda: False,
    ) -> AsyncIterator[None]:
        """Run what is started while the block runs; stop it all after it.

        `on_end` is called with each end of a split that is taken; `at_end` says whether nothing
        will come any more.
        """
        self._on_end, self._at_end = on_end, at_end
        try:
            async with self._tasks:
                try:
                    yield
                finally:
                    self._closed = True
                    self._changed.set()
        finally:
            self._discard()

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run a task that ends with the subscribers."""
        return self._tasks.spawn(work, f"fanout {name}")

    def start(self, split: Split, position: Position) -> None:
        """Subscribe to a split, unless it is being read, or nothing is read any more."""
        if self._closed or self.failure is not None or split.id in self.by_split:
            return
        subscriber = Subscriber(
            split,
            position,
            connection=self._connection,
            slot=Slot(self._on_ready),
            memory_limit=self.memory_limit,
            subscribe_limit=self._subscribe_limit,
            jitter=self._jitter,
            on_resubscribe=self._resubscribes,
            lifecycle=self._lifecycle,
            event_time=self._event_time,
        )
        self.by_split[split.id] = subscriber
        self._reading[split.id] = self.spawn(self._run(subscriber), str(split))

    async def stop(self, split_id: str) -> None:
        """Close the subscription of a split; what nobody has taken of it is dropped.

        Cancellation: the subscription is closed all the same, by the end of the block.
        """
        subscriber, task = self.by_split[split_id], self._reading[split_id]
        task.cancel()
        await asyncio.wait([task])
        self.forget(split_id)
        for slot in [one for one in self._ready if one is subscriber.slot]:
            self._ready.remove(slot)
            self.memory_limit.release(slot.take()[1])
        self._returned = deque(one for one in self._returned if one.event.split.id != split_id)

    def forget(self, split_id: str) -> None:
        """Drop the subscriber of a split that is read, or that has expired."""
        self.by_split.pop(split_id, None)
        self._reading.pop(split_id, None)

    def take(self) -> Batch | End | None:
        """Take the next event that is ready, in the order of arrival; None where there is none."""
        if self._returned:
            return self._returned.popleft().event
        while self._ready:
            event, cost = self._ready.popleft().take()
            self.memory_limit.release(cost)
            if isinstance(event, Failure):
                continue  # it is in `failure`; the reader gets it after what is buffered
            if isinstance(event, End):
                self._on_end(event)
            return event
        return None

    def give_back(self, events: Iterable[Batch | End]) -> None:
        """Have events that were taken come again, before all others and in their order."""
        now = asyncio.get_running_loop().time()
        self._returned.extendleft(Waiting(event, now) for event in reversed(list(events)))

    def waiting(self) -> Mapping[str, Waiting]:
        """Return the event of each split that has waited longest; from any thread."""
        waiting = {
            split_id: held
            for split_id, subscriber in list(self.by_split.items())
            if (held := subscriber.slot.waiting) is not None
        }
        # What was taken and has come back is before what is in a slot.
        return waiting | {one.event.split.id: one for one in reversed(tuple(self._returned))}

    async def more(self) -> bool:
        """Wait until there may be something to take; call it only when nothing is left to take.

        It returns False, at once, where nothing will come any more: a bounded stream is at its end,
        or `stop_reading` was called. It raises the failure of the stream, or StreamStateError if
        the stream is closed.
        """
        if self.stopping or self._at_end():
            return False
        if self.failure is not None:
            raise self.failure
        self.check_open()
        self._changed.clear()
        await self._changed.wait()
        return not self.stopping

    def stop_reading(self) -> None:
        """Let `more` return False from now on, also where it waits."""
        self.stopping = True
        self._changed.set()

    def caught_up(self, split_id: str) -> bool:
        """Return whether a split of a bounded stream has been read to its stop."""
        subscriber = self.by_split.get(split_id)
        return subscriber is not None and subscriber.state is SplitState.CAUGHT_UP

    def fail(self, error: FanOutError) -> None:
        """End the stream with an error; the first one counts."""
        if self.failure is None:
            self.failure = error
            self._changed.set()
            self._tasks.cancel()
        elif error is not self.failure:
            log.error("another failure after the first: %s", error)

    def check_open(self) -> None:
        """Raise StreamStateError if the stream is closed."""
        if self._closed:
            raise StreamStateError("the stream is closed; read it inside its `async with` block")

    def _discard(self) -> None:
        """Release the memory of events that can no longer be taken."""
        while self._ready:
            _, cost = self._ready.popleft().take()
            self.memory_limit.release(cost)

    def _resubscribes(self, split: Split, cause: Exception, delay: float) -> None:
        self.causes.count(self._cause(cause))
        call_listener("on_resubscribe", self._on_resubscribe, split, cause, delay)

    async def _run(self, subscriber: Subscriber) -> None:
        await subscriber.run()
        if subscriber.state is SplitState.CAUGHT_UP:
            self._changed.set()  # the last one of them ends the stream

    def _on_ready(self, slot: Slot) -> None:
        self._ready.append(slot)
        self._changed.set()
        if slot.pill is not None:
            self.fail(slot.pill.error)
