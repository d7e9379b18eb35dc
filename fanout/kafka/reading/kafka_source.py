"""Kafka as a source, and the connection of one running stream to the cluster."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, final

from aiokafka.errors import KafkaError

from fanout.core.backoff import FullJitter
from fanout.core.findings import named
from fanout.core.policy import Phase, Retry
from fanout.core.positions import Cursor, Latest
from fanout.core.source import Capabilities, Terms
from fanout.core.statistics import Origin
from fanout.core.subscription import Tap
from fanout.errors import PositionError, ServiceError
from fanout.kafka.partitions import Partition
from fanout.kafka.protocol.first_contact import open_cluster
from fanout.kafka.protocol.retries import with_retries
from fanout.kafka.reading.client import start_client
from fanout.kafka.reading.columns import KAFKA_LAYOUT, SCHEMA, arrival, cursor_after
from fanout.kafka.reading.commits import HAS_MEMBERS, open_committer
from fanout.kafka.reading.data_loss import DataLossCheck
from fanout.kafka.reading.fetcher import Fetcher
from fanout.kafka.reading.kafka_options import KafkaOptions
from fanout.kafka.reading.offsets import OffsetResolver, describe_position, next_offset
from fanout.kafka.reading.policy import Remedy, judge
from fanout.kafka.reading.selection import PartitionCatalog
from fanout.kafka.reading.subscription import PartitionReader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    import pyarrow as pa

    from fanout.core.backoff import Pacing
    from fanout.core.checkpoint import Checkpoint
    from fanout.core.events import Batch, End, Split
    from fanout.core.policy import Verdict
    from fanout.core.positions import Position
    from fanout.core.source import Reserve
    from fanout.kafka.reading.columns import Layout
    from fanout.kafka.reading.commits import Committer
    from fanout.kafka.reading.transport import KafkaTransport


@final
class KafkaConnection:
    """The connection of one running stream to a Kafka cluster.

    `stops` has the first offset not to deliver of each partition of a bounded read; None for an
    unbounded read. Without a group there is no committer.
    """

    def __init__(
        self,
        options: KafkaOptions,
        transport: KafkaTransport,
        *,
        fetcher: Fetcher,
        catalog: PartitionCatalog,
        offsets: OffsetResolver,
        committer: Committer | None,
        stops: dict[Partition, int] | None,
        layout: Layout,
    ) -> None:
        self._options = options
        self._transport = transport
        self._catalog = catalog
        self._offsets = offsets
        self._committer = committer
        self._stops = stops
        self._reader = PartitionReader(
            transport,
            fetcher,
            read_committed=options.isolation_level == "read_committed",
            max_event_bytes=options.max_event_bytes,
            layout=layout,
        )
        self._data_loss = DataLossCheck(
            transport, on_data_loss=options.on_data_loss, stops=stops or {}
        )
        selection = options.selection
        self.capabilities = Capabilities(
            bounded=stops is not None,
            reads=lambda split: selection.includes(Partition.of(split.id)),
            commits=committer,
            terms=Terms("partition", describe_position),
            origin=Origin("kafka", selection.text, options.group_id),
            polling=fetcher,
            adopt=self.adopt,
            decode=options.decoder,
            throttled=lambda: transport.throttled,
        )
        self._worked: set[Phase] = {Phase.DISCOVER}

    @property
    def identity(self) -> str:
        """Name the cluster to which the offsets belong.

        The chosen topics are no part of the name: a user may add or remove topics and resume from
        the same positions, as long as one of them stays.
        """
        return f"kafka:{self._transport.cluster_id}"

    async def adopt(self, checkpoint: Checkpoint, splits: Sequence[Split]) -> Checkpoint | None:
        """Continue stored positions, unless none of their topics is read any more."""
        del splits
        if checkpoint.source != self.identity:
            return None
        selection = self._options.selection
        topics = {Partition.of(id_).topic for id_ in checkpoint.splits}
        if topics and not any(map(selection.includes_some, topics)):
            raise PositionError(
                f"the stored positions are of the topics {named(sorted(topics))}, and of none that "
                f"is read now: {selection.text}; a renamed topic is another one: read one of those "
                f"topics as well, or start anew without these positions, a landing at another "
                f"location"
            )
        return checkpoint

    @property
    def partition_counts(self) -> Mapping[str, int]:
        """The number of partitions of each topic, chosen or not, at the last listing."""
        return self._catalog.counts

    @property
    def pacing(self) -> Pacing:
        """Return the pacing of calls; a bounded read discovers nothing."""
        pacing = self._options.pacing
        return replace(pacing, discovery_interval=None) if self.capabilities.bounded else pacing

    async def splits(self) -> Sequence[Split]:
        """List the chosen partitions; a bounded read keeps those that it began with."""
        if self._stops is not None:
            return [partition.split for partition in self._stops]
        return await self._catalog.refresh()

    async def resolve(self, splits: Sequence[Split]) -> Mapping[str, Position]:
        """Resolve the start to an offset of each partition.

        Earliest becomes an offset too, so records that are deleted before they are read are
        detected.
        """
        starts = await self._offsets.resolve("start", self._options.start, splits)
        if self._committer is not None:
            self._committer.hold(self._offsets.stored)
        return {str(partition): position for partition, position in starts.items()}

    @asynccontextmanager
    async def subscribe(
        self, split: Split, position: Position, reserve: Reserve
    ) -> AsyncIterator[AsyncIterator[Batch | End]]:
        """Read one partition from a position on, up to its stop if it has one."""
        partition = Partition.of(split.id)
        stop = None
        if self._stops is not None:
            # A deleted partition has no records to deliver, unless that is an error.
            gone = None if self._options.on_data_loss == "fail" else 0
            stop = self._stops.get(partition, gone)
        opening = self._reader.subscribe(partition, position, stop=stop, reserve=reserve)
        async with opening as batches:
            self._worked.add(Phase.SUBSCRIBE)
            yield Tap(batches, partial(self._notice, partition))

    def _notice(self, partition: Partition, _: Batch | End) -> None:
        self._worked.add(Phase.STREAM)
        self._data_loss.forget(partition)

    async def verdict(
        self,
        error: Exception,
        phase: Phase,
        split: Split | None = None,
        position: Position | None = None,
    ) -> Verdict:
        """Return what an error means, by the table in `fanout.kafka.reading.policy`.

        Where the table calls for it, the cluster is asked whether the partition has lost data.
        """
        match judge(error, first=phase not in self._worked):
            case Remedy() as remedy if split is not None and position is not None:
                return await self._data_loss.verdict(remedy, Partition.of(split.id), position)
            case Remedy():
                return Retry()
            case verdict:
                if split is not None:
                    self._data_loss.forget(Partition.of(split.id))
                return verdict


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
            with suppress(KafkaError):  # a group that cannot be described stops no reading
                if await transport.has_members(options.group_id):
                    raise ServiceError(HAS_MEMBERS.format(group=options.group_id))
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
    return {p: min(next_offset(ends[p]) for ends in found) for p in found[0]}
