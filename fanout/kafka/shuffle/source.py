"""A shuffle as a source, and the connection of one running stream to its topics."""

from __future__ import annotations

import math
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Literal, final

from fanout.core.event_time import CarriedWatermarks
from fanout.core.opening import open_stream
from fanout.core.option_checks import at_least_one, number, one_of
from fanout.core.policy import Skip
from fanout.core.positions import Cursor, reaches
from fanout.core.sentence import Option, Sentence
from fanout.errors import OptionError
from fanout.kafka.partitions import Partition
from fanout.kafka.reading.kafka_source import (
    KafkaSource,
    open_kafka_connection,
    open_kafka_transport,
)
from fanout.kafka.reading.offsets import next_offset, topic_id_at
from fanout.kafka.reading.subscription import HEARTBEAT
from fanout.kafka.shuffle.frames import FRAMED, SCHEMA
from fanout.kafka.shuffle.producers import Liveness, Producers
from fanout.kafka.shuffle.reader import ShuffleReader, producers_at, with_producers
from fanout.kafka.shuffle.topic import PartitionCounts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    import pyarrow as pa

    from fanout.core.backoff import Pacing
    from fanout.core.checkpoint import Checkpoint
    from fanout.core.events import Batch, End, Split
    from fanout.core.policy import Phase, Verdict
    from fanout.core.positions import Position
    from fanout.core.source import Reserve
    from fanout.kafka.reading.kafka_source import KafkaConnection
    from fanout.kafka.reading.transport import KafkaTransport

# The subscription reports an empty partition at each heartbeat; silence is measured in these.
_LEAST_TIMEOUT = 2 * HEARTBEAT


