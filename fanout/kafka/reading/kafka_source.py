"""Kafka as a source: its options, and how a stream connects to the cluster."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, final

from fanout.core.backoff import FullJitter
from fanout.core.positions import Cursor, Latest
from fanout.kafka.protocol.first_contact import open_cluster
from fanout.kafka.protocol.retries import with_retries
from fanout.kafka.reading.client import start_client
from fanout.kafka.reading.columns import KAFKA_LAYOUT, SCHEMA, arrival, cursor_after
from fanout.kafka.reading.commits import open_committer
from fanout.kafka.reading.fetcher import Fetcher
from fanout.kafka.reading.kafka_connection import KafkaConnection
from fanout.kafka.reading.kafka_options import KafkaOptions
from fanout.kafka.reading.offsets import OffsetResolver
from fanout.kafka.reading.partition_catalog import PartitionCatalog

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pyarrow as pa

    from fanout.core.events import Batch
    from fanout.kafka.partitions import Partition
    from fanout.kafka.reading.columns import Layout
    from fanout.kafka.reading.transport import KafkaTransport


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSource(KafkaOptions):
    """Read partitions of a Kafka cluster; the arguments are those of KafkaOptions."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of a record, named as in Spark's own Kafka source.

        With `decode` they are the columns that it returns.
        """
        decode = self.user_decode
        return SCHEMA if decode is None else decode.schema

    @asynccontextmanager
    async def connect(self, *, available_now: bool = False) -> AsyncIterator[KafkaConnection]:
        """Connect, check that the named topics exist, and find where a bounded read ends.

        Leaving the context commits the acknowledged offsets that are not committed yet. That takes
        at most 5 seconds, and is given up when the task is cancelled once more.

        Args:
            available_now: End at the current ends of the partitions, or at an earlier `stop`.

        Raises:
            OptionError: If a file of the security options cannot be used, or the start or the
                stop does not fit the partitions.
            ServiceError: If a topic or partition does not exist or may not be read, or no broker
                answers.
        """
        async with AsyncExitStack() as stack:
            random = Random()  # noqa: S311 - jitter, no secret
            transport = await stack.enter_async_context(open_kafka_transport(self, random))
            opening = open_kafka_connection(self, transport, random, available_now=available_now)
            yield await stack.enter_async_context(opening)

    def cursor(self, batch: Batch, row: int) -> Cursor:
        """Return the position after one row."""
        return cursor_after(batch, row)

    def arrival(self, records: pa.RecordBatch, row: int) -> int | None:
        """Return the timestamp of a row in milliseconds; None where there is none."""
        return arrival(records, row)


@asynccontextmanager
async def open_kafka_transport(
    options: KafkaOptions, random: Random
) -> AsyncIterator[KafkaTransport]:
    """Connect to the cluster, within its `connect_timeout`; see `KafkaSource.connect`."""
    async with open_cluster(options.cluster.named("source"), options.fetching) as connections:
        yield await with_retries(
            "the cluster cannot be described",
            lambda: start_client(
                connections,
                options.fetching,
                client_rack=options.client_rack or "",
                isolation_level=options.isolation_level,
            ),
            FullJitter(options.pacing.backoff, random),
        )


@asynccontextmanager
async def open_kafka_connection(
    options: KafkaOptions,
    transport: KafkaTransport,
    random: Random,
    *,
    available_now: bool = False,
    layout: Layout = KAFKA_LAYOUT,
) -> AsyncIterator[KafkaConnection]:
    """Connect over a transport; see `KafkaSource.connect`."""
    jitter = FullJitter(options.pacing.backoff, random)
    fetcher = Fetcher(
        transport,
        max_partition_bytes=options.fetching.max_partition_fetch_bytes,
        max_bytes_in_flight=options.max_bytes_in_flight,
        max_wait=options.fetching.fetch_max_wait,
    )
    catalog = PartitionCatalog(transport, options.selection, jitter)
    offsets = OffsetResolver(transport, options.group_id, jitter)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(fetcher.running())
        committer = None
        if options.group_id is not None:
            committing = open_committer(transport, options.group_id, jitter)
            committer = await stack.enter_async_context(committing)
        yield KafkaConnection(
            options,
            transport,
            fetcher=fetcher,
            catalog=catalog,
            offsets=offsets,
            committer=committer,
            stops=await _stops(options.stop, catalog, offsets, available_now=available_now),
            layout=layout,
        )


async def _stops(
    stop: object, catalog: PartitionCatalog, offsets: OffsetResolver, *, available_now: bool
) -> dict[Partition, int] | None:
    """Find where a bounded read ends; None for an unbounded read."""
    choices = [stop] if stop is not None else []
    if available_now:
        choices.append(Latest())
    if not choices:
        return None
    splits = await catalog.refresh()
    found = [await offsets.resolve("stop", choice, splits) for choice in choices]
    return {partition: min(ends[partition] for ends in found) for partition in found[0]}
