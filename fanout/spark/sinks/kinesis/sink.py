"""The sink that writes each batch of a query to a stream of Kinesis."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Final, final

from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.types import BinaryType, StringType

from fanout.core.remote_error import ErrorWire
from fanout.errors import BatchNotWrittenError, OptionError, WriteTimeoutError
from fanout.kinesis.writing.write_options import KinesisWriteOptions
from fanout.spark.hadoop.jvm import JAVA_ERRORS, first_line, has_gone
from fanout.spark.query.batch_context import batch_of_sink, check_sink_name
from fanout.spark.sinks.kinesis.task import REPORT_SCHEMA, PutTask, put_rows
from fanout.spark.sinks.sink_batch import SinkCounts, check_transform, transformed
from fanout.spark.workers.worker_check import WorkerCheck, ask_workers, import_error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from fanout.core.statistics import SinkStatistics
    from fanout.spark.query.batch_context import BatchContext
    from fanout.spark.sinks.sink_batch import Transform
    from fanout.spark.workers.loop_thread import LoopThread

_ID: Final = "deduplicationId"
_TYPES: Final = {
    "partitionKey": (StringType,),
    "data": (StringType, BinaryType),
    "explicitHashKey": (StringType,),
    _ID: (BinaryType,),
}
_KEY: Final = "partitionKey"
_ORDER: Final = "fanout_order"
_WORKERS: Final = WorkerCheck(
    work="the sink", modules=("fanout.spark.sinks.kinesis.task",), extras="kinesis,spark"
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class KinesisSink(KinesisWriteOptions):
    """Write each batch of a query to a stream of Kinesis, at least once; a handler.

    When the handler returns, the stream has every record of the batch. Kinesis has no transactions:
    a batch that fails may be there in part, and comes again with the next run of the query. With
    `deduplicate=True` its records then have the same ids, by which readers find those that are
    there twice. The records of a partition key keep their order, unless the service distributes the
    stream's records (RecordDistributionStrategy AUTO). A handler of the user's own calls `write`.

    The DataFrame has the columns `partitionKey` (string) and `data` (string or binary), and
    optionally `explicitHashKey` (string) and `deduplicationId` (binary, 16 bytes). Where the
    service distributes the records, `partitionKey` may be null, or missing.

    Args:
        stream: The stream's name or ARN. Spark's workers write to it, with the credentials that the
            AWS SDK finds there.
        aggregate: Whether records of a partition key are put as one record in the format of the
            KPL; readers have to deaggregate.
        max_record_bytes: The most bytes in a record with its partition key; None for the stream's
            own limit.
        max_bytes_in_flight: The most bytes of a task that may wait to be confirmed.
        delivery_timeout: Seconds from the first attempt to put a record until it is confirmed.
        region: The AWS region; None takes it from the ARN, else from the workers' environment.
        endpoint_url: An endpoint instead of the region's.
        role_arn: A role to assume, refreshed before it expires.
        external_id: The external id that the trust policy of the role asks for.
        role_session_name: The name of the writers in the logs of the role's account; None for
            `"fanout"`.
        insecure: Allow plain http to a host that is not this machine.
        deduplicate: Whether an id stands before the data of each record, for
            `fanout.kinesis.read_deduplication_ids`. It is made of the query's id, sink_name, the
            batch id and its content in the checkpoint, the partition key, and the place of the row
            among those of its key; without a key the data stand for it.
        transform: Makes of a batch what is written, for example `lambda df: df.select(...)`.
        sink_name: The sink's name, where a handler has several; a part of the ids.

    Raises:
        OptionError: If an option is malformed or out of range, or two contradict each other.
    """

    deduplicate: bool = False
    transform: Transform | None = None
    sink_name: str = "kinesis"
    _counts: SinkCounts = field(default_factory=SinkCounts, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.check_writing()
        check_sink_name(self.sink_name)
        check_transform(self.transform)

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Write a batch; `foreach_batch` calls it. See `write`."""
        self.write(df, batch_id)

    def write(self, df: DataFrame, batch_id: int) -> None:
        """Write a DataFrame inside a handler of `foreach_batch`.

        A handler may write to several sinks, each with a sink_name of its own. Call it in the
        handler's own thread.

        Args:
            df: The rows; `transform` is applied to them.
            batch_id: The batch that the handler was called with.

        Raises:
            StreamStateError: No handler runs in this thread, the batch is another one, or
                sink_name was written to before in it.
            OptionError: The columns do not fit.
            BatchNotWrittenError: The batch cannot be written in time, or the Spark job failed.
            UnwritableRecordError: A record is too large, or Kinesis cannot hold a value.
            SetupError: Spark's Python workers cannot run the tasks of the sink.
            ServiceError: The stream does not exist, or the service refuses the workers.
        """
        context = batch_of_sink(batch_id, self.sink_name)
        rows = transformed(df, self.transform)
        check_columns(rows.schema, deduplicate=self.deduplicate)
        if _KEY not in rows.columns:
            rows = rows.withColumn(_KEY, F.lit(None).cast("string"))
        named = (context.query_id, self.sink_name, str(batch_id), context.content)
        batch = " ".join(filter(None, named)) if self.deduplicate else None
        self._run(rows, PutTask(options=self._options, batch=batch), context)

    def statistics(self) -> SinkStatistics:
        """Return the counters since the sink was made; any thread may call it."""
        return self._counts.statistics(self.origin, transactional=False)

    def prepare(self, spark: SparkSession, loop: LoopThread) -> None:  # noqa: ARG002 - the protocol's
        """Check that Spark's workers can run the tasks of the sink.

        Raises:
            SetupError: They cannot.
        """
        ask_workers(spark.sparkContext, _WORKERS)

    def recover(self, context: BatchContext) -> None:
        """Do nothing: a batch that was not finished comes again as a whole."""

    @property
    def _options(self) -> KinesisWriteOptions:
        """What is sent to the workers: not the transform, which may refer to anything."""
        names = [one.name for one in fields(KinesisWriteOptions)]
        return KinesisWriteOptions(**{name: getattr(self, name) for name in names})

    def _run(self, rows: DataFrame, task: PutTask, context: BatchContext) -> None:
        batch_id = context.batch_id
        try:
            reports = by_key(rows).mapInArrow(put_rows(task), REPORT_SCHEMA).collect()
        except (PySparkException, *JAVA_ERRORS) as error:
            if has_gone(error):
                raise
            if (lasting := import_error(error)) is not None:
                raise lasting from error
            raise BatchNotWrittenError(
                f"the Spark job that writes batch {batch_id} to {self.stream} failed: "
                f"{first_line(error)}"
            ) from error
        for report in reports:
            if report.failure is not None:
                failure = ErrorWire.from_json(report.failure).error()
                if isinstance(failure, WriteTimeoutError):
                    raise BatchNotWrittenError(f"batch {batch_id}: {failure}") from failure
                raise failure
        self._counts.add(
            context.query_id,
            batches=1,
            records=sum(report.rows for report in reports),
            bytes=sum(report.bytes for report in reports),
        )


