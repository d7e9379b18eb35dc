"""Send Produce requests, and queue the batches of each partition for them."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final, final

import numpy as np
import pyarrow as pa
from aiokafka.errors import DuplicateSequenceNumber, KafkaConnectionError, KafkaError
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.produce import ProduceRequest

from fanout.core.cancellation import cancelled_by_us
from fanout.kafka.partitions import by_topic, partition_rows
from fanout.kafka.protocol.connections import Lane
from fanout.kafka.protocol.error_codes import error_of
from fanout.kafka.writing.delivery import Placed, cut_parts
from fanout.kafka.writing.encoding import encode_record_batch
from fanout.kafka.writing.producer_id import NO_PRODUCER_ID
from fanout.kafka.writing.row_batches import cut_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from fanout.kafka.partitions import Partition
    from fanout.kafka.protocol.connections import Connections
    from fanout.kafka.writing.delivery import Part
    from fanout.kafka.writing.encoding import EncodedBatch
    from fanout.kafka.writing.producer_id import OpenTransaction, ProducerId
    from fanout.kafka.writing.write_options import ProducerOptions

_ALL_REPLICAS: Final = -1

_SEQUENCES: Final = 2**31


@final
@dataclass(slots=True, eq=False)
class RetainedBytes:
    """About the bytes of confirmed rows that are still in memory."""

    nbytes: int = 0


@final
@dataclass(slots=True, eq=False)
class WriteBuffers:
    """The buffers of one write, which are in memory until none of its slices is queued.

    The batches of a write are slices of the same buffers. A small one that waits for the leader of
    its partition keeps all of them.

    Args:
        total: The retained bytes of all writes.
        size: The bytes of the buffers.
        encoded: The bytes of all slices, as they are queued.
        slices: The slices that are queued, and one more while the write adds some.
        retained: About the bytes of the others.
    """

    total: RetainedBytes
    size: int
    encoded: int
    slices: int = 1
    retained: int = 0

    def release(self, encoded: int) -> None:
        """Count a slice of these bytes, as it was queued, that is queued no more."""
        share = self.size * encoded // self.encoded
        self.slices -= 1
        self.retained += share
        self.total.nbytes += share
        if not self.slices:
            self.total.nbytes -= self.retained
            self.retained = 0


@final
@dataclass(slots=True, eq=False)
class ProduceBatch:
    """Rows of one partition that are to be written.

    Args:
        nbytes: The most bytes that they take when encoded.
        deadline: When to give up, by the loop's clock.
        data: The encoded batch; None before the first attempt. Later attempts send the same bytes.
        parts: The deliveries to which its rows belong, in order; empty where nobody asks.
        first_offset: The offset of the first row, once a broker has reported it.
        buffers: What the rows are a slice of; None where they have buffers of their own.
        records: Returns the records encoded, together with those of other batches; None where
            these rows are encoded alone.
    """

    rows: pa.RecordBatch
    nbytes: int
    deadline: float
    data: EncodedBatch | None = None
    attempts: int = 0
    parts: list[Part] = field(default_factory=list)
    first_offset: int | None = None
    buffers: WriteBuffers | None = None
    records: Callable[[], pa.Buffer] | None = None

    def release(self) -> None:
        """Count the rows as queued no more."""
        if self.buffers is not None:
            self.buffers.release(self.nbytes)
            self.buffers = None

    def copy_rows(self) -> None:
        """Copy the rows, so that the other rows of their write can be freed."""
        if self.buffers is not None:
            self.rows = self.rows.take(pa.array(np.arange(len(self.rows))))
            self.records = None
            if self.data is not None:
                header, records = self.data
                self.data = header, pa.py_buffer(records.to_pybytes())
            self.release()

    def report(self, partition: Partition) -> None:
        """Tell each delivery where its rows are."""
        offset = self.first_offset
        for part in self.parts:
            part.delivery.place(Placed(partition, offset, part.rows))
            offset = None if offset is None else offset + part.rows


@final
class ProduceRequests:
    """Send batches to brokers, one attempt per call, and count them.

    `written` has how many records the producer has written in other processes, by partition.
    `sent_again` counts records in attempts after the first, `throttled` answers by which brokers
    slow the writer down, for a quota.
    """

    def __init__(
        self,
        connections: Connections,
        *,
        options: ProducerOptions,
        producer: ProducerId,
        transaction: OpenTransaction | None,
        written: Mapping[Partition, int],
    ) -> None:
        self._connections = connections
        self._options = options
        self._producer = producer
        self._transaction = transaction
        self._confirmed = producer is not NO_PRODUCER_ID
        self._sequences = {partition: rows % _SEQUENCES for partition, rows in written.items()}
        self._added: set[Partition] = set()
        self._unconfirmed_brokers: set[int] = set()
        self.sent = 0
        self.sent_again = 0
        self.throttled = 0

    async def send(
        self, broker: int, batches: Mapping[Partition, ProduceBatch]
    ) -> Mapping[Partition, KafkaError | None]:
        """Send one batch for each partition; return the error of each, None for success."""
        try:
            await self._add([*batches])
            for partition, batch in batches.items():
                await self._encode(partition, batch)
            answers = await self._produce(broker, batches)
        except asyncio.CancelledError as error:
            if cancelled_by_us():
                raise
            lost = KafkaConnectionError(
                f"a request to broker {broker} was cancelled, but not by us"
            )
            lost.__cause__ = error
            return dict.fromkeys(batches, lost)
        except KafkaError as error:
            return dict.fromkeys(batches, error)
        for partition, batch in batches.items():
            answers.setdefault(partition, KafkaConnectionError(f"no answer about {partition}"))
            # An earlier attempt of the batch has arrived after all.
            if isinstance(answers[partition], DuplicateSequenceNumber) and batch.attempts > 1:
                answers[partition] = None
            if answers[partition] is None:
                self._sequences[partition] = self._next(partition, batch)
        return answers

    def next_transaction(self) -> None:
        """Add partitions again to the transaction that begins with the next request."""
        self._added.clear()

    async def settle(self) -> None:
        """Wait until brokers have read the batches that they do not confirm.

        A broker that does not answer may have lost some of them, like any batch that is not
        confirmed.
        """
        brokers, self._unconfirmed_brokers = self._unconfirmed_brokers, set()
        for broker in brokers:
            # A broker handles the requests of a connection in order.
            with suppress(KafkaError):
                await self._connections.send(broker, MetadataRequest([]), Lane.WRITES)

    async def _add(self, partitions: list[Partition]) -> None:
        new = [partition for partition in partitions if partition not in self._added]
        if self._transaction is not None and new:
            await self._transaction.add(new)
            self._added.update(new)

    async def _encode(self, partition: Partition, batch: ProduceBatch) -> None:
        batch.attempts += 1
        if batch.attempts > 1:
            self.sent_again += len(batch.rows)
        if batch.data is not None:
            return
        codec = self._options.compression_type
        sequence = self._sequences.get(partition, 0) if self._confirmed else -1
        arguments = (batch.rows, codec, self._producer, sequence, batch.records)
        # Compression takes long and releases the GIL, so it runs in a thread.
        batch.data = (
            encode_record_batch(*arguments)
            if codec == "none"
            else await asyncio.to_thread(encode_record_batch, *arguments)
        )
        batch.records = None

    async def _produce(
        self, broker: int, batches: Mapping[Partition, ProduceBatch]
    ) -> dict[Partition, KafkaError | None]:
        request = ProduceRequest(
            self._transaction and self._transaction.name,
            _ALL_REPLICAS if self._confirmed else 0,
            round(self._options.request_timeout * 1000),
            by_topic({partition: (batch.data,) for partition, batch in batches.items()}),
        )
        self.sent += 1
        response = await self._connections.send(
            broker, request, Lane.WRITES, answered=self._confirmed
        )
        if not self._confirmed:
            self._unconfirmed_brokers.add(broker)
            return dict.fromkeys(batches)
        self.throttled += response.throttle_time_ms > 0
        errors: dict[Partition, KafkaError | None] = {}
        for partition, code, offset, *_ in partition_rows(response.topics):
            errors[partition] = error_of(code, partition)
            if errors[partition] is None and offset >= 0 and partition in batches:
                batches[partition].first_offset = offset
        return errors

    def _next(self, partition: Partition, batch: ProduceBatch) -> int:
        return (self._sequences.get(partition, 0) + len(batch.rows)) % _SEQUENCES


@final
@dataclass(slots=True, eq=False)
class PartitionQueue:
    """The batches of a partition, of which only the first is being sent.

    `failures` counts those of the first batch in a row. A batch of more than `max_bytes`, the most
    that the topic accepts, is cut before it is sent.
    """

    partition: Partition
    batches: deque[ProduceBatch] = field(default_factory=deque)
    failures: int = 0
    max_bytes: float = float("inf")

    def shape_first(self, batch_size: int) -> None:
        """Cut the first batch if it is too large, or merge the next ones into it.

        The next batch is sent after the answer to the one before, and small batches take as long
        as large ones. A batch that was sent stays as it is, because it may have arrived.
        """
        first = self.batches[0]
        if first.nbytes > self.max_bytes and len(first.rows) > 1:
            self.batches.popleft()
            pieces = [*self._cut(first)]
            if first.buffers is not None:
                first.buffers.slices += len(pieces) - 1
            self.batches.extendleft(reversed(pieces))
        elif not first.attempts:
            self._join_first(min(batch_size, self.max_bytes))

    def encode_second(self, batch_size: int) -> None:
        """Encode the batch behind the first one, unless it will be cut, or joined with the next.

        Nothing is done while a thread encodes the first one, perhaps together with the second.
        """
        if not self.batches or self.batches[0].data is None:
            return
        behind = [*islice(self.batches, 1, 3)]
        if behind and (encode := behind[0].records) is not None:
            joined = behind[0].nbytes + behind[-1].nbytes  # with itself where it is the last
            if behind[0].nbytes <= self.max_bytes and joined > min(batch_size, self.max_bytes):
                encode()

    def _cut(self, batch: ProduceBatch) -> Iterator[ProduceBatch]:
        left = batch.parts
        for rows, nbytes in cut_batches(batch.rows, int(self.max_bytes)):
            parts, left = cut_parts(left, len(rows))
            yield ProduceBatch(rows, nbytes, batch.deadline, parts=parts, buffers=batch.buffers)

    def _join_first(self, max_bytes: float) -> None:
        """Merge the first batches, as many as fit into the limit together."""
        first = self.batches[0]
        count, nbytes = 1, first.nbytes
        for batch in islice(self.batches, 1, None):
            if nbytes + batch.nbytes > max_bytes:
                break
            count, nbytes = count + 1, nbytes + batch.nbytes
        if count == 1:
            return
        joined = [self.batches.popleft() for _ in range(count)]
        (rows,) = pa.Table.from_batches([one.rows for one in joined]).combine_chunks().to_batches()
        parts = [part for one in joined for part in one.parts]
        for one in joined:
            one.release()
        self.batches.appendleft(ProduceBatch(rows, nbytes, first.deadline, parts=parts))
