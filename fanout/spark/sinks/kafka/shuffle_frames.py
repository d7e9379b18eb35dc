"""Frames of a shuffle: the encoding of a batch's rows, and the announcements behind them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, final

import pyarrow as pa

from fanout.kafka.shuffle.announcements import announcement_rows
from fanout.kafka.shuffle.frames import HelloFrame, IdleFrame, WatermarkFrame, encode, latest_millis
from fanout.kafka.shuffle.topic import check_partition_count
from fanout.kafka.writing.writer import open_writer
from fanout.spark.sinks.kafka.stored_tokens import SinkState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from fanout.kafka.partitions import Partition
    from fanout.kafka.shuffle.frames import ControlFrame
    from fanout.kafka.shuffle.writer_options import ShuffleProducerOptions
    from fanout.kafka.writing.writer import Written
    from fanout.spark.query.batch_context import BatchContext
    from fanout.spark.sinks.kafka.worker_task import TaskOptions


@final
class FrameEncoder:
    """Encode a task's rows as frames. A hello comes before the first frame of each partition."""

    def __init__(self, topic: str, hello: HelloFrame) -> None:
        self._topic = topic
        self._hello = hello
        self._announced: set[int] = set()
        self.newest: int | None = None

    def encode(self, records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the hellos of partitions that are new to this task, and the frames.

        Rows have the columns `topic`, `partition`, `key` and `value`, and `eventTime` where they
        have times.

        Raises:
            BadFrameError: A key or a value is null, or a time is out of range.
        """
        columns = dict(zip(records.schema.names, records.columns, strict=True))
        times = columns.pop("eventTime", None)
        frames = encode(columns["key"], columns["value"], times)
        latest = latest_millis(times)
        if latest is not None and (self.newest is None or latest > self.newest):
            self.newest = latest
        new = sorted(set(columns["partition"].unique().to_pylist()) - self._announced)
        self._announced.update(new)
        if new:
            yield announcement_rows(self._topic, new, [self._hello])
        columns["value"] = frames
        yield pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


@final
@dataclass(frozen=True, slots=True)
class ShuffleFraming:
    """Make frames and announcements of the batches of one producer."""

    options: ShuffleProducerOptions

    def hello(self, context: BatchContext, sink_name: str, count: int) -> HelloFrame:
        """Return the announcement of the producer in a run.

        A generation is the time of the checkpoint's first run plus the number of this run. So it is
        higher than that of each earlier run, even if clocks differ, and than that of an earlier
        query, which had another checkpoint. `count` is the number of partitions of the topic.

        Raises:
            CheckpointError: The checkpoint is damaged, or cannot be written.
            ServiceError: The topic has another number of partitions.
        """
        options = self.options
        check_partition_count(options.topic, count, options.partition_count)
        generation = options.generation
        if generation is None:
            state = SinkState(context.storage, context.ownership, sink_name)
            now = math.floor(datetime.now(UTC).timestamp() * 1000)
            generation = state.first_generation(now) + context.ownership.run
        return HelloFrame(options.producer, generation, options.producers, count)

    def encoder(self, hello: HelloFrame) -> Callable[[], FrameEncoder]:
        """Return a function that makes a task's encoder; it is pickled."""
        return partial(FrameEncoder, self.options.topic, hello)

    def announcements(
        self, hello: HelloFrame, *, rows: int, newest: int | None, watermark: int | None
    ) -> list[ControlFrame]:
        """Return the announcements behind the rows of a batch, for every partition.

        Args:
            hello: The announcement of the producer.
            rows: The number of rows that tasks have written.
            newest: The latest event time of these rows, in milliseconds. It comes from the tasks,
                because another run of the same plan may give other rows.
            watermark: The watermark of the stream behind the batch.
        """
        lateness = self.options.out_of_orderness
        millis = watermark
        if lateness is not None:
            # A record that is exactly out_of_orderness late is not late.
            millis = None if newest is None else newest - math.ceil(lateness * 1000) - 1
        if millis is not None:
            return [hello, WatermarkFrame(hello.producer, hello.generation, millis)]
        # A stream without a watermark may soon have one that is below that of other producers.
        if rows or lateness is None:
            return [hello]
        return [hello, IdleFrame(hello.producer, hello.generation)]


async def announce(
    task: TaskOptions,
    written: Mapping[Partition, int],
    count: int,
    announcements: Sequence[ControlFrame],
) -> Written:
    """Write announcements to every partition behind the records of tasks, in their transaction.

    `written` is the number of records that the tasks wrote to each partition, `count` that of the
    partitions of the topic.
    """
    assert task.topic is not None, "a shuffle has one topic"
    async with open_writer(
        task.cluster, mode=task.mode, options=task.producing, written=written
    ) as writer:
        await writer.write(announcement_rows(task.topic, range(count), announcements))
        return await writer.flush()
