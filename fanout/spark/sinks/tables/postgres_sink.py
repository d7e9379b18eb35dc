"""The sink that writes each batch of a query to a table of PostgreSQL.

The tasks copy rows into tables of their own. The driver then takes the rows over, in one
transaction with the batch's id, and drops these tables.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, final

from pyspark.errors import PySparkException

from fanout.core.remote_error import ErrorWire
from fanout.errors import BatchNotWrittenError, OptionError
from fanout.spark.sinks.sink_batch import WrittenBatch
from fanout.spark.sinks.tables.columns import BATCHES, check_kept, staging_prefix
from fanout.spark.sinks.tables.postgres_connection import (
    REPORT_SCHEMA,
    CopyTask,
    copy_rows,
    is_conflict,
    quoted,
    transaction,
)
from fanout.spark.sinks.tables.postgres_table import column_types, find_table, name_parts
from fanout.spark.sinks.tables.table_sink import KeyedSink
from fanout.spark.workers.worker_check import WorkerCheck, ask_workers, import_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame, Row, SparkSession

    from fanout.spark.sinks.sink_batch import SinkBatch
    from fanout.spark.sinks.tables.postgres_table import TargetTable
    from fanout.spark.workers.loop_thread import LoopThread

log = logging.getLogger(__name__)

_WORKERS: Final = WorkerCheck(
    work="the sink",
    modules=("fanout.spark.sinks.tables.postgres_connection", "adbc_driver_postgresql.dbapi"),
    extras="postgres,spark",
)
# Of the last transaction, where another one is in its way.
_ATTEMPTS: Final = 5


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresSink(KeyedSink):
    """Write each batch of a query to a table of PostgreSQL, exactly once; a handler.

    Spark's tasks copy the rows of a batch into tables of their own. One transaction then takes
    these rows over and stores the batch's id in the table `fanout_batches`, and a batch whose id is
    there is skipped. A handler of the user's own calls `write`.

    The rows are appended. With `key` and `latest_by` they are upserted: a row is inserted where the
    table has none of its key, and takes the place of one that is not newer. The columns are found
    by their names. A batch is refused where the types of the table would cut or round values.

    Args:
        table: The table, with its schema if that is not on the search path, in the same case; a
            part with a dot in it stands between quotation marks. It has to exist.
        dsn: The connection string of libpq, or a function that returns it, called on the driver and
            in Spark's workers: so no password has to be in the program. libpq also reads PGPASSWORD
            and ~/.pgpass.
        key: The columns that tell rows apart, with a unique constraint; empty appends.
        latest_by: The column whose greatest value is the newest row of a key, such as an event time
            or a version.
        transform: Makes of a batch what is written, for example `lambda df: df.select(...)`.
        sink_name: The sink's name, where a handler has several; it must not change while a query
            lives.

    Raises:
        OptionError: If an option is malformed, or two contradict each other.
    """

    table: str
    dsn: str | Callable[[], str] = field(repr=False)
    sink_name: str = "postgres"

    def prepare(self, spark: SparkSession, loop: LoopThread) -> None:  # noqa: ARG002 - the protocol's
        """Check that the workers have the driver, and that the table exists.

        Raises:
            SetupError: Spark's Python workers cannot run the tasks of the sink.
            OptionError: There is no such table, or dsn is malformed.
            ServiceError: The server cannot be reached, or it refuses the user.
        """
        with transaction(self.dsn) as database:
            find_table(database, self.table)
        ask_workers(spark.sparkContext, _WORKERS)

    @property
    def _destination(self) -> str:
        return f"the table {self.table} of PostgreSQL"

    def _check(self) -> None:
        self._check_key()
        name_parts(self.table)
        if not callable(self.dsn) and not (isinstance(self.dsn, str) and self.dsn):
            raise OptionError("dsn must be a connection string, or a function that returns one")

    def _write(self, rows: DataFrame, batch: SinkBatch) -> None:
        self._check_columns(rows.schema)
        types = column_types(rows.schema)
        with transaction(self.dsn) as database:
            target = find_table(database, self.table)
            _check_known(types, target)
            if batch.is_in(self._destination, _newest(database, target, batch.writer)):
                log.info("batch %d is in %s already", batch.batch_id, self.table)
                return
            batch.ownership.check()
            prefix = staging_prefix(batch.writer, 16)
            _drop_left(database, target.schema, prefix)
        task = CopyTask(self.dsn, target.schema, prefix, [*types.items()])
        copied = self._copy(rows, task)
        for attempt in range(1, _ATTEMPTS + 1):
            batch.ownership.check()
            try:
                with transaction(self.dsn) as database:
                    self._take_over(database, target, batch, types, copied)
            except BatchNotWrittenError as error:
                if not is_conflict(error) or attempt == _ATTEMPTS:
                    raise
                log.info("batch %d is tried again: %s", batch.batch_id, error)
            else:
                return

    def _copy(self, rows: DataFrame, task: CopyTask) -> Sequence[Row]:
        """Run the job that copies the rows, and return the reports of its tasks."""
        try:
            reports = rows.mapInArrow(copy_rows(task), REPORT_SCHEMA).collect()
        except PySparkException as error:
            if (missing := import_error(error)) is not None:
                raise missing from error
            raise
        for report in reports:
            if report.failure is not None:
                raise ErrorWire.from_json(report.failure).error("a task of the sink failed: ")
        return reports

    def _take_over(
        self,
        database: Any,
        target: TargetTable,
        batch: SinkBatch,
        types: Mapping[str, str],
        copied: Sequence[Row],
    ) -> None:
        """Insert the rows of staging tables and the batch's id, in one transaction."""
        staging = [report.staging for report in copied]
        with database.cursor() as cursor:
            # It waits for the transaction of another run, and then finds the batch written.
            cursor.execute(
                f"INSERT INTO {quoted(target.schema, BATCHES)} AS b"  # noqa: S608 - quoted
                f" (writer, batch_id, written_at, content) VALUES ($1, $2, now(), $3)"
                f" ON CONFLICT (writer) DO UPDATE SET batch_id = excluded.batch_id,"
                f" written_at = excluded.written_at, content = excluded.content"
                f" WHERE b.batch_id < excluded.batch_id RETURNING batch_id",
                (batch.writer, batch.batch_id, batch.content),
            )
            is_new = cursor.fetchone() is not None
            if not is_new:
                batch.is_in(self._destination, _newest(database, target, batch.writer))
            if is_new and staging:
                altering = target.altering(types)
                cursor.execute(target.count(staging, self._keys, altering))
                total, without_key, *altered = cursor.fetchone()
                self._check_counts(
                    batch, sum(report.rows for report in copied), (total, without_key)
                )
                kinds = {name: column.kind for name, column in target.columns.items()}
                check_kept(target.name, kinds, dict(zip(altering, altered, strict=True)))
                cursor.execute(target.insert([*types], staging, self._keys, self.latest_by))
            for table in staging:
                cursor.execute(f"DROP TABLE {quoted(target.schema, table)}")

    def _check_counts(self, batch: SinkBatch, copied: int, counts: tuple[int, int]) -> None:
        found, without_key = counts
        failed = f"batch {batch.batch_id} was not written to {self._destination}"
        if found != copied:
            raise BatchNotWrittenError(
                f"{failed}: the server has {found} of the {copied} rows that the tasks have "
                f"copied, as after a crash or a failover; start the query again"
            )
        if without_key:
            raise BatchNotWrittenError(
                f"{failed}: {without_key} rows have a null in the key {', '.join(self._keys)}, and "
                f"PostgreSQL takes each null for another key; leave such rows out, or replace the "
                f"nulls"
            )


def _check_known(types: Mapping[str, str], target: TargetTable) -> None:
    for name, kind in types.items():
        if name not in target.columns:
            raise OptionError(
                f"the table {target.name} has no column {name!r}; it has "
                f"{', '.join(target.columns)}: rename the column, or leave it out"
            )
        target.columns[name].check_takes(name, kind)


def _newest(database: Any, target: TargetTable, writer: str) -> WrittenBatch | None:
    with database.cursor() as cursor:
        cursor.execute(
            f"SELECT batch_id, coalesce(content, '') FROM {quoted(target.schema, BATCHES)}"  # noqa: S608 - quoted
            f" WHERE writer = $1",
            (writer,),
        )
        found = cursor.fetchone()
        return None if found is None else WrittenBatch(*found)


def _drop_left(database: Any, schema: str, prefix: str) -> None:
    """Drop the staging tables that an earlier attempt has left."""
    with database.cursor() as cursor:
        cursor.execute(
            "SELECT tablename::text FROM pg_tables"
            " WHERE schemaname = $1 AND starts_with(tablename::text, $2)",
            (schema, prefix),
        )
        for (table,) in cursor.fetchall():
            cursor.execute(f"DROP TABLE IF EXISTS {quoted(schema, table)}")
