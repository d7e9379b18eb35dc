"""The sink that writes each batch of a query to a shuffle, and the topic of the shuffle."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from fanout.errors import OptionError
from fanout.kafka.shuffle.topic import ShuffleTopic, ensure_topic
from fanout.kafka.shuffle.writer_options import ShuffleProducerOptions
from fanout.spark.sinks.kafka.connection import SinkTarget, connect
from fanout.spark.sinks.kafka.shuffle_frames import ShuffleFraming
from fanout.spark.sinks.kafka.transaction import recover_sink, write_batch
from fanout.spark.sinks.sink_batch import SinkCounts, check_transform, transformed
from fanout.spark.workers.loop_thread import LoopThread
from fanout.spark.workers.worker_check import check_workers

if TYPE_CHECKING:
    from datetime import timedelta

    from pyspark.sql import Column, DataFrame, SparkSession

    from fanout.core.statistics import SinkStatistics
    from fanout.spark.query.batch_context import BatchContext
    from fanout.spark.sinks.sink_batch import Transform


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleSink(ShuffleProducerOptions):
    """Write each batch of a query to a shuffle, by key; a handler for `foreach_batch`.

    The records of a batch and its watermark are one transaction. The watermark is behind the rows
    in every partition, also where the batch has none; it is that of the stream that the query
    reads, which a replay has again, or follows from the rows. If it follows from the rows, a batch
    without rows announces that this producer is idle. A handler of the user's own calls `write`.

    Args:
        cluster: As for `KafkaSink`, like `transaction_timeout`, `transactional_id_prefix`,
            `producer_options` and `transform`.
        topic: The topic of the shuffle. It has to exist; see `create_shuffle_topic`.
        delivery_guarantee: `"exactly_once"`; or `"at_least_once"`, where a batch that fails may be
            there in part and comes again.
        out_of_orderness: Seconds by which a row may be earlier than one before it, for a watermark
            that follows from the rows of this batch. None for the stream's watermark; the
            times must then be those of the source, or later ones.
        partition_count: The number of partitions that the topic must have; None for any.
        producer: The number of this query among those that write to the topic, from 0 on.
        producers: The number of queries that write to the topic.
        generation: A number that they share; a higher one takes the place of all lower ones. None,
            for a single query, is a new one for each run.
        key: The column of the keys, string or binary, by its name or as an expression.
        value: The column of the values, likewise.
        timestamp: The column of the times, a timestamp, likewise; None for records without times.
        transform: Turns a batch into the DataFrame that has the columns.
        sink_name: The sink's name in the checkpoint; it must not change while a query lives.

    Raises:
        OptionError: If an option is malformed or out of range, or two contradict each other.
    """

    key: str | Column = "key"
    value: str | Column = "value"
    timestamp: str | Column | None = None
    transform: Transform | None = None
    sink_name: str = "shuffle"
    _counts: SinkCounts = field(default_factory=SinkCounts, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.check_producer(has_times=self.timestamp is not None)
        check_transform(self.transform)
        _ = self.target  # checks it

    @property
    def target(self) -> SinkTarget:
        """The settings that the driver uses."""
        return SinkTarget(
            name=self.sink_name,
            options=self,
            framing=ShuffleFraming(self),
            counts=self._counts,
        )

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Write a batch; `foreach_batch` calls it. See `write`."""
        self.write(df, batch_id)

    def write(self, df: DataFrame, batch_id: int) -> None:
        """Write a DataFrame inside a handler of `foreach_batch`; see `KafkaSink.write`.

        Args:
            df: The rows; `transform` is applied to them.
            batch_id: The batch that the handler was called with.

        Raises:
            BadFrameError: A row has no key or no value.
            ServiceError: The topic has another number of partitions, or the cluster refuses the
                client.
            FanOutError: As `KafkaSink.write`.
        """
        write_batch(self._columns(df), batch_id, self.target)

    def _columns(self, df: DataFrame) -> DataFrame:
        chosen = {"key": self.key, "value": self.value}
        if self.timestamp is not None:
            chosen["eventTime"] = self.timestamp
        rows = transformed(df, self.transform)
        return rows.select(
            *(
                (F.col(one) if isinstance(one, str) else one).alias(name)
                for name, one in chosen.items()
            )
        )

    def statistics(self) -> SinkStatistics:
        """Return the counters since the sink was made; any thread may call it."""
        return self.target.statistics()

    def prepare(self, spark: SparkSession, loop: LoopThread) -> None:
        """Check Spark's workers, the topic, and that brokers allow the transaction timeout.

        Raises:
            SetupError: Spark's Python workers cannot run the tasks of the sink.
            OptionError: The brokers allow less than transaction_timeout.
            ServiceError: The topic does not exist, has another number of partitions, or no broker
                answers.
        """
        check_workers(spark, self)
        connect(self.target, loop).check(self.target)

    def recover(self, context: BatchContext) -> None:
        """Finish the transactions that an earlier run has recorded, and abort any other open one.

        Raises:
            CheckpointError: It is unknown whether a batch was committed.
            ServiceError: No broker answers, or the transactional id may not be used.
        """
        recover_sink(self.target, context)


def create_shuffle_topic(
    sink: ShuffleSink, *, retention: timedelta | None, replication_factor: int
) -> None:
    """Create the topic of a shuffle, or check that one that exists fits.

    It blocks, for the `connect_timeout` of the cluster where no broker answers.

    Args:
        sink: The sink; its `partition_count` is the number of partitions, for ever: as many
            readers may share the topic.
        retention: The least time for which records are kept, which is how long a reader may stand
            still; None for ever.
        replication_factor: The number of brokers that have each record.

    Raises:
        OptionError: If an option is malformed or out of range, or the sink has no partition_count.
        ServiceError: The topic does not fit, or may not be created or described, or no broker
            answers.
    """
    if sink.partition_count is None:
        raise OptionError("the topic of a shuffle needs a number of partitions: partition_count=")
    topic = ShuffleTopic(
        name=sink.topic,
        partition_count=sink.partition_count,
        retention=retention,
        replication_factor=replication_factor,
    )
    with LoopThread() as loop:
        loop.call(ensure_topic(sink.cluster, topic))