def check_columns(schema: StructType, *, deduplicate: bool) -> None:
    """Raise OptionError unless a DataFrame has the columns of a record of Kinesis, each once.

    `deduplicate` says that the sink makes ids.
    """
    for name in schema.names:
        if name not in _TYPES or schema.names.count(name) > 1:
            raise OptionError(
                f"the column {name!r} is not part of a record: select partitionKey and data, and "
                f"if you like explicitHashKey and {_ID}, each once"
            )
    if "data" not in schema.names:
        raise OptionError("the DataFrame has no column 'data': rename the column to write")
    if deduplicate and _ID in schema.names:
        raise OptionError(f"deduplicate=True makes ids: leave it out, or the column {_ID!r}")
    for column in schema:
        if not isinstance(column.dataType, _TYPES[column.name]):
            wanted = " or ".join(kind().simpleString() for kind in _TYPES[column.name])
            raise OptionError(
                f"the column {column.name!r} is {column.dataType.simpleString()}, and must be "
                f"{wanted}: cast it"
            )


def by_key(rows: DataFrame) -> DataFrame:
    """Repartition rows so that one task has all rows of a partition key, in their order.

    Those without a key have no order, and are divided by their data.
    """
    tasks = rows.sparkSession.sparkContext.defaultParallelism
    # Numbers that are added before the shuffle give the order after it.
    numbered = rows.withColumn(_ORDER, F.monotonically_increasing_id())
    spread = F.when(F.col(_KEY).isNull(), F.col("data"))
    return numbered.repartition(tasks, _KEY, spread).sortWithinPartitions(_ORDER).drop(_ORDER)
