"""The sink that writes each batch of a query to a table of a database, over JDBC.

Spark's own writer fills a staging table. One transaction of the driver then takes its rows over,
and stores the batch's id.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, final
from uuid import uuid4

from pyspark.sql import Observation, types
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from fanout.errors import BatchNotWrittenError, FanOutError, OptionError
from fanout.spark.hadoop.jvm import jvm
from fanout.spark.sinks.tables.columns import check_kept, in_spark, staging_prefix
from fanout.spark.sinks.tables.jdbc_connection import JdbcPlace, sql_errors
from fanout.spark.sinks.tables.jdbc_table import find_table, qualifier
from fanout.spark.sinks.tables.merge import newest
from fanout.spark.sinks.tables.table_sink import KeyedSink

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from fanout.spark.sinks.sink_batch import SinkBatch
    from fanout.spark.sinks.tables.jdbc_table import JdbcTable
    from fanout.spark.workers.loop_thread import LoopThread

log = logging.getLogger(__name__)

# Oracle had names of up to 30 letters for long: fanout_, ten digits, _, and ten digits.
_DIGITS: Final = 10
_NESTED: Final = (types.StructType, types.MapType, types.ArrayType)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class JdbcSink(KeyedSink):
    """Write each batch of a query to a table over JDBC, exactly once; a handler.

    Spark's tasks write the rows of a batch into a staging table. One transaction then takes these
    rows over and stores the batch's id in the table `fanout_batches`, and a batch whose id is there
    is skipped. The database needs transactions, and Spark the jar of its driver. A handler of the
    user's own calls `write`.

    The rows are appended. With `key` and `latest_by` they are upserted: a row is inserted where the
    table has none of its key, and takes the place of one that is not newer. The columns are found
    by their names. A batch is refused where the types of the table would cut or round values.

    Args:
        table: The table's name as SQL has it, with its schema if that is not the user's. It has to
            exist.
        url: The URL of the database, which begins with `jdbc:`, without a password.
        driver: The class of the driver, for example `"oracle.jdbc.OracleDriver"`.
        properties: The properties of a connection, such as `user` and `password`, or a function
            that returns them, called on the driver: so no password has to be in the program.
            Settings of Spark's writer such as `batchsize` may be among them.
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
    url: str
    driver: str
    properties: Mapping[str, str] | Callable[[], Mapping[str, str]] = field(repr=False)
    sink_name: str = "jdbc"

    def prepare(self, spark: SparkSession, loop: LoopThread) -> None:  # noqa: ARG002 - the protocol's
        """Check that Spark has the driver, and that the table exists.

        Raises:
            SetupError: Spark has no such driver, or the database has no transactions.
            OptionError: There is no such table, or an option does not fit the driver.
            ServiceError: The database cannot be connected to, or it refuses the user.
        """
        self._require(spark)
        with self._place.transaction(spark) as connection:
            find_table(spark, connection, self.table).create_batches()

    @property
    def _place(self) -> JdbcPlace:
        return JdbcPlace(self.url, self.driver, self.properties)

    @property
    def _destination(self) -> str:
        return f"the table {self.table} over JDBC"

    def _require(self, spark: SparkSession) -> None:
        self._place.require_driver(spark)

    def _check(self) -> None:
        self._check_key()
        if self.sink_name != self.sink_name.lower():
            raise OptionError(
                f"sink_name={self.sink_name!r} must be in lower case, as a database may take "
                f"names for the same that differ in case alone"
            )
        qualifier(self.table)
        self._place.check()

    def _write(self, rows: DataFrame, batch: SinkBatch) -> None:
        self._check_columns(rows.schema)
        _check_types(rows.schema)
        spark, place = rows.sparkSession, self._place
        prefix = staging_prefix(batch.writer, _DIGITS)
        with place.transaction(spark) as connection:
            table = find_table(spark, connection, self.table)
            known = table.known(rows.columns)
            if self.latest_by is not None:
                table.check_key()
            table.create_batches()
            if batch.is_in(self._destination, table.newest(batch.writer)):
                log.info("batch %d is in %s already", batch.batch_id, self.table)
                return
            batch.ownership.check()
            table.drop_left(prefix)
            columns = [known[name] for name in rows.columns]
            staging = table.create_staging(f"{prefix}{uuid4().hex[:_DIGITS]}", columns)
        keys = [known[name] for name in self._keys]
        latest_by = None if self.latest_by is None else known[self.latest_by]
        staged = self._stage(rows.toDF(*columns), table, staging, keys, latest_by)
        batch.ownership.check()
        with place.transaction(spark) as connection:
            table = replace(table, connection=connection)
            # It waits for the transaction of another run, and then finds the batch written.
            if not table.store(batch):
                batch.is_in(self._destination, table.newest(batch.writer))
            else:
                found = table.take_over(staging, columns, keys, latest_by)
                _check_count(batch, self._destination, staged, found)
        try:
            with place.transaction(spark) as connection:
                replace(table, connection=connection).drop_left(prefix)
        except FanOutError as error:
            # The batch is written; the next one drops them.
            log.warning("staging tables of %s are left: %s", self.table, error)

    def _stage(
        self,
        rows: DataFrame,
        table: JdbcTable,
        staging: str,
        keys: Sequence[str],
        latest_by: str | None,
    ) -> int:
        """Let Spark's tasks write the rows into a staging table, and return their number."""
        if latest_by is not None:
            rows = newest(rows, keys, latest_by)
        zone = str(jvm(rows.sparkSession).java.util.TimeZone.getDefault().getID())
        altering = table.altering(rows.schema, zone)
        null = " OR ".join(f"{in_spark(name)} IS NULL" for name in keys) or "false"
        conditions = {"without_key": null} | {
            f"altered_{number}": condition for number, condition in enumerate(altering.values())
        }
        options, limit = self._place.writing()
        if limit is not None:
            # Spark's writer would do that behind the counts, which are lost then.
            rows = rows.coalesce(limit)
        # What it counts is the rows of tasks that have ended, each once.
        counts = Observation()
        counted = rows.observe(
            counts,
            F.count(F.lit(1)).alias("rows"),
            *(F.count(F.when(F.expr(one), 1)).alias(name) for name, one in conditions.items()),
        )
        with sql_errors(rows.sparkSession):
            writer = counted.write.format("jdbc").options(**options)
            writer.option("dbtable", staging).mode("append").save()
        found = counts.get
        kinds = {column.name: column for column in table.described}
        altered = {name: found[f"altered_{n}"] for n, name in enumerate(altering)}
        check_kept(table.name, kinds, altered)
        if found["without_key"]:
            raise BatchNotWrittenError(
                f"the batch was not written to {self._destination}: rows have a null in the key "
                f"{', '.join(keys)}, and SQL takes each null for another key; leave such rows out, "
                f"or replace the nulls"
            )
        return int(found["rows"])


def _check_types(schema: StructType) -> None:
    for column in schema:
        if isinstance(column.dataType, _NESTED):
            raise OptionError(
                f"the column {column.name!r} is {column.dataType.simpleString()}, which JDBC has "
                f"not: make a string of it, for example with to_json"
            )


def _check_count(batch: SinkBatch, destination: str, staged: int, found: int) -> None:
    """Check that the staging table had each row once; a task may have written it twice."""
    if found != staged:
        raise BatchNotWrittenError(
            f"batch {batch.batch_id} was not written to {destination}: the database has {found} "
            f"rows where the tasks have written {staged}, as where a task ran twice or after a "
            f"failover; start the query again"
        )
