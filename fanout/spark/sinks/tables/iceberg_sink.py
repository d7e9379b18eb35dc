"""The sink that writes each batch of a query to a table of Apache Iceberg."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from fanout.errors import OptionError
from fanout.spark.hadoop.jvm import first_and_last_cause, is_caused_by
from fanout.spark.sinks.sink_batch import WrittenBatch
from fanout.spark.sinks.tables.conflicts import in_attempts
from fanout.spark.sinks.tables.iceberg_history import current_history
from fanout.spark.sinks.tables.iceberg_summary import commit_with_summary, require_own_threads
from fanout.spark.sinks.tables.java_class import require_extension
from fanout.spark.sinks.tables.keyed_sink import KeyedSink
from fanout.spark.sinks.tables.merge import merge, newest_once

if TYPE_CHECKING:
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
