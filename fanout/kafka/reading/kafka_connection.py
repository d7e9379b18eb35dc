"""The connection of one running stream to a Kafka cluster."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, final

from fanout.core.policy import Phase, Retry
from fanout.core.source import Capabilities, Terms
from fanout.core.statistics import Origin
from fanout.core.subscription import Tap
from fanout.kafka.partitions import Partition
from fanout.kafka.reading.data_loss import DataLossCheck
from fanout.kafka.reading.offsets import cursor_before, describe_position
from fanout.kafka.reading.policy import Remedy, judge
from fanout.kafka.reading.subscription import PartitionReader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from fanout.core.backoff import Pacing
    from fanout.core.events import Batch, End, Split
    from fanout.core.policy import Verdict
    from fanout.core.positions import Position
    from fanout.core.source import Reserve
    from fanout.kafka.reading.columns import Layout
    from fanout.kafka.reading.commits import Committer
    from fanout.kafka.reading.fetcher import Fetcher
    from fanout.kafka.reading.kafka_options import KafkaOptions
    from fanout.kafka.reading.offsets import OffsetResolver
    from fanout.kafka.reading.partition_catalog import PartitionCatalog
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
        stops: Mapping[Partition, int] | None,
        layout: Layout,
    ) -> None:
        self._options = options
        self._transport = transport
        self._catalog = catalog
        self._offsets = offsets
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
            decode=options.decoder,
            throttled=lambda: transport.throttled,
        )
        self._worked: set[Phase] = {Phase.DISCOVER}

    @property
    def identity(self) -> str:
        """Name the cluster to which the offsets belong.

        The chosen topics are no part of the name: a user may add or remove a topic and resume from
        the same positions.
        """
        return f"kafka:{self._transport.cluster_id}"

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
        return {str(partition): cursor_before(offset) for partition, offset in starts.items()}

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
            yield Tap(batches, self._notice)

    def _notice(self, event: Batch | End) -> None:
        self._worked.add(Phase.STREAM)
        self._data_loss.forget(Partition.of(event.split.id))

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
