"""The sink that writes each batch of a query to a table of Apache Iceberg."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

from py4j.clientserver import ClientServer
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from fanout.errors import OptionError, SetupError
from fanout.spark.hadoop.jvm import first_and_last_cause, is_caused_by, jvm, require_extension
from fanout.spark.sinks.sink_batch import WrittenBatch
from fanout.spark.sinks.tables.merge import in_attempts, merge, newest_once
from fanout.spark.sinks.tables.table_sink import KeyedSink

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from fanout.spark.sinks.sink_batch import SinkBatch

log = logging.getLogger(__name__)

_EXTENSION: Final = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
_WRITER: Final = "fanout.writer"
_BATCH: Final = "fanout.batch-id"
_CONTENT: Final = "fanout.batch-content"
# Another writer has committed, or has created the table, since it was looked at.
_CONFLICTS: Final = (
    "org.apache.iceberg.exceptions.AlreadyExistsException",
    "org.apache.iceberg.exceptions.CommitFailedException",
    "org.apache.iceberg.exceptions.ValidationException",
    "org.apache.spark.sql.catalyst.analysis.TableAlreadyExistsException",
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergSink(KeyedSink):
    """Write each batch of a query to a table of Apache Iceberg, exactly once; a handler.

    The summary of a batch's snapshot has `{query id}/{sink_name}` as `fanout.writer` and the
    batch's id as `fanout.batch-id`. A batch is skipped if its snapshot belongs to the table as it
    is: the newest snapshot of a query must not be expired before the query goes on. A handler of
    the user's own calls `write`.

    The rows are appended. With `key` and `latest_by` they are merged: a row is inserted where the
    table has none of its key, and takes the place of one that is not newer. A table that does not
    exist is created with the columns of the first batch.

    Args:
        table: The table's name with its catalog, for example `"lake.shop.orders"`.
        key: The columns that tell rows apart; empty appends.
        latest_by: The column whose greatest value is the newest row of a key, such as an event time
            or a version.
        transform: Makes of a batch what is written, for example `lambda df: df.select(...)`.
        sink_name: The sink's name, where a handler has several; it must not change while a query
            lives.

    Raises:
        OptionError: If an option is malformed, or two contradict each other.
    """

    table: str
    sink_name: str = "iceberg"

    def _require(self, spark: SparkSession) -> None:
        require_own_threads(spark)
        require_extension(
            spark,
            _EXTENSION,
            "Iceberg: start Spark with --packages org.apache.iceberg:iceberg-spark-runtime-..., "
            "for its version, spark.sql.extensions, and a catalog as in Iceberg's guide",
        )

    @property
    def _destination(self) -> str:
        return self.table

    def _check(self) -> None:
        self._check_key()
        if not isinstance(self.table, str) or not self.table:
            raise OptionError(f"table={self.table!r} must be the name of a table")

    def _write(self, rows: DataFrame, batch: SinkBatch) -> None:
        self._check_columns(rows.schema)
        with newest_once(rows, self._keys, self.latest_by) as newest:
            in_attempts(lambda: self._attempt(newest, batch), _is_conflict)

    def _attempt(self, rows: DataFrame, batch: SinkBatch) -> None:
        spark = rows.sparkSession
        if not spark.catalog.tableExists(self.table):
            rows.limit(0).writeTo(self.table).using("iceberg").create()
        # The session may have the table as it was before another run has committed.
        spark.sql(f"REFRESH TABLE {self.table}")
        if batch.is_in(self.table, self._newest(spark, batch)):
            log.info("batch %d is in %s already", batch.batch_id, self.table)
            return
        self._check_kept(rows, spark.table(self.table).schema)
        batch.ownership.check()
        summary = {_WRITER: batch.writer, _BATCH: str(batch.batch_id), _CONTENT: batch.content}
        commit_with_summary(spark, summary, lambda: self._commit(rows))

    def _commit(self, rows: DataFrame) -> None:
        if self.latest_by is None:
            rows.writeTo(self.table).append()
        else:
            merge(rows, self.table, self._keys, self.latest_by)

    def _newest(self, spark: SparkSession, batch: SinkBatch) -> WrittenBatch | None:
        """Return the newest batch of a query in the table; None if all are before this one."""
        summary = F.col("summary")
        same_writer = summary[_WRITER] == batch.writer
        not_older = summary[_BATCH].cast("long") >= batch.batch_id
        snapshots = spark.table(f"{self.table}.snapshots")
        found = snapshots.where(same_writer & not_older).select(
            "snapshot_id",
            summary[_BATCH].cast("long").alias("batch_id"),
            F.coalesce(summary[_CONTENT], F.lit("")).alias("content"),
        )
        if not (written := found.collect()):
            return None
        history = current_history(spark, self.table)
        batches = [
            WrittenBatch(one.batch_id, one.content) for one in written if one.snapshot_id in history
        ]
        return max(batches, key=lambda one: one.batch_id, default=None)


def _is_conflict(error: BaseException) -> bool:
    # A statement that has read one snapshot, and is to commit onto another, ends so.
    modified = "concurrently modified" in first_and_last_cause(error)
    return modified or is_caused_by(error, *_CONFLICTS)


def current_history(spark: SparkSession, table: str) -> set[int]:
    """Return the ids of a table's current snapshot, as the session has it, and those before.

    A snapshot that was rolled back, or that an earlier table of the name had, is not among them.
    """
    snapshots = spark.table(f"{table}.snapshots").select("snapshot_id", "parent_id").collect()
    parents = {one.snapshot_id: one.parent_id for one in snapshots}
    heads = spark.table(f"{table}.refs").where("name = 'main'").select("snapshot_id").collect()
    snapshot = heads[0].snapshot_id if heads else None
    found = set()
    while snapshot is not None and snapshot in parents:
        found.add(snapshot)
        snapshot = parents[snapshot]
    return found


def require_own_threads(spark: SparkSession) -> None:
    """Raise SetupError unless Spark calls Java in a thread of its own for each thread of Python.

    Iceberg keeps the properties of a summary with the thread that commits.
    """
    if not isinstance(spark.sparkContext._gateway, ClientServer):  # noqa: SLF001 - as below
        raise SetupError(
            "IcebergSink cannot work with PYSPARK_PIN_THREAD=false: a batch would have no id in "
            "the table; set PYSPARK_PIN_THREAD=true, the default, before the session is created"
        )


def commit_with_summary(
    spark: SparkSession, summary: Mapping[str, str], write: Callable[[], object]
) -> None:
    """Call a function in this thread, and add properties to the summaries of what it commits.

    A write of a DataFrame has an option for them, and MERGE has not. See
    https://iceberg.apache.org/docs/latest/spark-configuration/#write-options
    """
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - pyspark's only door to it
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    java = jvm(spark)
    call = _Call(write)
    any_error = java.java.lang.Class.forName("java.lang.RuntimeException")
    java.org.apache.iceberg.spark.CommitMetadata.withCommitProperties(
        dict(summary), call, any_error
    )
    if call.error is not None:
        raise call.error


@final
class _Call:
    """A function as a Callable of Java, which py4j calls in the thread that waits for it."""

    class Java:
        """The interface that py4j implements with it."""

        implements = ("java.util.concurrent.Callable",)

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function
        self.error: BaseException | None = None

    def call(self) -> Any:
        """Call the function; py4j would turn its exception into text."""
        try:
            self._function()
        except BaseException as error:  # noqa: BLE001 - it is raised where Java has returned
            self.error = error
