"""The sink that writes each batch of a query to a table of Delta Lake."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from fanout.errors import OptionError
from fanout.spark.tables.columns import in_spark
from fanout.spark.tables.java_class import require_extension
from fanout.spark.tables.keyed_sink import KeyedSink
from fanout.spark.tables.merge import merge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

    from fanout.spark.tables.table_sink import SinkBatch

_EXTENSION: Final = "io.delta.sql.DeltaSparkSessionExtension"
# MERGE takes the names of a transaction from settings alone.
_TRANSACTION: Final = "spark.databricks.delta.write"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSink(KeyedSink):
    """Write each batch of a query to a table of Delta Lake, exactly once; a handler.

    The commit of a batch stores its id as `txnVersion`, under `{query id}/{sink_name}` as
    `txnAppId`; Delta skips a batch that it has committed. A handler of the user's own calls
    `write`. See https://docs.delta.io/latest/delta-streaming.html#idempotent-table-writes-in-foreachbatch

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
        transaction = {"txnAppId": batch.writer, "txnVersion": str(batch.batch_id)}
        batch.ownership.check()
        if self.latest_by is None:
            self._save(rows.write.options(**transaction).mode("append"))
            return
        self._save(rows.limit(0).write.mode("ignore"))  # creates it
        target = self.table or f"delta.{in_spark(self._destination)}"
        settings = {f"{_TRANSACTION}.{name}": value for name, value in transaction.items()}
        merge(rows, target, self._keys, self.latest_by, settings)

    def _save(self, writer: DataFrameWriter) -> None:
        if self.table is not None:
            writer.format("delta").saveAsTable(self.table)
        else:
            writer.format("delta").save(self.path)
