"""Which batches a table of Delta Lake holds, without those that were taken back.

A table remembers the newest batch of a writer as a transaction, also where `RESTORE` or `REPLACE
TABLE` has taken its rows back. Its history tells that: each commit of a batch has a mark.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

from pyspark.sql import DataFrame

from fanout.spark.hadoop.jvm import jvm
from fanout.spark.sinks.sink_batch import WrittenBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Row, SparkSession

    from fanout.spark.sinks.sink_batch import SinkBatch

# A batch that may come again was committed lately.
_COMMITS: Final = 1000


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
