"""The consumer's side of a stream: iterate or drain, acknowledge, look at its state."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, final

from fanout.core.checkpoint import Checkpoint
from fanout.core.drain import Basket, Drained
from fanout.core.events import Batch
from fanout.core.positions import reaches
from fanout.core.statistics import SplitState, count
from fanout.errors import OptionError, StreamStateError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fanout.core.events import End, Split
    from fanout.core.progress import Progress
    from fanout.core.source import Connection, Lending, Source
    from fanout.core.statistics import Statistics
    from fanout.core.supervisor import Supervisor
    from fanout.errors import FanOutError

__all__ = ("FanOut",)


@final
class FanOut:
    """A running stream over all splits of a source; made by `fanout.open`.

    One task reads at a time, by iterating or by draining. Order holds within a split; a split's
    children come after it.
    """

    def __init__(
        self, source: Source, connection: Connection, progress: Progress, supervisor: Supervisor
    ) -> None:
        self._source = source
        self._connection = connection
        self._progress = progress
        self._supervisor = supervisor
        self._returned: deque[Batch | End] = deque()
        self._busy = False

    def __repr__(self) -> str:
        live = sum(s.state is SplitState.LIVE for s in list(self._supervisor.subscribers.values()))
        state = "failed" if self.failure else "running"
        return f"<FanOut {state}, {live} live of {sum(1 for _ in self._progress)} splits>"

    @property
    def failure(self) -> FanOutError | None:
        """The error that ended the stream, set as soon as it is known; None while it runs."""
        return self._supervisor.failure

    @property
    def caught_up(self) -> bool:
        """Whether every split has been read to what was its newest record at some moment."""
        return self._progress.caught_up

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
        return self._progress.acknowledged().to_json()

    @property
    def delivered(self) -> Checkpoint:
        """The positions after everything that was handed out, acknowledged or not."""
        return self._progress.delivered()

    @property
    def lending(self) -> Lending | None:
        """The hold on records that have to be acknowledged in time; None where none do."""
        return self._connection.lending

    def __aiter__(self) -> FanOut:
        return self

    async def __anext__(self) -> Batch:
        """Wait for the next batch with records; the iteration ends where a bounded stream does.

        Raises:
            FanOutError: The failure of the stream, after every buffered batch was returned.
            StreamStateError: If another task is reading, or the stream is closed.

        Cancellation: nothing is taken; the next call returns what this one would have.
        """
        with self._reading():
            while True:
                while (event := self._take()) is not None:
                    if batches := self._progress.deliver([event]):
                        return batches[0]
                    await self._tell_idle(event.split)
                if not await self._more():
                    raise StopAsyncIteration

    async def drain(
        self,
        *,
        max_records: int = 100_000,
        max_bytes: int = 128 * 1024 * 1024,
        max_wait: float = 1.0,
    ) -> Drained:
        """Wait for the first record, then collect until a limit is reached or the wait ends.

        Splits are served in the order in which their events arrived, one event each; the last
        batch is cut where a limit falls inside it, and the next call begins with the rest.

        Args:
            max_records: The most records to return.
            max_bytes: The most bytes to return; one record that is larger is returned alone.
            max_wait: Seconds to go on collecting after the first record. The wait for the first
                one has no limit; put `asyncio.timeout` around the call for one.

        Returns:
            At least one batch, and a full snapshot of the positions after all of them; no batch at
            the end of a bounded stream.

        Raises:
            FanOutError: The failure of the stream, after everything buffered was returned.
            OptionError: If a limit is below 1, or `max_wait` is negative.
            StreamStateError: If another task is reading, or the stream is closed.

        Cancellation: nothing is lost; what was collected is returned by the next call.
        """
        if max_wait < 0:
            raise OptionError(f"max_wait={max_wait} must not be negative")
        basket = Basket(max_records=max_records, max_bytes=max_bytes, cursor=self._source.cursor)
        with self._reading():
            try:
                self._fill(basket)
                while not basket.batches and await self._more():
                    self._fill(basket)
                await self._fill_until(basket, max_wait)
            except BaseException:
                self._returned.extendleft(reversed(basket.events))
                raise
            batches = self._progress.deliver(basket.events)
            return Drained(batches, self._progress.delivered(), self.watermark)

    async def acknowledge(self, done: Batch | Drained | Checkpoint) -> None:
        """Say that everything up to and including `done` is durable; cumulative per split.

        Args:
            done: A batch, the result of a drain, or a snapshot of positions.

        Raises:
            StreamStateError: If it was not delivered by this stream.
            AcknowledgementError: If the service lends its records, and some of them were
                acknowledged too late.

        Cancellation: the call may or may not have taken effect; it can be repeated.
        """
        match done:
            case Batch():
                positions = {done.split.id: done.range.until}
            case Drained(positions=snapshot) | (Checkpoint() as snapshot):
                # Other streams have splits of the same names.
                if snapshot.source != self._progress.source:
                    raise StreamStateError(
                        f"these are positions of {snapshot.source}, not of "
                        f"{self._progress.source}; acknowledge what this stream has delivered"
                    )
                positions = {id_: state.position for id_, state in snapshot.splits.items()}
        moved = self._progress.acknowledge(positions)
        if moved:
            await self._connection.acknowledge(moved)

    async def release(self, batch: Batch) -> None:
        """Give a batch of records that are lent back at once, so that anybody gets them again.

        Args:
            batch: A batch that is not acknowledged.

        Raises:
            StreamStateError: If the source lends nothing, or the stream did not deliver the batch.

        Cancellation: the records may or may not be given back.
        """
        await self._lent(batch).release(batch.split.id, batch.range)

    async def reject(self, batch: Batch, rows: Sequence[int], *, reason: str) -> None:
        """Refuse records that are lent for good; the others of the batch stay as they are.

        Args:
            batch: A batch that is not acknowledged.
            rows: The numbers of the rows, from 0.
            reason: Why they are refused, for people; it goes with them where the source keeps what
                was refused.

        Raises:
            OptionError: If the batch has no such row.
            StreamStateError: If the source lends nothing, or the stream did not deliver the batch.
            AcknowledgementError: If the service did not take the refusal of some of the records.

        Cancellation: the records may or may not be refused.
        """
        if wrong := [row for row in rows if not 0 <= row < batch.num_records]:
            raise OptionError(f"the batch has {batch.num_records} rows, so none is {wrong[0]}")
        await self._lent(batch).reject(batch.split.id, batch.range, rows, reason)

    def _lent(self, batch: Batch) -> Lending:
        lending = self._connection.lending
        if lending is None:
            raise StreamStateError(
                f"{self._progress.source} lends no records, so none can be given back or refused; "
                f"leave a batch unacknowledged to get it again in the next run"
            )
        id_ = batch.split.id
        if id_ not in self._progress or not reaches(
            self._progress[id_].delivered, batch.range.until
        ):
            raise StreamStateError(f"the batch of {id_} was not delivered by this stream")
        return lending

    async def _tell_idle(self, split: Split) -> None:
        """Tell the service of progress without records behind what it was told."""
        progress = self._progress[split.id]
        if progress.told is not None and progress.acknowledge(progress.acknowledged):
            await self._connection.acknowledge({split.id: progress.acknowledged})

    def statistics(self) -> Statistics:
        """Return the counters of the stream and of each split, as of now."""
        return count(self._progress, self._supervisor, self._connection)

    async def _more(self) -> bool:
        """Wait until there may be something to take; False at the end of a bounded stream."""
        watermarks = self._progress.watermarks
        if watermarks is None:
            return await self._supervisor.more()
        time = asyncio.get_running_loop().time
        watermarks.begin_wait(time())
        try:
            return await self._supervisor.more()
        finally:
            watermarks.end_wait(time())

    def _take(self) -> Batch | End | None:
        return self._returned.popleft() if self._returned else self._supervisor.take()

    def _fill(self, basket: Basket) -> None:
        """Move what is ready into the basket, until it is full."""
        while not basket.full and (event := self._take()) is not None:
            if not basket.events and not (isinstance(event, Batch) and event.num_records):
                self._progress.deliver([event])  # nothing is held back before it
            elif (rest := basket.add(event)) is not None:
                self._returned.appendleft(rest)

    async def _fill_until(self, basket: Basket, max_wait: float) -> None:
        waited = asyncio.timeout(max_wait)
        try:
            async with waited:
                while not basket.full and self.failure is None and await self._more():
                    self._fill(basket)
        except TimeoutError:
            if not waited.expired():
                raise

    @contextmanager
    def _reading(self) -> Iterator[None]:
        self._supervisor.check_open()
        if self._busy:
            raise StreamStateError(
                "another task is reading this stream; read it from one task, or open a second one"
            )
        self._busy = True
        try:
            yield
        finally:
            self._busy = False
