"""Read one partition: fetch, decode, and yield batches with their positions."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Final, final

from fanout.core.events import Batch
from fanout.core.positions import Cursor, Horizon, Range, Timestamp
from fanout.kafka.reading.columns import KAFKA_LAYOUT
from fanout.kafka.reading.offsets import cursor_before, epoch_at, topic_id_at
from fanout.kafka.reading.records import decode_fetched
from fanout.kafka.reading.transport import OffsetSpec, PartitionFetch, Throttled, is_replaced

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterator

    import pyarrow as pa

    from fanout.core.positions import Position
    from fanout.core.source import Reserve
    from fanout.kafka.partitions import Partition
    from fanout.kafka.reading.columns import Layout
    from fanout.kafka.reading.fetcher import Fetcher
    from fanout.kafka.reading.records import DecodedPart
    from fanout.kafka.reading.transport import Fetched, KafkaTransport

# How often a partition without new records yields an empty batch, in seconds.
HEARTBEAT: Final = 5.0


@final
class PartitionReader:
    """Open subscriptions to partitions, in batches of about `max_event_bytes` at most.

    With `read_committed` only records of committed transactions are read, up to the first open one.
    """

    def __init__(
        self,
        transport: KafkaTransport,
        fetcher: Fetcher,
        *,
        read_committed: bool,
        max_event_bytes: int,
        layout: Layout = KAFKA_LAYOUT,
    ) -> None:
        self.transport = transport
        self.fetcher = fetcher
        self.read_committed = read_committed
        self.max_event_bytes = max_event_bytes
        self.layout = layout

    @asynccontextmanager
    async def subscribe(
        self, partition: Partition, position: Position, *, stop: int | None, reserve: Reserve
    ) -> AsyncIterator[AsyncIterator[Batch]]:
        """Open a subscription after a position, which goes on until it fails or the block is left.

        At `stop`, the first offset not to deliver, it stays open and yields only heartbeats.
        """
        offset = await self._first_offset(partition, position)
        subscription = _Subscription(self, partition, position, offset, stop=stop, reserve=reserve)
        async with aclosing(subscription.batches()) as batches:
            yield batches

    def end_of(self, fetched: Fetched) -> int:
        """Return the offset after the last record that can be read now."""
        return fetched.last_stable_offset if self.read_committed else fetched.high_watermark

    async def _first_offset(self, partition: Partition, position: Position) -> int:
        match position:
            case Cursor(sequence):
                return sequence + 1
            case Horizon():
                offset = await self._look_up(partition, OffsetSpec.EARLIEST)
            case Timestamp(millis):
                # The end is looked up first: a record that is appended in between may be younger
                # than the time.
                end = await self._look_up(partition, OffsetSpec.LATEST)
                found = await self._look_up(partition, millis)
                offset = end if found is None else found
        assert offset is not None, "a partition has two ends"
        return offset

    async def _look_up(self, partition: Partition, spec: OffsetSpec | int) -> int | None:
        await self.fetcher.leaders.of(partition)
        try:
            return (await self.transport.offsets({partition: spec}))[partition]
        except Exception:  # another broker may lead the partition by now
            self.fetcher.leaders.mark_stale(partition)
            raise


@final
class _Subscription:
    """One subscription, with the first offset to deliver and the first not to deliver."""

    def __init__(
        self,
        reader: PartitionReader,
        partition: Partition,
        position: Position,
        offset: int,
        *,
        stop: int | None,
        reserve: Reserve,
    ) -> None:
        self._reader = reader
        self._partition = partition
        self._split = partition.split
        self._position = position
        self._offset = offset
        self._epoch, self._topic_id = epoch_at(position), topic_id_at(position)
        self._stop = stop
        self._reserve = reserve
        self._reserved = 0
        # Bytes in Arrow for each byte received, in the last answer: compressed batches grow, and
        # many partitions may decode while none of them has room.
        self._growth = 1.0

    async def batches(self) -> AsyncGenerator[Batch, None]:
        """Yield batches, and heartbeats while there are no records."""
        replaced = is_replaced(self._reader.transport, self._partition, self._topic_id)
        if self._offset != self._stop or replaced:
            # The first batch stores where the partition begins: if its records expire before they
            # are read, that is a data loss.
            if not isinstance(self._position, Cursor):
                yield self._batch(self._reader.layout.no_records, self._offset)
            with self._reader.fetcher.subscribed(self._partition):
                # The first fetch returns at once, also empty. It is made where nothing is to be
                # delivered too: a partition that ends before its reader is an error, as a topic
                # that was created anew must not count as read.
                patience, urgent, answered = 0.0, True, False
                while not (answered and self._stopped):
                    fetched = await self._fetch(patience, urgent=urgent)
                    patience = HEARTBEAT
                    if isinstance(fetched, Throttled):
                        yield self._batch(self._reader.layout.no_records, self._offset)
                        continue
                    answered = True
                    if self._stopped:
                        break
                    end, size = self._reader.end_of(fetched), len(fetched.batches)
                    parts = self._decode(fetched)
                    del fetched
                    await self._reserve_at_least(int(size * (1 + self._growth)))
                    while (batch := await self._next(parts, size, end)) is not None:
                        yield batch
                        del batch
                    del parts
                    urgent = size > 0 and self._offset < end
        while True:
            yield self._batch(self._reader.layout.no_records, self._offset, lag=0.0)
            await asyncio.sleep(HEARTBEAT)

    @property
    def _stopped(self) -> bool:
        """Whether the position is at the stop; the last offset before it may have no record."""
        return self._stop is not None and self._offset >= self._stop

    async def _fetch(self, patience: float, *, urgent: bool) -> Fetched | Throttled:
        fetcher = self._reader.fetcher
        max_bytes = fetcher.allowance
        await self._reserve_at_least(max_bytes)
        request = PartitionFetch(self._offset, max_bytes, self._epoch, self._topic_id)
        return await fetcher.fetch(self._partition, request, patience=patience, urgent=urgent)

    def _decode(self, fetched: Fetched) -> Iterator[DecodedPart]:
        return decode_fetched(
            fetched,
            self._partition,
            offset=self._offset,
            stop=self._stop,
            read_committed=self._reader.read_committed,
            max_bytes=self._reader.max_event_bytes,
            layout=self._reader.layout,
        )

    async def _next(self, parts: Iterator[DecodedPart], size: int, end: int) -> Batch | None:
        """Decode the next part of an answer of `size` bytes; None after the last part."""
        part = next(parts, None)
        if part is None:
            return None
        records = part.records
        if part.leader_epoch >= 0:
            self._epoch = part.leader_epoch
        if records.num_rows:
            self._growth = part.nbytes / size
            await self._reserve_at_least(size + part.nbytes)
        at_end = part.next_offset >= (end if self._stop is None else self._stop)
        lag, behind = 0.0 if at_end else None, max(0, end - part.next_offset)
        return self._batch(records, part.next_offset, lag=lag, behind=behind, nbytes=part.nbytes)

    def _batch(
        self,
        records: pa.RecordBatch,
        next_offset: int,
        *,
        lag: float | None = None,
        behind: int | None = None,
        nbytes: int = 0,
    ) -> Batch:
        """Build the batch up to an offset, and move the position there."""
        if not self._topic_id:
            self._topic_id = self._reader.transport.topic_id(self._partition.topic)
        after, until = self._position, cursor_before(next_offset, self._epoch, self._topic_id)
        self._position, self._offset = until, next_offset
        self._reserved = 0  # the batch owns it from now on
        return Batch(self._split, records, Range(after, until), lag, behind=behind, nbytes=nbytes)

    async def _reserve_at_least(self, nbytes: int) -> None:
        """Reserve memory until at least this many bytes are reserved."""
        if nbytes > self._reserved:
            await self._reserve(nbytes - self._reserved)
            self._reserved = nbytes
