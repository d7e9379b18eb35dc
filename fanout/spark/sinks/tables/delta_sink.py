"""The sink that writes each batch of a query to a table of Delta Lake."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from pyspark.sql import DataFrame

from fanout.errors import OptionError, SetupError
from fanout.spark.hadoop.jvm import is_caused_by
from fanout.spark.sinks.tables.columns import in_spark
from fanout.spark.sinks.tables.conflicts import in_attempts
from fanout.spark.sinks.tables.delta_history import delta_table, find_transaction, mark_of
from fanout.spark.sinks.tables.java_class import require_extension
from fanout.spark.sinks.tables.keyed_sink import KeyedSink
from fanout.spark.sinks.tables.merge import merge, newest_once

if TYPE_CHECKING:
    from pyspark.sql import DataFrameWriter, SparkSession

    from fanout.spark.sinks.sink_batch import SinkBatch

log = logging.getLogger(__name__)

_EXTENSION: Final = "io.delta.sql.DeltaSparkSessionExtension"
# MERGE takes the names of a transaction from settings alone.
_TRANSACTION: Final = "spark.databricks.delta.write"
_METADATA: Final = "spark.databricks.delta.commitInfo.userMetadata"
_REBASES: Final = (
    "spark.sql.parquet.datetimeRebaseModeInWrite",
    "spark.sql.parquet.int96RebaseModeInWrite",
)
# Another writer has committed, or has created the table, since it was looked at.
_CONFLICTS: Final = (
    "org.apache.spark.sql.delta.DeltaConcurrentModificationException",
    "org.apache.spark.sql.catalyst.analysis.TableAlreadyExistsException",
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSink(KeyedSink):
    """Write each batch of a query to a table of Delta Lake, exactly once; a handler.

    The commit of a batch stores its id as `txnVersion`, under `{query id}/{sink_name}` as
    `txnAppId`, and a mark in its user metadata. A batch that the table holds is skipped. A handler
    of the user's own calls `write`. See https://docs.delta.io/latest/delta-streaming.html#idempotent-table-writes-in-foreachbatch

    The rows are appended. With `key` and `latest_by` they are merged: a row is inserted where the
    table has none of its key, and takes the place of one that is not newer. A table that does not
    exist is created with the columns of the first batch.

    Args:
        table: The table's name in the catalog; either this or path.
        path: The table's directory.
        key: The columns that tell rows apart; empty appends.
        latest_by: The column whose greatest value is the newest row of a key, such as an event time
            or a version.
        transform: Makes of a batch what is written, for example `lambda df: df.select(...)`.
        sink_name: The sink's name, where a handler has several; it must not change while a query
            lives.

    Raises:
        OptionError: If an option is malformed, or two contradict each other.
    """

    table: str | None = None
    path: str | None = None
    sink_name: str = "delta"

    def _require(self, spark: SparkSession) -> None:
        require_extension(
            spark,
            _EXTENSION,
            "Delta: start Spark with --packages io.delta:delta-spark_..., for its version, and the "
            "settings spark.sql.extensions and spark.sql.catalog.spark_catalog of Delta's guide",
        )
        for name in _REBASES:
            if str(spark.conf.get(name)).upper() == "LEGACY":
                raise SetupError(
                    f"{name} is LEGACY, and other readers take the days before 1582-10-15 for "
                    f"others then: set it to CORRECTED"
                )

    @property
    def _destination(self) -> str:
        return self.table or self.path or ""

    def _check(self) -> None:
        self._check_key()
        given = [one for one in (self.table, self.path) if one is not None]
        if len(given) != 1 or not isinstance(given[0], str) or not given[0]:
            raise OptionError("name the Delta table with either table= or path=")

    def _write(self, rows: DataFrame, batch: SinkBatch) -> None:
        self._check_columns(rows.schema)
        with newest_once(rows, self._keys, self.latest_by) as newest:
            in_attempts(
                lambda: self._attempt(newest, batch),
                lambda error: is_caused_by(error, *_CONFLICTS),
            )

    def _attempt(self, rows: DataFrame, batch: SinkBatch) -> None:
        spark = rows.sparkSession
        table = delta_table(spark, self.table, self.path)
        found = find_transaction(spark, table, batch)
        if batch.is_in(self._destination, found.newest):
            log.info("batch %d is in %s already", batch.batch_id, self._destination)
            return
        if table is not None:
            self._check_kept(rows, DataFrame(table.toDF(), spark).schema)
        batch.ownership.check()
        transaction = {"txnAppId": found.writer, "txnVersion": str(batch.batch_id)}
        metadata = " ".join(filter(None, (spark.conf.get(_METADATA, None), mark_of(batch))))
        if table is None:
            # The commit that creates a table by its name takes no metadata.
            self._save(rows.limit(0).write.mode("ignore"))
        if self.latest_by is None:
            writer = rows.write.options(**transaction, userMetadata=metadata)
            self._save(writer.mode("append"))
            return
        target = self.table
        if target is None:
            # SQL finds no relative path.
            directory = delta_table(spark, None, self.path).deltaLog().dataPath()
            target = f"delta.{in_spark(str(directory.toString()))}"
        settings = {f"{_TRANSACTION}.{name}": value for name, value in transaction.items()}
        merge(rows, target, self._keys, self.latest_by, settings | {_METADATA: metadata})

    def _save(self, writer: DataFrameWriter) -> None:
        if self.table is not None:
            writer.format("delta").saveAsTable(self.table)
        else:
            writer.format("delta").save(self.path)
