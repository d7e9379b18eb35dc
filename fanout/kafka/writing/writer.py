"""Write Arrow records to given partitions of Kafka topics."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING, Final, final

from fanout.core.backoff import Backoff, FullJitter
from fanout.errors import UnwritableRecordError
from fanout.kafka.protocol.cluster_metadata import ClusterMetadata
from fanout.kafka.protocol.connections import open_connections
from fanout.kafka.protocol.retries import with_retries
from fanout.kafka.writing.produce_requests import ProduceRequests
from fanout.kafka.writing.producer_id import OpenTransaction, Transactional, obtain_producer_id
from fanout.kafka.writing.row_batches import cut_together, prepare_rows, split_by_partition
from fanout.kafka.writing.sender import Sender
from fanout.kafka.writing.write_options import ProducerOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    import pyarrow as pa

    from fanout.core.statistics import WriterStatistics
    from fanout.kafka.cluster import Cluster
    from fanout.kafka.partitions import Partition
    from fanout.kafka.writing.delivery import Delivery
    from fanout.kafka.writing.producer_id import WriteMode

# Kafka's defaults of retry.backoff.ms and retry.backoff.max.ms.
_WAITS: Final = Backoff(base=0.1, cap=1.0)
# Seconds: an election or the restart of a broker is over by then, and a user waits.
_PATIENCE: Final = 30.0


@final
@dataclass(frozen=True, slots=True)
class Written:
    """The records that a writer has written since it was opened, and the bytes of their batches."""

    rows: int
    bytes: int
    partitions: Mapping[Partition, int]


@final
class KafkaWriter:
    """Write records; `open_writer` makes it. Its methods are called one at a time.

    A final error ends the writing: every later call raises it too.
    """

    def __init__(self, sender: Sender, options: ProducerOptions) -> None:
        self._sender = sender
        self._options = options

    @property
    def cluster_id(self) -> str:
        """The id of the cluster."""
        return self._sender.cluster_id

    @property
    def queued(self) -> int:
        """The number of records that were taken so far, sent or not."""
        return self._sender.queued

    async def partition_count(self, topic: str) -> int:
        """Return the number of partitions of a topic, as it was when the writer first met it."""
        return await self._sender.partition_count(topic)

    async def write(self, records: pa.RecordBatch, delivery: Delivery | None = None) -> None:
        """Write records; each partition gets its records in the order of their rows.

        It returns when all of them fit into `buffer.memory`; `flush` waits for confirmation. Where
        it is cancelled, some of the records may be written.

        Raises:
            UnwritableRecordError: If a record is too large, or Kafka cannot hold a value.
            ServiceError: If a topic or partition does not exist, or the cluster refuses a request.
            FencedError: If a newer run has taken over, or the transaction has ended.
            WriteTimeoutError: If the cluster does not confirm records in time.
        """
        rows = prepare_rows(records, datetime.now(UTC))
        batches = [
            (partition, *batch)
            for partition, of_partition in split_by_partition(rows)
            for batch in cut_together(of_partition, self._options.batch_size)
        ]
        for partition, _, nbytes, _ in batches:
            if nbytes > max(self._options.max_request_size, self._options.batch_size):
                raise UnwritableRecordError(
                    f"a record for {partition} takes {nbytes} bytes, more than max.request.size="
                    f"{self._options.max_request_size}: raise it, and the topic's max.message.bytes"
                )
        await self._sender.locate(dict.fromkeys(partition for partition, *_ in batches))
        if not batches:
            return
        encoded = sum(nbytes for _, _, nbytes, _ in batches)
        size = batches[0][1].get_total_buffer_size() + encoded
        buffers = self._sender.begin_write(size, encoded)
        try:
            for partition, some, nbytes, encode in batches:
                await self._sender.put(
                    partition, some, nbytes, delivery=delivery, buffers=buffers, records=encode
                )
        finally:
            buffers.release(0)
        self._sender.start()

    async def flush(self) -> Written:
        """Wait until all written records are confirmed, or read by brokers if `Unconfirmed`."""
        await self._sender.flush()
        sender = self._sender
        return Written(sender.rows, sender.bytes, dict(sender.partitions))

    def statistics(self) -> WriterStatistics:
        """Return the counters since the writer was opened, without transactions."""
        return self._sender.statistics()

    def next_transaction(self) -> None:
        """Go on in a new transaction, after the one before was flushed and ended."""
        self._sender.next_transaction()


@asynccontextmanager
async def open_writer(
    cluster: Cluster,
    *,
    mode: WriteMode,
    options: ProducerOptions | None = None,
    written: Mapping[Partition, int] | None = None,
) -> AsyncIterator[KafkaWriter]:
    """Connect to a cluster, in order to write to it.

    Leaving the block closes every connection at once, and drops records that are not flushed. A
    transaction stays open. `written` has how many records the producer of a transaction has written
    in other processes, by partition, because brokers expect the next sequence number.

    Raises:
        OptionError: If a server would be used without TLS, or a file cannot be used.
        ServiceError: If the cluster cannot be reached for half a minute, or for delivery.timeout.ms
            if that is shorter, or refuses the client.
    """
    options = options or ProducerOptions()
    jitter = FullJitter(_WAITS, Random())  # noqa: S311 - it spreads attempts
    patience = min(_PATIENCE, options.delivery_timeout)
    async with open_connections(cluster, options) as connections:
        metadata = ClusterMetadata(connections)
        await with_retries(
            "the cluster cannot be reached",
            lambda: metadata.refresh([]),
            jitter,
            patience=patience,
        )
        producer = await with_retries(
            "the cluster assigns no producer id",
            lambda: obtain_producer_id(connections, mode),
            jitter,
            patience=patience,
        )
        requests = ProduceRequests(
            connections,
            options=options,
            producer=producer,
            transaction=OpenTransaction(connections, mode)
            if isinstance(mode, Transactional)
            else None,
            written=written or {},
        )
        sender = Sender(requests, metadata, options=options, jitter=jitter)
        async with sender.running():
            yield KafkaWriter(sender, options)
