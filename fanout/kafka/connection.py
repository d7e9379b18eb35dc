"""One running stream's hold on a Kafka cluster."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, final

from fanout.core.policy import Phase, Retry
from fanout.core.source import Capabilities
from fanout.core.subscription import Tap
from fanout.kafka.partitions import Partition
from fanout.kafka.policy import Remedy, judge
from fanout.kafka.reading.data_loss import DataLossCheck
from fanout.kafka.reading.offsets import cursor_before
from fanout.kafka.reading.subscription import PartitionReader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from fanout.core.backoff import Pacing
    from fanout.core.events import Batch, End, Split
    from fanout.core.policy import Verdict
    from fanout.core.positions import Position
    from fanout.core.source import Reserve
    from fanout.kafka.options import KafkaOptions
    from fanout.kafka.reading.columns import Layout
    from fanout.kafka.reading.commits import Committer
    from fanout.kafka.reading.fetcher import Fetcher
    from fanout.kafka.reading.offsets import OffsetResolver
    from fanout.kafka.reading.partition_catalog import PartitionCatalog
    from fanout.kafka.reading.transport import KafkaTransport

__all__ = ("KafkaConnection",)


@final
class KafkaConnection:
    """One running stream's hold on a Kafka cluster.

    Args:
        options: What the user asked for.
        transport: The calls.
        fetcher: Fetches for all partitions.
        catalog: Lists the partitions.
        places: Looks offsets up.
        committer: Commits for the group; None where there is none.
        stops: The first offset that is not read, of each partition of a bounded read; None for
            one that goes on.
        layout: Which columns are made of records.
    """

    def __init__(
        self,
        options: KafkaOptions,
        transport: KafkaTransport,
        *,
        fetcher: Fetcher,
        catalog: PartitionCatalog,
        places: OffsetResolver,
        committer: Committer | None,
        stops: Mapping[Partition, int] | None,
        layout: Layout,
    ) -> None:
        self._options = options
        self._transport = transport
        self._catalog = catalog
        self._places = places
        self._stops = stops
        self._reader = PartitionReader(
            transport,
            fetcher,
            read_committed=options.isolation_level == "read_committed",
            max_event_bytes=options.max_event_bytes,
            layout=layout,
            user_decode=options.user_decode,
        )
        self._losses = DataLossCheck(
            transport, on_data_loss=options.on_data_loss, stops=stops or {}
        )
        self.capabilities = Capabilities(
            bounded=stops is not None,
            reads=lambda split: options.selection.includes(Partition.of(split.id)),
            commits=committer,
        )
        self._worked: set[Phase] = {Phase.DISCOVER}

    @property
    def identity(self) -> str:
        """Name the cluster, which is whose offsets the positions are.

        What is read of it is no part of the name: a user may add a topic, or leave one out, and
        go on with the same positions.
        """
        return f"kafka:{self._transport.cluster_id}"

    @property
    def partition_counts(self) -> Mapping[str, int]:
        """How many partitions each topic had, chosen or not, when they were listed last."""
        return self._catalog.counts

    @property
    def pacing(self) -> Pacing:
        """Say how brokers want to be asked; a bounded read has nothing to discover."""
        pacing = self._options.pacing
        return replace(pacing, discovery_interval=None) if self.capabilities.bounded else pacing

    async def splits(self) -> Sequence[Split]:
        """List the chosen partitions; a bounded read goes on with those that it began with."""
        if self._stops is not None:
            return [partition.split for partition in self._stops]
        return await self._catalog.refresh()

    async def resolve(self, splits: Sequence[Split]) -> Mapping[str, Position]:
        """Turn the start into an offset for each partition.

        Earliest becomes the offset that it is: records that are deleted before they are read are
        noticed then.

        Raises:
            OptionError: If the start does not fit the partitions.
            ServiceError: If offsets cannot be looked up.
        """
        starts = await self._places.find("start", self._options.start, splits)
        return {str(partition): cursor_before(offset) for partition, offset in starts.items()}

    @asynccontextmanager
    async def subscribe(
        self, split: Split, position: Position, reserve: Reserve
    ) -> AsyncIterator[AsyncIterator[Batch | End]]:
        """Read one partition from a position on, up to its stop where it has one."""
        partition = Partition.of(split.id)
        stop = None
        if self._stops is not None:
            # A partition that is gone has nothing to give, unless that is an error.
            gone = None if self._options.on_data_loss == "fail" else 0
            stop = self._stops.get(partition, gone)
        opening = self._reader.subscribe(partition, position, stop=stop, reserve=reserve)
        async with opening as batches:
            self._worked.add(Phase.SUBSCRIBE)
            yield Tap(batches, self._notice)

    def _notice(self, event: Batch | End) -> None:
        self._worked.add(Phase.STREAM)
        self._losses.forget(Partition.of(event.split.id))

    async def verdict(
        self,
        error: Exception,
        phase: Phase,
        split: Split | None = None,
        position: Position | None = None,
    ) -> Verdict:
        """Say what an error means, by the table in `fanout.kafka.policy`.

        Where the table wants to know what became of a partition, the cluster is asked.
        """
        match judge(error, first=phase not in self._worked):
            case Remedy() as remedy if split is not None and position is not None:
                return await self._losses.verdict(remedy, Partition.of(split.id), position)
            case Remedy():
                return Retry()
            case verdict:
                if split is not None:
                    self._losses.forget(Partition.of(split.id))
                return verdict