@final
class ShuffleConnection:
    """Connect one running stream to the topics of shuffles.

    The connection of Kafka reads the records, with the columns of `FRAMED`. See `ShuffleSource` for
    the options.
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
        self.capabilities = replace(kafka.capabilities, adopt=self._adopt)

    @property
    def identity(self) -> str:
        """The cluster, marked as a shuffle: positions of a Kafka source have no producers."""
        return f"shuffle:{self._kafka.identity}"

    async def _adopt(self, checkpoint: Checkpoint, splits: Sequence[Split]) -> Checkpoint | None:
        """Continue what the connection that reads the records continues."""
        if checkpoint.source != self.identity:
            return None
        kept = await self._kafka.adopt(replace(checkpoint, source=self._kafka.identity), splits)
        return None if kept is None else checkpoint

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
        """Return the position at which each partition starts.

        A committed offset may have a leader epoch, where a position of a shuffle has its producers.
        """
        starts = await self._kafka.resolve(splits)
        return {
            split_id: with_producers(next_offset(at), topic_id_at(at), Producers.unknown())
            if isinstance(at, Cursor)
            else at
            for split_id, at in starts.items()
        }

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
        other = topic_id_at(verdict.to) not in {"", topic_id_at(position)}
        if other or not reaches(verdict.to, position):
            # The topic was created again, so that its generations may begin anew.
            producers = Producers.unknown(producers.watermark)
        to = with_producers(next_offset(verdict.to), topic_id_at(verdict.to), producers)
        return replace(verdict, to=to)


def _topics(splits: Sequence[Split]) -> set[str]:
    return {Partition.of(split.id).topic for split in splits}


@final
@dataclass(frozen=True, slots=True)
class ShuffleSource:
    """Read records that were distributed by key over the partitions of a topic, with watermarks.

    Args:
        kafka: The topics or partitions to read, from where to where, and how. `decode` and
            `event_time` must be None, because records carry their times, and `isolation_level`
            must be `"read_committed"`.
        partition_count: The number of partitions that each topic must have; None for any number.
            The number that the writers announce is always checked.
        on_bad_frame: What to do with a record that is no frame of a shuffle: `"fail"`, or `"gap"`
            to leave it out. The gap is logged as an error and counted.
        producer_timeout: Seconds without a frame, while the reader waits at the end of a partition,
            after which a producer is silent; at least 10. None for never: the watermark waits for
            the producer.
        on_silent_producer: What to do with a silent producer: `"leave_out"` logs a warning, and the
            watermark advances without it until it writes a frame; `"fail"` stops the stream.

    Raises:
        OptionError: If an option is malformed or out of range, or contradicts another one.
    """

    kafka: KafkaSource
    partition_count: int | None = None
    on_bad_frame: Literal["fail", "gap"] = "fail"
    producer_timeout: float | None = None
    on_silent_producer: Literal["leave_out", "fail"] = "leave_out"

    def __post_init__(self) -> None:
        if not isinstance(self.kafka, KafkaSource):
            raise OptionError(Option("kafka"), " must be a fanout.kafka.KafkaSource")
        for name in ("decode", "event_time"):
            if getattr(self.kafka, name) is not None:
                raise OptionError(
                    Option(name), " is not for a shuffle, whose records carry their times"
                )
        if self.kafka.isolation_level != "read_committed":
            raise OptionError(
                Sentence.of(
                    "a shuffle is read with {isolation_level='read_committed'}: the records of an "
                    "aborted watermark are written again"
                )
            )
        one_of("on_bad_frame", self.on_bad_frame, "fail", "gap")
        one_of("on_silent_producer", self.on_silent_producer, "leave_out", "fail")
        at_least_one("partition_count", self.partition_count, or_none=True)
        timeout = self.producer_timeout
        if timeout is None:
            return
        if not _LEAST_TIMEOUT <= number("producer_timeout", timeout) < math.inf:
            raise OptionError(
                Option("producer_timeout", timeout),
                f" must be at least {_LEAST_TIMEOUT:g} seconds, and finite, or None",
            )

    @property
    def schema(self) -> pa.Schema:
        """The columns of a record: those of Kafka with its own value, and `eventTime`."""
        return SCHEMA

    @property
    def event_time(self) -> CarriedWatermarks:
        """The watermarks, which come with the records."""
        return CarriedWatermarks(_stored_watermark)

    @asynccontextmanager
    async def connect(self, *, available_now: bool = False) -> AsyncIterator[ShuffleConnection]:
        """Connect as `KafkaSource.connect` does.

        Args:
            available_now: End at the ends of the partitions as they are now, or at an earlier
                `stop`.

        Raises:
            OptionError: If a file of the security options cannot be used, or the start or the
                stop does not fit the partitions.
            ServiceError: If a topic or partition does not exist or may not be read, or no broker
                answers.
        """
        random = Random()  # noqa: S311 - jitter, no secret
        async with AsyncExitStack() as stack:
            transport = await stack.enter_async_context(open_kafka_transport(self.kafka, random))
            opening = open_shuffle(self, transport, random, available_now=available_now)
            yield await stack.enter_async_context(opening)

    def cursor(self, batch: Batch, row: int) -> Cursor:
        """Return the position after one row, with the state before the row."""
        return self.kafka.cursor(batch, row)

    def arrival(self, records: pa.RecordBatch, row: int) -> int | None:
        """Return Kafka's timestamp of a row in milliseconds; None if it has none."""
        return self.kafka.arrival(records, row)


@asynccontextmanager
async def open_shuffle(
    source: ShuffleSource, transport: KafkaTransport, random: Random, *, available_now: bool = False
) -> AsyncIterator[ShuffleConnection]:
    """Connect over a transport; see `ShuffleSource.connect`."""
    opening = open_kafka_connection(
        source.kafka, transport, random, available_now=available_now, layout=FRAMED
    )
    async with opening as connection:
        yield ShuffleConnection(
            connection,
            PartitionCounts(transport, source.partition_count),
            skip_bad_frames=source.on_bad_frame == "gap",
            producer_timeout=source.producer_timeout,
            leave_out_silent=source.on_silent_producer == "leave_out",
        )


async def describe_producers(source: ShuffleSource) -> Mapping[str, Producers]:
    """Read a shuffle from its start to its end, and return the producers of each partition.

    Frames before the start do not count.
    """
    async with open_stream(source, available_now=True) as stream:
        async for batch in stream:
            await stream.acknowledge(batch)
        splits = stream.statistics().splits
        return {name: producers_at(split.position) for name, split in sorted(splits.items())}


def _stored_watermark(position: Cursor) -> int | None:
    return producers_at(position).watermark
