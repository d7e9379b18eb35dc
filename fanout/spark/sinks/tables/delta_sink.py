"""The sink that writes each batch of a query to a table of Delta Lake.

A table remembers the newest batch of a writer as a transaction, also where `RESTORE` or `REPLACE
TABLE` has taken its rows back. Its history tells that: each commit of a batch has a mark.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

from pyspark.sql import DataFrame

from fanout.core.option_checks import location_text
from fanout.errors import OptionError, SetupError
from fanout.spark.hadoop.jvm import is_caused_by, jvm, require_extension
from fanout.spark.sinks.sink_batch import WrittenBatch
from fanout.spark.sinks.tables.columns import in_spark
from fanout.spark.sinks.tables.merge import in_attempts, merge, newest_once
from fanout.spark.sinks.tables.table_sink import KeyedSink

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

    from pyspark.sql import DataFrameWriter, Row, SparkSession

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
# A batch that may come again was committed lately.
_COMMITS: Final = 1000


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
    path: str | PathLike[str] | None = None
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
        return self.table or self._path or ""

    @property
    def _path(self) -> str | None:
        return None if self.path is None else location_text("path", self.path)

    def _check(self) -> None:
        self._check_key()
        given = [one for one in (self.table, self._path) if one is not None]
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
        table = delta_table(spark, self.table, self._path)
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
            directory = delta_table(spark, None, self._path).deltaLog().dataPath()
            target = f"delta.{in_spark(str(directory.toString()))}"
        settings = {f"{_TRANSACTION}.{name}": value for name, value in transaction.items()}
        merge(rows, target, self._keys, self.latest_by, settings | {_METADATA: metadata})

    def _save(self, writer: DataFrameWriter) -> None:
        if self.table is not None:
            writer.format("delta").saveAsTable(self.table)
        else:
            writer.format("delta").save(self._path)


def mark_of(batch: SinkBatch) -> str:
    """Return the mark of a batch, which its commit has in its user metadata."""
    return f"fanout:{batch.writer}:{batch.batch_id}:{batch.content}"


@final
@dataclass(frozen=True, slots=True)
class DeltaTransaction:
    """What a table of Delta knows of a writer when a batch comes."""

    newest: WrittenBatch | None  # that the table holds; None if all are before the one that comes
    writer: str  # the name under which the one that comes can be committed


def delta_table(spark: SparkSession, table: str | None, path: str | None) -> Any:
    """Return a table, by its name or path, as Delta's `DeltaTable` of Java; None without one."""
    session: Any = spark._jsparkSession  # noqa: SLF001 - pyspark's only door to the session
    tables = jvm(spark).io.delta.tables.DeltaTable
    if table is not None:
        return tables.forName(session, table) if spark.catalog.tableExists(table) else None
    return tables.forPath(session, path) if tables.isDeltaTable(session, path) else None


def find_transaction(spark: SparkSession, table: Any, batch: SinkBatch) -> DeltaTransaction:
    """Find what a table, or None where there is none, knows of the writer of a batch."""
    stored = None if table is None else _stored(spark, table, batch.writer)
    if stored is None or stored < batch.batch_id:
        return DeltaTransaction(None, batch.writer)
    commits = DataFrame(table.history(_COMMITS), spark).collect()
    batches = {commit.version: _marked(commit, batch.writer) for commit in commits}
    if all(one is None or one.batch_id < batch.batch_id for one in batches.values()):
        return DeltaTransaction(WrittenBatch(stored), batch.writer)  # its commit has no mark
    held, taken_back = _held_versions(spark, commits)
    found = [one for version, one in batches.items() if one is not None and version in held]
    newest = max(found, key=lambda one: one.batch_id, default=None)
    # Delta would skip the batch under the name that it was committed under before.
    return DeltaTransaction(newest, f"{batch.writer}@{taken_back}")


def _stored(spark: SparkSession, table: Any, writer: str) -> int | None:
    """Return the id of the newest transaction of a writer, as Delta compares it."""
    session: Any = spark._jsparkSession  # noqa: SLF001 - as above
    log = jvm(spark).org.apache.spark.sql.delta.DeltaLog
    snapshot = log.forTableWithSnapshot(session, table.deltaLog().dataPath()).productElement(1)
    found = snapshot.transactions().get(writer)
    return int(found.get()) if found.isDefined() else None


def _marked(commit: Row, writer: str) -> WrittenBatch | None:
    """Return the batch of a writer that a commit has the mark of."""
    mark = re.search(rf"fanout:{re.escape(writer)}:(\d+):(\w*)$", commit.userMetadata or "")
    return None if mark is None else WrittenBatch(int(mark[1]), mark[2])


def _held_versions(spark: SparkSession, commits: Sequence[Row]) -> tuple[set[int], int]:
    """Return a table's versions, and that of its newest restore or replacement."""
    by_version = {commit.version: commit for commit in commits}
    version, held, taken_back = max(by_version), set(), 0
    while (commit := by_version.get(version)) is not None:
        operation = commit.operation or ""
        if operation == "RESTORE" or "REPLACE TABLE" in operation:
            taken_back = max(taken_back, version)
        if "REPLACE TABLE" in operation:
            break
        if operation == "RESTORE":
            version = _restored(spark, commit, commits)
        else:
            held.add(version)
            version -= 1
    return held, taken_back


def _restored(spark: SparkSession, restore: Row, commits: Sequence[Row]) -> int:
    """Return the version that a restore went back to."""
    given = restore.operationParameters
    if given.get("version") is not None:
        return int(given["version"])
    at = jvm(spark).java.sql.Timestamp.valueOf(given["timestamp"]).getTime()
    before = (one.version for one in commits if one.version < restore.version)
    times = {one.version: one.timestamp.timestamp() * 1000 for one in commits}
    return max((version for version in before if times[version] <= at), default=-1)
