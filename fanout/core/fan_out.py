"""The stream that a consumer reads: iterate or drain, acknowledge, look at its state."""

from __future__ import annotations

import asyncio
import math
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, final

from fanout.core.checkpoint import Checkpoint
from fanout.core.drain import Basket, Drained
from fanout.core.event_time import EventTime
from fanout.core.events import Batch
from fanout.core.lending.stream_lending import StreamLending
from fanout.core.membership import lost_splits
from fanout.core.option_checks import number, wrong_type
from fanout.core.statistics import (
    CommitStatistics,
    SplitState,
    SplitStatistics,
    Statistics,
    StreamTotals,
)
from fanout.errors import OptionError, StreamStateError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from fanout.core.events import End, Split
    from fanout.core.membership import SharedSplits
    from fanout.core.positions import Position
    from fanout.core.progress import Progress, SplitProgress
    from fanout.core.source import Capabilities, Connection, Source
    from fanout.core.subscribers import Subscribers
    from fanout.errors import FanOutError


# While a split backs off its last lag is no longer true, and would look healthy.
_CURRENT: Final = frozenset({SplitState.LIVE, SplitState.CAUGHT_UP})


@final
class FanOut:
    """A running stream over all splits of a source; made by `fanout.open`.

    One task reads at a time, by iterating or by draining. Order holds within a split; a split's
    children come after it.

    Args:
        source: What is read.
        connection: The hold on its service.
        progress: How far each split is.
        subscribers: Those that read.
        resumed: The positions of an earlier run, after which this one goes on.
        shared: The splits that this process has of its group; None where it reads all.
        reader: The schemas that the source reads with, to be stored with its positions.
    """

    def __init__(
        self,
        source: Source,
        connection: Connection,
        progress: Progress,
        subscribers: Subscribers,
        *,
        resumed: Checkpoint | None = None,
        shared: SharedSplits | None = None,
        reader: str = "",
    ) -> None:
        self._source = source
        self._connection = connection
        self._progress = progress
        self._subscribers = subscribers
        self._resumed = resumed
        self._shared = shared
        self._reader = reader
        self._busy = False
        self._time = asyncio.get_running_loop().time
        lending = connection.capabilities.lending
        self._lending = None if lending is None else StreamLending(lending, progress)

    def __repr__(self) -> str:
        live = sum(s.state is SplitState.LIVE for s in list(self._subscribers.by_split.values()))
        state = "failed" if self.failure else "running"
        return f"<FanOut {state}, {live} live of {sum(1 for _ in self._progress)} splits>"

    @property
    def failure(self) -> FanOutError | None:
        """The error that ended the stream, set as soon as it is known; None while it runs."""
        return self._subscribers.failure

    @property
    def caught_up(self) -> bool:
        """Whether every split has been read to what was its newest record at some moment."""
        return self._progress.caught_up

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called: a loop of drains ends with it."""
        return self._subscribers.stopping

    @property
    def watermark(self) -> int | None:
        """The least watermark of all splits that are not idle, as of the last event handed out.

        In milliseconds since the Unix epoch; None before there is one, and where the source has no
        `event_time`. It never goes back. A record that is not newer is late, and is delivered all
        the same.
        """
        watermarks = self._progress.watermarks
        return None if watermarks is None else watermarks.stream

    @property
    def positions(self) -> str:
        """The acknowledged state of every split as JSON, for `fanout.open(..., resume=...)`."""
        return replace(self._progress.acknowledged(), reader=self._reader).to_json()

    @property
    def delivered(self) -> Checkpoint:
        """The positions after everything that was handed out, acknowledged or not."""
        return replace(self._progress.delivered(), shared=self._shared, reader=self._reader)

    @property
    def capabilities(self) -> Capabilities:
        """What the source offers beyond reading."""
        return self._connection.capabilities

    @property
    def lending(self) -> StreamLending:
        """The verbs for records that are locked for this stream until they are acknowledged.

        Raises:
            StreamStateError: If the source locks no records.
        """
        if self._lending is None:
            raise StreamStateError(
                f"{self._progress.source} locks no records, so none can be given back or refused; "
                f"leave a batch unacknowledged to get it again in the next run"
            )
        return self._lending

    def __aiter__(self) -> FanOut:
        return self

    async def __anext__(self) -> Batch:
        """Wait for the next batch with records; the iteration ends where a bounded stream does.

        Raises:
            FanOutError: The failure of the stream, after every buffered batch was returned.
            StreamStateError: If another task is reading, or the stream is closed.

        Cancellation: nothing is taken; the next call returns what this one would have.
        """
        self._begin_reading()
        try:
            while True:
                while (event := self._take()) is not None:
                    if batches := self._progress.deliver([event]):
                        return batches[0]
                    await self._report_idle(event.split)
                if not await self._more():
                    raise StopAsyncIteration
        finally:
            self._busy = False

    async def drain(
        self,
        *,
        max_records: int = 100_000,
        max_bytes: int = 128 * 1024 * 1024,
        max_wait: float = 1.0,
        first_wait: float | None = None,
    ) -> Drained:
        """Wait for the first record, then collect until a limit is reached or the wait ends.

        On an idle stream the call returns no batch after `first_wait`; call it again in a loop.

        Splits are served in the order in which their events arrived, one event each; the last
        batch is cut where a limit falls inside it, and the next call begins with the rest.

        Args:
            max_records: The most records to return.
            max_bytes: The most bytes to return; one record that is larger is returned alone.
            max_wait: Seconds to collect after the first record.
            first_wait: Seconds to wait for the first record; `math.inf` waits for ever. None waits
                as long as `max_wait`, and in a bounded stream until its end.

        Returns:
            The batches, and a full snapshot of the positions after all of them. There is no batch
            if no record came within `first_wait`, and at the end of a bounded stream; there
            `stream.caught_up` tells the two apart.

        Raises:
            FanOutError: The failure of the stream, after everything buffered was returned.
            OptionError: If a limit is below 1, or a wait is negative.
            StreamStateError: If another task is reading, or the stream is closed.

        Cancellation: nothing is lost; what was collected is returned by the next call.
        """
        if first_wait is None:
            first_wait = math.inf if self.capabilities.bounded else max_wait
        if number("max_wait", max_wait) < 0 or number("first_wait", first_wait) < 0:
            raise OptionError(f"{max_wait=} and {first_wait=} must not be negative")
        basket = Basket(max_records=max_records, max_bytes=max_bytes, cursor=self._source.cursor)
        shared = self._shared
        with self._reading(), nullcontext() if shared is None else shared.collecting(basket.drop):
            try:
                self._fill(basket)
                async with _at_most(first_wait):
                    while not basket.batches and await self._more():
                        self._fill(basket)
                if basket.batches:
                    await self._fill_until(basket, max_wait)
                if shared is not None:
                    await shared.decided()
            except BaseException:
                self._subscribers.give_back(basket.events)
                raise
            batches = self._progress.deliver(basket.events)
            return Drained(batches, self.delivered, self.watermark)

    def stop(self) -> None:
        """End the reading after the batch that was handed out, for example when SIGTERM comes.

        An iteration ends, and a drain returns at once what it has. Records that were read ahead
        come again in the next run. Leaving the block of `fanout.open` then closes the
        subscriptions, leaves groups and releases locked records. Call it in the loop's thread, as
        `loop.add_signal_handler(signal.SIGTERM, stream.stop)` does; idempotent.
        """
        self._subscribers.stop_reading()

    async def acknowledge(self, done: Batch | Drained | Checkpoint) -> None:
        """Say that everything up to and including `done` is durable; cumulative per split.

        Args:
            done: A batch, the result of a drain, or a snapshot of positions; also the positions
                that the stream has resumed from, which a repeated batch has.

        Raises:
            StreamStateError: If it was not delivered by this stream, or a stream of a group is
                closed.
            OptionError: If it is anything else, such as a list of batches.
            AcknowledgementError: If the service locks its records, and some of them were
                acknowledged too late.
            SplitLostError: If the group has given a split of `done` to another process before it
                was acknowledged, or may have; the rest of `done` is acknowledged.
            FanOutError: The failure of the stream, if the time of its splits is over, too.

        Cancellation: the call may or may not have taken effect; it can be repeated.
        """
        match done:
            case Batch():
                positions = {done.split.id: done.range.until}
            case Drained(positions=snapshot) | (Checkpoint() as snapshot):
                if snapshot == self._resumed:
                    # The source may have been changed since, and its splits have other names then.
                    snapshot = self._progress.acknowledged()
                # Other streams have splits of the same names.
                if snapshot.source != self._progress.source:
                    raise StreamStateError(
                        f"these are positions of {snapshot.source}, not of "
                        f"{self._progress.source}; acknowledge what this stream has delivered"
                    )
                positions = {id_: state.position for id_, state in snapshot.splits.items()}
            case _:
                raise wrong_type("done", done, "a batch, what was drained, or a Checkpoint")
        if self._shared is not None:
            if lost := await self._shared.acknowledge(positions):
                raise lost_splits(lost, self._shared.group)
            return
        moved = self._progress.acknowledge(positions)
        if moved:
            await self._acknowledge(moved)

    async def _report_idle(self, split: Split) -> None:
        """Report progress without records that follows a position which the service has."""
        progress = self._progress[split.id]
        if self._shared is not None:
            self._shared.report(split.id)
        elif progress.reported is not None and progress.acknowledge(progress.acknowledged):
            await self._acknowledge({split.id: progress.acknowledged})

    async def _acknowledge(self, positions: Mapping[str, Position]) -> None:
        for service in (self.capabilities.commits, self.capabilities.lending):
            if service is not None:
                await service.acknowledge(positions)

    def statistics(self) -> Statistics:
        """Return the counters of the stream and of each split, as of now."""
        has_times = isinstance(self._source.event_time, EventTime)
        return _count(
            self._progress,
            self._subscribers,
            self.capabilities,
            self._time(),
            has_times=has_times,
            shared=self._shared,
        )

    async def _more(self) -> bool:
        """Wait until there may be something to take; False at the end of a bounded stream."""
        watermarks, locks = self._progress.watermarks, self.capabilities.lending
        time = asyncio.get_running_loop().time
        if watermarks is not None:
            watermarks.begin_wait(time())
        if locks is not None:
            locks.begin_wait()
        try:
            return await self._subscribers.more()
        finally:
            if watermarks is not None:
                watermarks.end_wait(time())
            if locks is not None:
                locks.end_wait()

    def _take(self) -> Batch | End | None:
        while self._may_deliver() and (event := self._subscribers.take()) is not None:
            if self._keeps(event):
                return event
        return None

    def _may_deliver(self) -> bool:
        return not self.stopping and (self._shared is None or self._shared.valid)

    def _keeps(self, event: Batch | End) -> bool:
        """Return whether this process may still have what has waited."""
        if self._shared is not None:
            return self._shared.owns(event.split.id)
        locks = self.capabilities.lending
        return locks is None or not isinstance(event, Batch) or locks.keeps(event)

    def _fill(self, basket: Basket) -> None:
        """Move what is ready into the basket, until it is full."""
        while not basket.full and (event := self._take()) is not None:
            if not basket.events and not (isinstance(event, Batch) and event.num_records):
                self._progress.deliver([event])  # nothing is held back before it
                if self._shared is not None:
                    self._shared.report(event.split.id)
            elif (rest := basket.add(event)) is not None:
                self._subscribers.give_back([rest])

    async def _fill_until(self, basket: Basket, max_wait: float) -> None:
        async with _at_most(max_wait):
            while not basket.full and self.failure is None and await self._more():
                self._fill(basket)

    def _begin_reading(self) -> None:
        self._subscribers.check_open()
        if self._busy:
            raise StreamStateError(
                "another task is reading this stream; read it from one task, or open a second one"
            )
        self._busy = True

    @contextmanager
    def _reading(self) -> Iterator[None]:
        self._begin_reading()
        try:
            yield
        finally:
            self._busy = False


@asynccontextmanager
async def _at_most(seconds: float) -> AsyncIterator[None]:
    """Leave the block without an error when its time is over."""
    waited = asyncio.timeout(None if seconds == math.inf else seconds)
    try:
        async with waited:
            yield
    except TimeoutError:
        if not waited.expired():
            raise


def _count(
    progress: Progress,
    subscribers: Subscribers,
    offered: Capabilities,
    now: float,
    *,
    has_times: bool,
    shared: SharedSplits | None,
) -> Statistics:
    if shared is not None:
        commits = shared.commits
    else:
        commits = CommitStatistics() if offered.commits is None else offered.commits.statistics
    waiting = {id_: (one.event, now - one.since) for id_, one in subscribers.waiting().items()}
    return Statistics(
        MappingProxyType(
            {s.split.id: _of_split(s, subscribers, commits, waiting) for s in progress}
        ),
        subscribers.memory_limit.used,
        commits_succeeded=commits.succeeded,
        commits_failed=commits.failed,
        lending=None if offered.lending is None else offered.lending.statistics,
        origin=offered.origin,
        totals=StreamTotals(
            progress.records,
            progress.bytes,
            subscribers.causes.counts,
            progress.gaps,
            progress.gap_seconds,
            progress.bad_records,
            progress.late_records if has_times else None,
            offered.throttled(),
        ),
        max_bytes_in_flight=subscribers.memory_limit.limit,
        watermark=None if progress.watermarks is None else progress.watermarks.stream,
        membership=None if shared is None else shared.statistics,
    )


def _of_split(
    progress: SplitProgress,
    subscribers: Subscribers,
    commits: CommitStatistics,
    waiting: Mapping[str, tuple[Batch | End, float]],
) -> SplitStatistics:
    subscriber = subscribers.by_split.get(progress.split.id)
    state = SplitState.WAITING if subscriber is None else subscriber.state
    event, seconds = waiting.get(progress.split.id, (None, 0.0))
    lag, behind = _behind(progress, event, seconds) if state in _CURRENT else (None, None)
    return SplitStatistics(
        state=SplitState.ENDED if progress.ended else state,
        position=progress.delivered,
        records=progress.records,
        bytes=progress.bytes,
        subscriptions=subscriber.subscriptions if subscriber else 0,
        resubscriptions=subscriber.resubscriptions if subscriber else 0,
        last_cause=subscriber.last_cause if subscriber else None,
        lag=lag,
        newest=progress.newest,
        gaps=progress.gaps,
        gap_seconds=progress.gap_seconds,
        behind=behind,
        committed=commits.positions.get(progress.split.id),
        watermark=progress.watermark,
        waiting=None if event is None else seconds,
        bad_records=progress.bad_records,
        late_records=progress.late_records,
    )


def _behind(
    progress: SplitProgress, event: Batch | End | None, seconds: float
) -> tuple[float | None, int | None]:
    """Return the lag and the records behind of a split, with its next event, which waits."""
    lag, behind = progress.lag, progress.behind
    if not isinstance(event, Batch):
        return lag, behind
    # The head of a batch that was cut has neither.
    if event.lag is not None or event.behind is not None:
        lag, behind = event.lag, event.behind
    return (
        None if lag is None else lag + seconds,
        None if behind is None else behind + event.num_records,
    )
