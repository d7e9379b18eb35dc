"""The sink that writes each batch of a query to Kafka topics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from fanout.core.user_functions import check_function
from fanout.errors import OptionError
from fanout.kafka.writing.write_options import WriteOptions
from fanout.spark.sinks.kafka.connection import SinkTarget, connect
from fanout.spark.sinks.kafka.transaction import recover_sink, write_batch
from fanout.spark.sinks.sink_batch import SinkCounts, check_transform, transformed
from fanout.spark.workers.worker_check import check_workers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from fanout.core.statistics import SinkStatistics
    from fanout.kafka.writing.partitioner import Partitioner
    from fanout.spark.query.batch_context import BatchContext
    from fanout.spark.sinks.kafka.owned_rows import ArrowTransform
    from fanout.spark.sinks.sink_batch import Transform
    from fanout.spark.workers.loop_thread import LoopThread


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSink(WriteOptions):
    """Write each batch of a query to Kafka, exactly once; a handler for `foreach_batch`.

    A batch is one transaction of Kafka, also after failures of tasks and the driver: readers with
    `isolation.level=read_committed` see all of it once, or nothing yet. Each partition is
    written by one task in the order of the rows, so that a key keeps its order. A handler of the
    user's own calls `write`.

    The DataFrame has the columns of Spark's own Kafka sink: `value` (string or binary), and
    optionally `key` (the same), `topic`, `partition` (int), `headers`
    (`array<struct<key: string, value: binary>>`) and `timestamp`.

    Args:
        cluster: The brokers, which Spark's workers connect to as well. The security is sent to the
            workers: one with a secret is a function in `Cluster(..., security=...)`.
        topic: The topic; None where the rows name it in a column `topic`. It has to exist.
        delivery_guarantee: `"exactly_once"`; `"at_least_once"`, which waits for all in-sync
            replicas, so that a batch that fails may be there in part and comes again; or `"none"`,
            which waits for no answer (`acks=0`).
        transaction_timeout: Seconds after which brokers abort the transaction of a batch; None is
            the most that they allow (`transaction.max.timeout.ms`). A batch that takes longer
            fails.
        transactional_id_prefix: The beginning of the transactional id, for the brokers' ACLs; the
            query's id and sink_name follow it.
        producer_options: Options of Kafka's producer by Kafka's names, such as
            `{"compression.type": "zstd"}`.
        transform: Makes of a batch what is written, for example `lambda df: df.select(...)`.
        transform_arrow: The same from a `pyarrow.RecordBatch` to another one, without the JVM where
            the checkpoint is on a local disk: the driver reads and writes a small batch by itself,
            and in a `local[...]` session each task reads the batch's files. A task calls it for
            all rows, so it must return the same for the same rows; a batch whose tasks differ is
            an error. It is also called without rows, to learn its columns.
        sink_name: The sink's name in the checkpoint; it must not change while a query lives.
        partitioner: From the keys of many rows (an Arrow array of binary, null where there is
            none) and the number of partitions of their topic to an array of their partitions. None
            is Kafka's own: murmur2 of the key, and rows without one anywhere. A column
            `partition` that is not null goes before it.

    Raises:
        OptionError: If an option is malformed or out of range, or two contradict each other.
    """

    transform: Transform | None = None
    transform_arrow: ArrowTransform | None = None
    sink_name: str = "kafka"
    partitioner: Partitioner | None = None
    _counts: SinkCounts = field(default_factory=SinkCounts, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.check_writing("exactly_once", "at_least_once", "none")
        check_transform(self.transform)
        if self.transform_arrow is not None:
            check_function(
                "transform_arrow", self.transform_arrow, "a function of a RecordBatch", arguments=1
            )
        if self.transform is not None and self.transform_arrow is not None:
            raise OptionError("transform and transform_arrow contradict each other; pass one")
        _ = self.target  # checks it

    @property
    def target(self) -> SinkTarget:
        """The settings that the driver uses."""
        return SinkTarget(
            name=self.sink_name,
            options=self,
            partitioner=self.partitioner,
            transform=self.transform_arrow,
            counts=self._counts,
        )

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Write a batch; `foreach_batch` calls it. See `write`."""
        self.write(df, batch_id)

    def write(self, df: DataFrame, batch_id: int) -> None:
        """Write a DataFrame inside a handler of `foreach_batch`.

        A handler may write to several sinks, each with a sink_name of its own: each is a
        transaction of its own, and committed by itself. Call it in the handler's own thread. A
        batch that fails comes again with the next run of the query.

        Args:
            df: The rows; `transform` or `transform_arrow` is applied to them.
            batch_id: The batch that the handler was called with.

        Raises:
            StreamStateError: No handler runs in this thread, the batch is another one, or
                sink_name was written to before in it.
            OptionError: The columns do not fit.
            BatchNotWrittenError: The batch cannot be written in three attempts or in time.
            UnwritableRecordError: A record is too large.
            SetupError: Spark's Python workers cannot run the tasks of the sink.
            ServiceError: The cluster refuses the client.
            CheckpointError: A newer run has taken over the checkpoint.
            FencedError: Another job uses the transactional id.
        """
        write_batch(transformed(df, self.transform), batch_id, self.target)

    def statistics(self) -> SinkStatistics:
        """Return the counters since the sink was made; any thread may call it."""
        return self.target.statistics()

    def prepare(self, spark: SparkSession, loop: LoopThread) -> None:
        """Check Spark's workers, the topic, and that brokers allow the transaction timeout.

        Raises:
            SetupError: Spark's Python workers cannot run the tasks of the sink.
            OptionError: The brokers allow less than transaction_timeout.
            ServiceError: The topic does not exist, or no broker answers.
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
