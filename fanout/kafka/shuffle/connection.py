"""The connection of one running stream to the topics of shuffles."""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, final

from fanout.core.policy import Skip
from fanout.core.positions import Cursor, reaches
from fanout.kafka.partitions import Partition
from fanout.kafka.shuffle.producers import Liveness, Producers
from fanout.kafka.shuffle.reader import ShuffleReader, producers_at

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from fanout.core.backoff import Pacing
    from fanout.core.events import Batch, End, Split
    from fanout.core.policy import Phase, Verdict
    from fanout.core.positions import Position
    from fanout.core.source import Capabilities, Reserve
    from fanout.kafka.reading.kafka_connection import KafkaConnection
    from fanout.kafka.shuffle.topic import PartitionCounts


@final
class ShuffleConnection:
    """Connect one running stream to the topics of shuffles.

    The connection of Kafka reads the records, with the columns of `FRAMED`. See `ShuffleSource` for
    the
    options.
    """

    def __init__(
        self,
        kafka: KafkaConnection,
        partition_counts: PartitionCounts,
        *,
        skip_bad_frames: bool,
        producer_timeout: float | None,
        leave_out_silent: bool,
    ) -> None:
        self._kafka = kafka
        self._partition_counts = partition_counts
        self._skip_bad_frames = skip_bad_frames
        self._producer_timeout = producer_timeout
        self._leave_out_silent = leave_out_silent
        self._liveness: dict[str, Liveness] = {}

    @property
    def identity(self) -> str:
        """The cluster, marked as a shuffle: positions of a Kafka source have no producers."""
        return f"shuffle:{self._kafka.identity}"

    @property
    def capabilities(self) -> Capabilities:
        """Return those of the connection that reads the records."""
        return self._kafka.capabilities

    @property
    def pacing(self) -> Pacing:
        """The limits on calls, and the timeouts."""
        return self._kafka.pacing

    async def splits(self) -> Sequence[Split]:
        """List the chosen partitions, and check the numbers of partitions of their topics."""
        splits = await self._kafka.splits()
        counts = self._kafka.partition_counts
        self._partition_counts.check(
            {topic: counts[topic] for topic in counts.keys() & _topics(splits)}
        )
        return splits

    async def resolve(self, splits: Sequence[Split]) -> Mapping[str, Position]:
        """Return the position at which each partition starts."""
        return await self._kafka.resolve(splits)

    @asynccontextmanager
    async def subscribe(
        self, split: Split, position: Position, reserve: Reserve
    ) -> AsyncIterator[AsyncIterator[Batch | End]]:
        """Read one partition after a position, up to its stop or its end."""
        liveness = self._liveness.setdefault(split.id, Liveness(self._producer_timeout))
        topic = Partition.of(split.id).topic
        reader = ShuffleReader(
            split,
            position,
            skip_bad_frames=self._skip_bad_frames,
            leave_out_silent=self._leave_out_silent,
            liveness=liveness,
            check_partitions=partial(self._partition_counts.check_announced, topic),
        )
        async with (
            self._kafka.subscribe(split, position, reserve) as batches,
            aclosing(reader.read(batches, reserve)) as pieces,
        ):
            yield pieces

    async def verdict(
        self,
        error: Exception,
        phase: Phase,
        split: Split | None = None,
        position: Position | None = None,
    ) -> Verdict:
        """Judge an error as a Kafka source does; a skip keeps the watermark."""
        verdict = await self._kafka.verdict(error, phase, split, position)
        if position is None or not isinstance(verdict, Skip) or not isinstance(verdict.to, Cursor):
            return verdict
        producers = producers_at(position)
        if not reaches(verdict.to, position):
            # The topic was created again, so that its generations may begin anew.
            producers = Producers.unknown(producers.watermark)
        return replace(verdict, to=replace(verdict.to, state=producers.to_state()))


def _topics(splits: Sequence[Split]) -> set[str]:
    return {Partition.of(split.id).topic for split in splits}
