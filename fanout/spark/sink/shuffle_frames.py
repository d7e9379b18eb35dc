"""What a batch becomes in a shuffle: frames, and behind them what its producer says."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, final

import pyarrow as pa

from fanout.kafka.shuffle.announcements import announcement_rows
from fanout.kafka.shuffle.frame_columns import encode, latest_millis
from fanout.kafka.shuffle.frames import HelloFrame, IdleFrame, WatermarkFrame
from fanout.kafka.shuffle.topic import check_partition_count
from fanout.kafka.writing.writer import open_writer
from fanout.spark.sink.stored_tokens import SinkState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from fanout.kafka.partitions import Partition
    from fanout.kafka.shuffle.frames import ControlFrame
    from fanout.kafka.writing.writer import Written
    from fanout.spark.current_batch import BatchContext
    from fanout.spark.sink.job import Delivered
    from fanout.spark.sink.worker_task import Delivery

__all__ = ("Framer", "Framing", "say")


@final
class Framer:
    """Make frames of a task's rows. Before the first one of a partition its producer says hello.

    Args:
        topic: The topic.
        hello: How the producer introduces itself.
    """

    def __init__(self, topic: str, hello: HelloFrame) -> None:
        self._topic = topic
        self._hello = hello
        self._greeted: set[int] = set()
        self.newest: int | None = None

    def encode(self, records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield hellos where there are any to be said, and the frames.

        Args:
            records: The columns `topic`, `partition`, `key` and `value`, and `eventTime` where
                records have times.

        Raises:
            BadFrameError: A key or a value is null, or a time is out of range.
        """
        columns = dict(zip(records.schema.names, records.columns, strict=True))
        times = columns.pop("eventTime", None)
        frames = encode(columns["key"], columns["value"], times)
        latest = latest_millis(times)
        if latest is not None and (self.newest is None or latest > self.newest):
            self.newest = latest
        new = sorted(set(columns["partition"].unique().to_pylist()) - self._greeted)
        self._greeted.update(new)
        if new:
            yield announcement_rows(self._topic, new, [self._hello])
        columns["value"] = frames
        yield pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Framing:
    """How batches become frames.

    Args:
        topic: The topic.
        out_of_orderness: Seconds by which a row may be earlier than one before it; None where the
            watermark is that of the stream.
        partition_count: How many partitions the topic must have; None for any number.
        producer: The number of the producer, from 0 on.
        producers: How many there are.
        generation: What they share; None for a new one in each run.
    """

    topic: str
    out_of_orderness: float | None
    partition_count: int | None
    producer: int
    producers: int
    generation: int | None

    def hello(self, context: BatchContext, sink_name: str, count: int) -> HelloFrame:
        """Return how the producer introduces itself in a run.

        A generation is the time of the checkpoint's first run and the number of this run. So it is
        higher than that of each run before, whatever the clocks of machines say, and than that of a
        query before it, which had another checkpoint.

        Raises:
            CheckpointError: The checkpoint is damaged, or cannot be written.
            ServiceError: The topic has another number of partitions.
        """
        check_partition_count(self.topic, count, self.partition_count)
        generation = self.generation
        if generation is None:
            state = SinkState(context.storage, context.ownership, sink_name)
            now = math.floor(datetime.now(UTC).timestamp() * 1000)
            generation = state.first_generation(now) + context.ownership.run
        return HelloFrame(self.producer, generation, self.producers, count)

    def encoder(self, hello: HelloFrame) -> Callable[[], Framer]:
        """Return what makes a task's encoder; it travels to the task."""
        return partial(Framer, self.topic, hello)

    def last_words(
        self, hello: HelloFrame, delivered: Delivered, stream: int | None
    ) -> list[ControlFrame]:
        """Return what the producer says behind the rows of a batch, in every partition.

        Args:
            hello: How it introduces itself.
            delivered: What tasks have written. The watermark is that of these rows, not that of
                another run of a plan that may give others.
            stream: The watermark of the stream behind the batch.
        """
        millis = stream
        if self.out_of_orderness is not None:
            latest = delivered.newest
            # What is exactly as late as it may be is not too late.
            late = math.ceil(self.out_of_orderness * 1000)
            millis = None if latest is None else latest - late - 1
        if millis is not None:
            return [hello, WatermarkFrame(hello.producer, hello.generation, millis)]
        # Where the stream has none yet it may have one below that of other producers soon.
        if delivered.rows or self.out_of_orderness is None:
            return [hello]
        return [hello, IdleFrame(hello.producer, hello.generation)]


async def say(
    delivery: Delivery, written: Mapping[Partition, int], count: int, words: Sequence[ControlFrame]
) -> Written:
    """Say something in every partition behind what tasks have written, as part of the same.

    Args:
        delivery: How tasks have written.
        written: Where, and how many records in each partition.
        count: How many partitions there are.
        words: What is said.

    Raises:
        FanOutError: As `open_writer` and `KafkaWriter`.
    """
    assert delivery.topic is not None, "a shuffle has one topic"
    security = await asyncio.to_thread(delivery.make_security)
    async with open_writer(
        delivery.bootstrap_servers,
        security=security,
        mode=delivery.mode,
        options=delivery.options,
        client_id=delivery.client_id,
        written=written,
    ) as writer:
        await writer.write(announcement_rows(delivery.topic, range(count), words))
        return await writer.flush()
