"""Run the tasks of a stream: discovery, and one subscriber for each split, parents first."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, final

from fanout.core.backoff import Retries
from fanout.core.cancellation import prefer_cancellation
from fanout.core.error_text import text_of
from fanout.core.events import End, Failure, startable
from fanout.core.limits import MemoryLimit, SubscribeLimit
from fanout.core.policy import Fatal, Phase, Retry
from fanout.core.positions import Cursor, Horizon
from fanout.core.slot import Slot
from fanout.core.statistics import SplitState
from fanout.core.subscriber import Subscriber
from fanout.errors import FanOutError, ServiceError, StreamStateError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence

    from fanout.core.backoff import FullJitter
    from fanout.core.event_time import EventTime
    from fanout.core.events import Batch, Split
    from fanout.core.lifecycle_log import LifecycleLog
    from fanout.core.policy import Verdict
    from fanout.core.progress import Progress
    from fanout.core.source import Connection
    from fanout.core.statistics import OnResubscribe

log = logging.getLogger(__name__)


@final
class Supervisor:
    """Run the subscribers of a stream and hand out their events.

    The first fatal error of any split sets `failure` at once and stops every subscriber; what
    they have buffered can still be taken.

    Args:
        connection: The service.
        progress: Where each split stands; every split in it is supervised.
        jitter: How long to wait between attempts.
        on_resubscribe: Called at each recoverable end.
        listed: The splits that the service has listed; new ones begin to be supervised.
        lifecycle: Logs new and ended splits.
        event_time: How watermarks are computed; None for none.
    """

    def __init__(
        self,
        connection: Connection,
        progress: Progress,
        *,
        jitter: FullJitter,
        on_resubscribe: OnResubscribe,
        listed: Sequence[Split],
        lifecycle: LifecycleLog,
        event_time: EventTime | None = None,
    ) -> None:
        self.failure: FanOutError | None = None
        self.stopping = False
        self.subscribers: dict[str, Subscriber] = {}
        self.memory_limit = MemoryLimit(connection.pacing.max_bytes_in_flight)
        self._subscribe_limit = SubscribeLimit(connection.pacing.max_pending_subscribes)
        self._connection = connection
        self._progress = progress
        self._jitter = jitter
        self._on_resubscribe = on_resubscribe
        self._lifecycle = lifecycle
        self._event_time = event_time
        self._finished = {state.split.id for state in progress if state.ended}
        self._listed: set[str] = set()
        # An earlier run has read from these splits: their parents were out of the way.
        self._begun = {s.split.id for s in progress if isinstance(s.delivered, Cursor)}
        self._ready: deque[Slot] = deque()
        self._changed = asyncio.Event()
        self._relist = asyncio.Event()
        self._running: dict[asyncio.Task[None], None] = {}
        self._closed = False
        self._learn(listed)
        self._forget_expired()

    @asynccontextmanager
    async def supervise(self) -> AsyncIterator[None]:
        """Run the subscribers and the discovery while the block runs; stop them all after it."""
        # The block's own error is carried around the task group, which would wrap it in a group.
        error: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                self._spawn(self._discover(), "discovery")
                self._start()
                try:
                    yield
                except BaseException as raised:  # noqa: BLE001 - raised again below
                    error = raised
                self._closed = True
                self._changed.set()
                self._stop()
        finally:
            self._discard()
        if error is not None:
            raise error

    def take(self) -> Batch | End | None:
        """Take the next event that is ready, in the order of arrival; None where there is none."""
        while self._ready:
            event, cost = self._ready.popleft().take()
            self.memory_limit.release(cost)
            if isinstance(event, Failure):
                continue  # it is in `failure`; the reader gets it after what is buffered
            if isinstance(event, End):
                self._finish(event)
            return event
        return None

    async def more(self) -> bool:
        """Wait until there may be something to take; call it only when nothing is left to take.

        Returns:
            False, at once, where nothing will come any more: a bounded stream is at its end, or
            `stop_reading` was called.

        Raises:
            FanOutError: The failure of the stream.
            StreamStateError: If the stream is closed.
        """
        if self.stopping:
            return False
        bounded = self._connection.capabilities.bounded
        if bounded and all(self._is_read(state.split) for state in self._progress):
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

    def _is_read(self, split: Split) -> bool:
        """Return whether a split of a bounded stream has been read to its stop, or to its end."""
        if split.id in self._finished:
            return True
        subscriber = self.subscribers.get(split.id)
        return subscriber is not None and subscriber.state is SplitState.CAUGHT_UP

    def _discard(self) -> None:
        """Release the memory of events that can no longer be taken."""
        while self._ready:
            _, cost = self._ready.popleft().take()
            self.memory_limit.release(cost)

    def check_open(self) -> None:
        """Raise StreamStateError if the stream is closed."""
        if self._closed:
            raise StreamStateError("the stream is closed; read it inside its `async with` block")

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self._tasks.create_task(work, name=f"fanout {name}")
        self._running[task] = None
        task.add_done_callback(self._running.pop)

    def _start(self) -> None:
        """Subscribe to every split whose parents are out of the way, while the stream runs."""
        if self._closed or self.failure is not None:
            return
        splits = {state.split.id: state.split for state in self._progress}
        # A split that stays out of the listings has expired, and so have its parents: no listing
        # will have it any more, and its children wait for it. Subscribing shows what became of it.
        absent = {state.split.id for state in self._progress if state.absent}
        for split in startable(splits, self._finished, self._listed | self._begun | absent):
            if split.id in self.subscribers:
                continue
            subscriber = Subscriber(
                split,
                self._progress[split.id].delivered,
                connection=self._connection,
                slot=Slot(self._on_ready),
                memory_limit=self.memory_limit,
                subscribe_limit=self._subscribe_limit,
                jitter=self._jitter,
                on_resubscribe=self._on_resubscribe,
                event_time=self._event_time,
            )
            self.subscribers[split.id] = subscriber
            self._spawn(self._run(subscriber), str(split))

    async def _run(self, subscriber: Subscriber) -> None:
        await subscriber.run()
        if subscriber.state is SplitState.CAUGHT_UP:
            self._changed.set()  # the last one of them ends the stream

    def _on_ready(self, slot: Slot) -> None:
        self._ready.append(slot)
        self._changed.set()
        if slot.pill is not None:
            self._fail(slot.pill.error)

    def _fail(self, error: FanOutError) -> None:
        if self.failure is None:
            self.failure = error
            self._changed.set()
            self._stop()
        elif error is not self.failure:
            log.error("another failure after the first: %s", error)

    def _stop(self) -> None:
        for task in self._running:
            task.cancel()

    def _finish(self, end: End) -> None:
        self._finished.add(end.split.id)
        self._lifecycle.ended(end)
        self._know(end.children)
        self._start()
        self._relist.set()

    def _learn(self, listed: Sequence[Split]) -> list[Split]:
        """Take in what the service has listed; return the splits that are new."""
        self._listed = {split.id for split in listed}
        return self._know(listed)

    def _forget_expired(self) -> None:
        self._progress.forget_expired(self._listed)
        for split_id in [id_ for id_ in self.subscribers if id_ not in self._progress]:
            del self.subscribers[split_id]

    def _know(self, splits: Iterable[Split]) -> list[Split]:
        new = [
            split
            for split in splits
            if split.id not in self._progress and split.id not in self._finished
        ]
        for split in new:
            # The start of the stream does not apply: all records of a split that appears while
            # the stream runs are new.
            self._progress.add(split, Horizon())
        return new

    async def _discover(self) -> None:
        """List the splits again and again, and at once when a split has ended."""
        # A listing that fails stops no subscription, so max_retries does not count it.
        pacing = replace(self._connection.pacing, max_retries=None)
        retries = Retries(pacing, self._jitter)
        interval = None if self._connection.capabilities.bounded else pacing.discovery_interval
        delay = interval
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._relist.wait()
            hurried = self._relist.is_set()
            self._relist.clear()
            try:
                splits = await self._connection.splits()
            except Exception as error:  # noqa: BLE001 - the source's verdict says what it means
                prefer_cancellation(error)
                verdict = await self._connection.verdict(error, Phase.DISCOVER)
                if not isinstance(verdict, Retry) or retries.failed(error, verdict):
                    self._fail(listing_failure(error, verdict))
                    return
                delay = retries.wait(verdict.pace)
                log.warning("cannot list the splits, again in %.1f s: %s", delay, text_of(error))
                continue
            retries.progressed(moved=True)
            delay = interval
            self._lifecycle.found(self._learn(splits))
            # Listings in quick succession, as splits end, may all be as old as one of them.
            if not hurried:
                self._forget_expired()
            self._start()


def listing_failure(error: Exception, verdict: Verdict) -> ServiceError:
    """Build the error of a stream whose splits cannot be listed, with its cause."""
    hint = verdict.hint if isinstance(verdict, Retry | Fatal) else ""
    text = f"the splits cannot be listed: {text_of(error)}"
    failure = ServiceError(f"{text} ({hint})" if hint else text)
    failure.__cause__ = error
    return failure
