"""Batches in real databases over JDBC: rows and the batch's id in one transaction."""

from __future__ import annotations

import traceback
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pyspark
import pytest

from fanout.errors import (
    BatchNotWrittenError,
    CheckpointError,
    OptionError,
    ServiceError,
    SetupError,
)
from fanout.landing.claims import run_name
from fanout.spark import JdbcSink
from fanout.spark.sinks.tables.jdbc_connection import sql_errors
from fanout.spark.sinks.tables.jdbc_table import JdbcTable, columns_of, qualifier
from fanout.spark.sinks.tables.jdbc_values import JdbcColumn
from tests.spark.sinks.kafka.harness import CONTENT, OTHER, run
from tests.spark.sinks.tables.jdbc_databases import PASSWORD, Database, database
from tests.support.manual_source import ManualSource
from tests.support.spark.harness import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from fanout.spark import FanOutQuery

pytestmark = pytest.mark.spark

ORDERS = "CREATE TABLE orders (id integer, version smallint, item varchar(12))"
ALL = "SELECT * FROM orders"
BATCHES = "SELECT writer, batch_id FROM fanout_batches"


@pytest.fixture(params=[pytest.param("derby", marks=pytest.mark.long), "h2"])
def db(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Iterator[Database]:
    """A database with a table of orders."""
    with database(spark, request.param, tmp_path) as found:
        found.run(ORDERS)
        yield found


@pytest.fixture
def derby(spark: SparkSession, tmp_path: Path) -> Iterator[Database]:
    """A database of one kind, for what does not depend on it."""
    with database(spark, "derby", tmp_path) as found:
        found.run(ORDERS)
        yield found


def orders(spark: SparkSession, *rows: tuple[Any, int | None, str]) -> DataFrame:
    return spark.createDataFrame([*rows], "id bigint, version int, item string").repartition(2)


@pytest.mark.fault("A batch comes again that the table has")
def test_a_batch_that_comes_again_is_written_once(
    spark: SparkSession, db: Database, tmp_path: Path
) -> None:
    sink = db.sink()
    with run(spark, tmp_path) as here:
        here.call(sink, orders(spark, (1, 1, "figs"), (2, 1, "tea")), 0)
        here.call(sink, orders(spark, (1, 1, "figs"), (2, 1, "tea")), 0)
        here.call(sink, orders(spark, (3, 1, "nuts")), 1)
        here.call(sink, orders(spark), 2)
        read = "CAST(raise_error('it is read again') AS string) AS item"
        here.call(sink, orders(spark, (9, 1, "oil")).selectExpr("id", read), 2)
        writer = f"{here.query_id}/jdbc"
    assert db.run(ALL) == [(1, 1, "figs"), (2, 1, "tea"), (3, 1, "nuts")]
    assert db.run(BATCHES) == [(writer, Decimal(2))]
    assert db.staging() == []


@pytest.mark.long
def test_a_batch_of_an_older_checkpoint_is_not_taken_for_the_one_that_is_written(
    spark: SparkSession, db: Database, tmp_path: Path
) -> None:
    sink = db.sink()
    with run(spark, tmp_path) as here:
        writer = f"{here.query_id}/jdbc"
        # As an earlier version has left it.
        db.run(
            "CREATE TABLE fanout_batches (writer VARCHAR(255) NOT NULL PRIMARY KEY,"
            " batch_id NUMERIC(19) NOT NULL)",
            f"INSERT INTO fanout_batches VALUES ('{writer}', 0)",  # noqa: S608 - ours
        )
        here.call(sink, orders(spark, (1, 1, "figs")), 0, content=CONTENT)
        here.call(sink, orders(spark, (2, 1, "tea")), 1, content=CONTENT)
        here.call(sink, orders(spark, (2, 1, "tea")), 1, content=CONTENT)
        with pytest.raises(CheckpointError, match="which holds another batch with this id"):
            here.call(sink, orders(spark, (3, 1, "nuts")), 1, content=OTHER)
        with pytest.raises(CheckpointError, match=r"batch 0 was .* holds the later batch 1"):
            here.call(sink, orders(spark, (3, 1, "nuts")), 0, content=OTHER)
    assert db.run(ALL) == [(2, 1, "tea")]
    assert db.staging() == []


@pytest.mark.long
def test_a_copy_of_a_checkpoint_that_writes_the_same_batch_is_found_in_the_transaction(
    spark: SparkSession, derby: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, stage = derby.sink(), JdbcSink._stage
    with run(spark, tmp_path) as here:

        def stage_later(self: JdbcSink, *arguments: Any) -> int:
            monkeypatch.undo()
            here.call(sink, orders(spark, (1, 1, "figs")), 0, content=OTHER)
            return stage(self, *arguments)

        monkeypatch.setattr(JdbcSink, "_stage", stage_later)
        monkeypatch.setattr(JdbcTable, "drop_left", lambda *_: None)
        with pytest.raises(CheckpointError, match="which holds another batch with this id"):
            here.call(sink, orders(spark, (2, 1, "tea")), 0, content=CONTENT)
    assert derby.run(ALL) == [(1, 1, "figs")]


@pytest.mark.long
def test_each_query_and_each_sink_counts_for_itself(
    spark: SparkSession, derby: Database, tmp_path: Path
) -> None:
    rows = orders(spark, (1, 1, "figs"))
    for checkpoint in ("one", "two"):
        with run(spark, tmp_path / checkpoint) as here:
            here.call(derby.sink(), rows, 5)
            here.call(derby.sink(sink_name="other"), rows, 5)
    assert derby.run(ALL) == [(1, 1, "figs")] * 4


def test_the_newest_row_of_a_key_stays(spark: SparkSession, db: Database, tmp_path: Path) -> None:
    sink = db.sink(key="id", latest_by="version")
    db.run("CREATE UNIQUE INDEX by_id ON orders (id)", "INSERT INTO orders VALUES (4, null, 'old')")
    with run(spark, tmp_path) as here:
        here.call(sink, orders(spark, (1, 2, "b"), (1, 3, "c"), (1, 1, "a"), (2, 5, "x")), 0)
        rows = [(1, 2, "late"), (2, 6, "y"), (3, 1, "z"), (4, 1, "new")]
        here.call(sink, orders(spark, *rows), 1)
        here.call(sink, orders(spark, (1, 3, "same"), (2, None, "late")), 2)
    assert db.run(ALL) == [(1, 3, "same"), (2, 6, "y"), (3, 1, "z"), (4, 1, "new")]


@pytest.mark.long
def test_rows_without_a_key_are_refused(
    spark: SparkSession, derby: Database, tmp_path: Path
) -> None:
    sink = derby.sink(key="id", latest_by="version")
    with (
        run(spark, tmp_path) as here,
        pytest.raises(BatchNotWrittenError, match="rows have a null in the key ID"),
    ):
        here.call(sink, orders(spark, (1, 1, "figs"), (None, 1, "tea")), 0)
    assert derby.run(ALL) == derby.run(BATCHES) == []


@pytest.mark.long
def test_keys_that_the_database_takes_for_the_same_are_refused(
    spark: SparkSession, db: Database, tmp_path: Path
) -> None:
    db.run("CREATE TABLE prices (item char(4), version smallint)")
    sink = db.sink(table="prices", key="item", latest_by="version")
    rows = spark.createDataFrame([("tea", 1), ("tea ", 2)], "item string, version int")
    with (
        run(spark, tmp_path) as here,
        pytest.raises(BatchNotWrittenError, match="two keys of the batch are the same"),
    ):
        here.call(sink, rows, 0)
    assert db.run("SELECT * FROM prices") == db.run(BATCHES) == []


@pytest.mark.long
def test_a_key_that_other_tables_depend_on_is_refused(
    spark: SparkSession, db: Database, tmp_path: Path
) -> None:
    db.run(
        "CREATE TABLE customers (id integer NOT NULL PRIMARY KEY, version smallint)",
        "CREATE TABLE addresses (customer integer REFERENCES customers (id) ON DELETE CASCADE)",
    )
    rows = spark.createDataFrame([(1, 1)], "id int, version int")
    with run(spark, tmp_path) as here:
        sink = db.sink(table="customers", key="id", latest_by="version")
        with pytest.raises(OptionError, match=r"(?i)rows of addresses are deleted or changed"):
            here.call(sink, rows, 0)
        here.call(db.sink(table="customers"), rows, 0)
    assert db.run("SELECT * FROM customers") == [(1, 1)]


@pytest.mark.long
def test_a_schema_whose_name_is_like_another_is_not_that_one(
    spark: SparkSession, db: Database, tmp_path: Path
) -> None:
    with run(spark, tmp_path) as here:
        for schema in ("etl11", "etl_1"):
            db.run(f"CREATE SCHEMA {schema}", ORDERS.replace("orders", f"{schema}.orders"))
            here.call(db.sink(table=f"{schema}.orders"), orders(spark, (1, 1, "figs")), 0)
            read = db.run(f"SELECT * FROM {schema}.orders")  # noqa: S608 - a name of ours
            assert read == [(1, 1, "figs")]


@pytest.mark.long
def test_a_name_that_a_database_may_take_for_another_is_refused(derby: Database) -> None:
    with pytest.raises(OptionError, match="sink_name='Rows' must be in lower case"):
        derby.sink(sink_name="Rows")


def test_an_error_whose_class_the_driver_has_not_is_not_shown(spark: SparkSession) -> None:
    failing = spark.range(1).selectExpr("raise_error('java.sql.BatchUpdateException: SECRET')")
    with pytest.raises(BatchNotWrittenError, match="is not shown") as at, sql_errors(spark):
        failing.collect()
    assert "SECRET" not in "".join(traceback.format_exception(at.value))


@pytest.mark.long
@pytest.mark.parametrize(
    "url",
    [
        "jdbc:oracle:oci:scott/tiger@db",
        "jdbc:sqlserver://db;accessToken=abc",
        "jdbc:h2:tcp://db/shop;PASSWORD=abc",
    ],
)
def test_a_url_with_a_secret_is_refused(derby: Database, url: str) -> None:
    with pytest.raises(OptionError, match="url has a password in it"):
        derby.sink(url=url)


@pytest.mark.long
@pytest.mark.fault("The database refuses a value")
def test_what_a_constraint_refuses_leaves_nothing(
    spark: SparkSession, db: Database, tmp_path: Path
) -> None:
    sink, rows = db.sink(), orders(spark, (1, 1, "figs"), (2, 1, "SECRET"))
    db.run("ALTER TABLE orders ADD CONSTRAINT small CHECK (id < 2)")
    with run(spark, tmp_path) as here:
        for _ in range(2):
            with pytest.raises(BatchNotWrittenError, match=r"constraint .* \(SQLSTATE 23") as at:
                here.call(sink, rows, 0)
            assert "SECRET" not in str(at.value)
            assert db.run(ALL) == db.run(BATCHES) == []
            assert len(db.staging()) == 1, "that of the attempt before is dropped"
        db.run("ALTER TABLE orders DROP CONSTRAINT small")
        here.call(sink, rows, 0)
    assert db.run(ALL) == [(1, 1, "figs"), (2, 1, "SECRET")]
    assert db.staging() == []


@pytest.mark.fault("The connection to a database is lost before the commit")
@pytest.mark.long
@pytest.mark.parametrize("options", [{}, {"key": "id", "latest_by": "version"}])
def test_a_connection_that_is_lost_before_the_commit_leaves_nothing(
    spark: SparkSession,
    db: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
) -> None:
    sink, rows = db.sink(**options), orders(spark, (1, 1, "figs"))
    take_over = JdbcTable.take_over

    def lose(self: JdbcTable, *arguments: Any) -> int:
        found = take_over(self, *arguments)
        self.connection.rollback()  # as the server does
        self.connection.close()
        return found

    db.run("INSERT INTO orders VALUES (1, 0, 'old')")
    with run(spark, tmp_path) as here:
        with monkeypatch.context() as patch:
            patch.setattr(JdbcTable, "take_over", lose)
            with pytest.raises(BatchNotWrittenError, match="the database refuses"):
                here.call(sink, rows, 0)
        assert db.run(ALL) == [(1, 0, "old")]
        here.call(sink, rows, 0)
    assert db.run(ALL) == ([] if options else [(1, 0, "old")]) + [(1, 1, "figs")]


@pytest.mark.fault("A task of Spark has filled a staging table twice")
@pytest.mark.long
def test_a_task_that_wrote_twice_is_found(
    spark: SparkSession, db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, rows = db.sink(), orders(spark, (1, 1, "figs"), (2, 1, "tea"))
    stage = JdbcSink._stage

    def twice(self: JdbcSink, *arguments: Any) -> int:
        staged = stage(self, *arguments)
        (table,) = db.staging()
        db.run(f"INSERT INTO {table} SELECT * FROM {table}")  # noqa: S608 - a name of ours
        return staged

    with run(spark, tmp_path) as here:
        with monkeypatch.context() as patch:
            patch.setattr(JdbcSink, "_stage", twice)
            with pytest.raises(BatchNotWrittenError, match=r"has 4 rows where .* written 2"):
                here.call(sink, rows, 0)
        assert db.run(ALL) == db.run(BATCHES) == []
        here.call(sink, rows, 0)
    assert db.run(ALL) == [(1, 1, "figs"), (2, 1, "tea")]


@pytest.mark.fault("Two runs write one batch at once")
@pytest.mark.long
def test_two_runs_that_write_one_batch_write_it_once(
    spark: SparkSession, derby: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, rows = derby.sink(), orders(spark, (1, 1, "figs"))
    stage = JdbcSink._stage
    with run(spark, tmp_path) as here:

        def stage_later(self: JdbcSink, *arguments: Any) -> int:
            staged = stage(self, *arguments)
            monkeypatch.undo()
            # Another run commits the batch, and leaves the table of this one.
            monkeypatch.setattr(JdbcTable, "drop_left", lambda *_: None)
            here.call(sink, rows, 0)
            monkeypatch.undo()
            return staged

        monkeypatch.setattr(JdbcSink, "_stage", stage_later)
        here.call(sink, rows, 0)
    assert derby.run(ALL) == [(1, 1, "figs")]
    assert derby.staging() == []


@pytest.mark.fault("A killed attempt leaves files or tables behind")
@pytest.mark.long
@pytest.mark.parametrize("step", ["_stage", "take_over"])
def test_what_a_killed_attempt_left_is_dropped(
    spark: SparkSession, db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    sink, rows = db.sink(), orders(spark, (1, 1, "figs"))
    kind: Any = JdbcSink if step == "_stage" else JdbcTable
    original = getattr(kind, step)

    def die(*arguments: Any) -> None:
        original(*arguments)
        raise KeyboardInterrupt

    with run(spark, tmp_path) as here:
        with monkeypatch.context() as patch:
            patch.setattr(kind, step, die)
            with pytest.raises(KeyboardInterrupt):
                here.call(sink, rows, 0)
        assert len(db.staging()) == 1
        here.call(db.sink(sink_name="other"), orders(spark), 0)
        assert len(db.staging()) == 1, "of another sink"
        assert db.run(ALL) == []
        here.call(sink, rows, 0)
    assert db.staging() == []
    assert db.run(ALL) == [(1, 1, "figs")]


@pytest.mark.long
@pytest.mark.fault("A run that lost its checkpoint to another one writes nothing more")
def test_a_run_that_lost_the_checkpoint_writes_nothing(
    spark: SparkSession, derby: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run(spark, tmp_path) as here:
        stage = JdbcSink._stage

        def stage_then_lose(self: JdbcSink, *arguments: Any) -> int:
            staged = stage(self, *arguments)
            here.storage.delete(run_name(here.ownership.run))
            return staged

        monkeypatch.setattr(JdbcSink, "_stage", stage_then_lose)
        with pytest.raises(CheckpointError, match="this run stops"):
            here.call(derby.sink(), orders(spark, (1, 1, "figs")), 0)
    assert derby.run(ALL) == derby.run(BATCHES) == []


@pytest.mark.long
@pytest.mark.parametrize("properties", [{"numPartitions": "2"}, {"numpartitions": "8"}])
@pytest.mark.parametrize("options", [{}, {"key": "id", "latest_by": "version"}])
def test_the_number_of_connections_can_be_bounded(
    spark: SparkSession,
    derby: Database,
    tmp_path: Path,
    properties: dict[str, str],
    options: dict[str, str],
) -> None:
    sink = derby.sink(properties=derby.properties | properties, **options)
    rows = spark.range(10, numPartitions=5).selectExpr("id", "1 AS version", "'figs' AS item")
    with run(spark, tmp_path) as here:
        here.call(sink, rows, 0)
    assert sorted(number for number, *_ in derby.run(ALL)) == [*range(10)]


# The type of a column, a value that it would alter, and one that it keeps.
ALTERED = [
    ("varchar(2)", "'ab '", "'é'"),
    ("char(3)", "'a    '", "'a'"),
    ("varchar(9)", "CAST(unhex('80') AS string)", "'\ufffd😀'"),
    ("decimal(5, 2)", "12.345BD", "12.340BD"),
    ("decimal(5, 2)", "0.125d", "0.1d"),
    ("decimal(5, 2)", "'12.345'", "'12.34'"),
    ("integer", "1.5BD", "2.0BD"),
    ("integer", "1.5d", "2d"),
    ("integer", "'1.7'", "'2'"),
    ("real", "0.1d", "0.5d"),
    ("real", "16777217", "16777216"),
    ("double precision", "9007199254740993L", "9007199254740992L"),
    ("double precision", "0.12345678901234567890BD", "0.1BD"),
    ("date", "timestamp_ntz'2026-01-01 10:00:00'", "timestamp_ntz'2026-01-01'"),
]
ALTERED_BY_H2 = [
    ("timestamp(0)", "timestamp_ntz'2026-01-01 00:00:00.6'", "timestamp_ntz'2026-01-01'"),
    ("binary(3)", "unhex('61')", "unhex('616263')"),
    ("float(20)", "0.1d", "0.5d"),
    ("time", "timestamp_ntz'2026-01-01 10:00:00'", "'10:00:00'"),
]
# Spark 3.5 reads no table with such a column.
if not pyspark.__version__.startswith("3."):
    ALTERED_BY_H2.append(
        ("timestamp(3) with time zone", "timestamp_micros(1)", "timestamp_millis(1)")
    )


@pytest.mark.long
def test_values_that_their_columns_would_alter_are_refused(
    spark: SparkSession, db: Database, tmp_path: Path
) -> None:
    cases = ALTERED + (ALTERED_BY_H2 if "h2" in db.url else [])
    columns = ", ".join(f"c{number} {kind}" for number, (kind, *_) in enumerate(cases))
    db.run(f"CREATE TABLE kept (id integer, {columns})")
    altered, kept = (
        spark.sql("SELECT 1 AS id, " + ", ".join(f"{v} AS c{i}" for i, v in enumerate(values)))
        for values in zip(*(values for _, *values in cases), strict=True)
    )
    sink = db.sink(table="kept")
    with run(spark, tmp_path) as here:
        # A value that is too long is also an error of the database, which ends the tasks first.
        with pytest.raises(BatchNotWrittenError):
            here.call(sink, altered, 0)
        assert db.run("SELECT * FROM kept") == db.run(BATCHES) == []
        here.call(sink, kept, 0)
        for number, (_, value, _) in enumerate(cases):
            one = spark.sql(f"SELECT 1 AS id, {value} AS c{number}")
            says = rf"1 rows in 'C{number}', which is|does not fit the type"
            with pytest.raises(BatchNotWrittenError, match=says):
                here.call(sink, one, 1)
    assert db.run("SELECT id FROM kept") == [(1,)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "zone", "value", "altered"),
    [
        (93, "America/New_York", "timestamp'2026-11-01 05:30:00Z'", False),
        (93, "America/New_York", "timestamp'2026-11-01 06:30:00Z'", True),
        (2014, "America/New_York", "timestamp'2026-11-01 06:30:00Z'", False),
        (93, "UTC", "timestamp'2026-11-01 06:30:00Z'", False),
        (93, "UTC", "timestamp'1600-01-01 00:00:00Z'", False),
        (2014, "Asia/Kolkata", "timestamp'1899-12-31 00:00:00Z'", True),
        (2014, "UTC", "timestamp'1582-10-14 00:00:00Z'", True),
        (91, "UTC", "timestamp'2026-11-01 00:00:00Z'", True),
        (93, "UTC", "timestamp_ntz'2026-03-08 02:30:00'", False),
        (93, "America/New_York", "timestamp_ntz'2026-01-01 00:00:00'", True),
        (93, "UTC", "timestamp_ntz'0001-01-01 00:00:00'", True),
        (91, "America/New_York", "date'1582-10-15'", False),
        (91, "America/New_York", "date'0001-01-01'", True),
        (91, "America/New_York", "CAST(null AS date)", None),
    ],
)
def test_times_that_java_would_alter_are_found(
    spark: SparkSession, kind: int, zone: str, value: str, altered: object
) -> None:
    rows = spark.sql(f"SELECT {value} AS v")
    condition = JdbcColumn("v", kind, "TIME", 26, 6).alters(rows.schema["v"].dataType, zone)
    ((found,),) = rows.selectExpr(condition).collect()
    assert found is altered


@pytest.mark.parametrize(
    ("column", "value", "altered"),
    [
        # FLOAT, NUMBER(5, -2) and NUMBER of Oracle.
        (JdbcColumn("v", 2, "NUMBER", 126, -127), "0.1d", None),
        (JdbcColumn("v", 2, "NUMBER", 126, -127), "'0.1'", False),
        (JdbcColumn("v", 2, "NUMBER", 5, -2), "1200", False),
        (JdbcColumn("v", 2, "NUMBER", 5, -2), "1234", True),
        (JdbcColumn("v", 2, "NUMBER", 5, -2), "1234.0BD", True),
        (JdbcColumn("v", 2, "NUMBER", 5, -2), "1200.0d", False),
        (JdbcColumn("v", 2, "NUMBER", 0, -127), "0.1BD", None),
        # bytea of PostgreSQL.
        (JdbcColumn("v", -2, "bytea", 2147483647, 0), "unhex('80')", None),
    ],
)
def test_what_drivers_say_of_other_databases_is_understood(
    spark: SparkSession, column: JdbcColumn, value: str, altered: object
) -> None:
    rows = spark.sql(f"SELECT {value} AS v")
    condition = column.alters(rows.schema["v"].dataType, "UTC")
    assert (rows.selectExpr(condition).collect()[0][0] if condition else None) is altered


@pytest.mark.parametrize(
    ("product", "length", "scale", "digits"),
    [
        ("MySQL", 26, 0, 6),
        ("MySQL", 23, 0, 3),
        ("MySQL", 19, 0, 0),
        ("MySQL", 26, 6, 6),
        ("H2", 26, 0, 0),
    ],
)
def test_the_digits_of_seconds_are_those_of_the_column(
    product: str, length: int, scale: int, digits: int
) -> None:
    connection = Mock()
    connection.getMetaData().getDatabaseProductName.return_value = product
    described = connection.createStatement().executeQuery().getMetaData()
    described.getColumnCount.return_value = 1
    described.getColumnName.return_value = "at"
    described.getColumnType.return_value = 93
    described.getColumnTypeName.return_value = "TIMESTAMP"
    described.getPrecision.return_value = length
    described.getScale.return_value = scale
    assert [one.scale for one in columns_of(connection, "orders")] == [digits]


def test_columns_have_the_types_of_the_table(
    spark: SparkSession, db: Database, tmp_path: Path
) -> None:
    db.run(
        "CREATE SCHEMA my_shop",
        'CREATE TABLE my_shop."All" (b boolean, i8 bigint, f8 double precision, n numeric(6, 2),'
        ' "Mixed" varchar(5), d date, ts timestamp, missing int DEFAULT 7)',
    )
    rows = spark.sql(
        "SELECT true AS b, 2 AS i8, 2.5d AS f8, 12.34BD AS n, 's' AS mixed,"
        " date'2026-01-02' AS d, timestamp_ntz'2026-01-02 03:04:05' AS ts"
        " UNION ALL SELECT null, null, null, null, '', null, null"
    )
    with run(spark, tmp_path) as here:
        here.call(db.sink(table='my_shop."All"'), rows, 0)
        assert db.staging() == []
    (row,) = db.run('SELECT * FROM my_shop."All" WHERE b')
    assert row[:5] == (True, 2, 2.5, Decimal("12.34"), "s")
    assert [str(each)[:19] for each in row[5:]] == ["2026-01-02", "2026-01-02 03:04:05", "7"]
    assert db.run('SELECT count(*) FROM my_shop."All" WHERE b IS NULL AND n IS NULL') == [(1,)]


@pytest.mark.long
def test_a_null_may_be_in_a_string(spark: SparkSession, tmp_path: Path) -> None:
    with database(spark, "h2", tmp_path) as db, run(spark, tmp_path) as here:
        db.run(ORDERS)
        rows = spark.sql("SELECT 1 AS id, CAST(null AS string) AS item")
        here.call(db.sink(), rows, 0)
        assert db.run(ALL) == [(1, None, None)]


def test_a_query_writes_what_it_reads(db: Database, start: Callable[..., FanOutQuery]) -> None:
    source = ManualSource(bounded=True)
    source.put(*(b"%d" % n for n in range(100)))
    source.end("a")
    sink = db.sink(
        properties=lambda: db.properties,
        transform=lambda df: df.selectExpr("sequence AS id", "cast(data AS string) AS item"),
    )
    assert start(source, sink, available_now=True).await_termination(PATIENCE)
    found = db.run("SELECT id, item FROM orders")
    assert sorted(found) == [(n + 1, str(n)) for n in range(100)]
    assert db.staging() == []


@pytest.mark.fault("The database refuses a value")
@pytest.mark.long
def test_a_value_that_does_not_fit_is_said_without_it(
    spark: SparkSession, db: Database, tmp_path: Path
) -> None:
    rows = orders(spark, (1, 1, "SECRET that is too long"))
    with (
        run(spark, tmp_path) as here,
        pytest.raises(BatchNotWrittenError, match=r"value does not fit .*SQLSTATE 22001") as at,
    ):
        here.call(db.sink(), rows, 0)
    assert "SECRET" not in "".join(traceback.format_exception(at.value))
    assert "\n" not in str(at.value)


@pytest.mark.fault("A grant, a column or a library is missing, or the server is away")
@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "kind", "says"),
    [
        ({"table": "nope"}, OptionError, "table='nope' cannot be read: .*create it"),
        ({"url": "jdbc:nothing:x"}, OptionError, "url and driver do not belong together"),
        ({"driver": "no.such.Driver"}, SetupError, "no class no.such.Driver; .* or correct driver"),
        ({"url": "jdbc:derby:memory:nope"}, ServiceError, "url cannot be connected to: Database"),
        (
            {"url": "jdbc:h2:mem:secured"},
            ServiceError,
            "url cannot be connected to: Wrong user name or password",
        ),
    ],
)
def test_a_bad_place_is_said_before_the_first_record(  # noqa: PLR0917 - fixtures
    spark: SparkSession,
    tmp_path: Path,
    start: Callable[..., FanOutQuery],
    options: dict[str, Any],
    kind: type[Exception],
    says: str,
) -> None:
    name = "h2" if "h2" in options.get("url", "") else "derby"
    with database(spark, name, tmp_path) as db:
        if name == "h2":
            secured = Database(spark, "jdbc:h2:mem:secured;DB_CLOSE_DELAY=-1", db.driver)
            secured.run("SELECT 1")
            options = options | {"properties": {"user": "etl", "password": "hunter22"}}
        sink = db.sink(**options)
        with pytest.raises(kind, match=says) as caught:
            start(ManualSource(), sink)
    assert PASSWORD not in str(caught.value) + repr(sink) + repr(caught.value.__cause__)
    assert "\n" not in str(caught.value)


@pytest.mark.long
def test_the_password_is_not_in_errors_and_plans(
    spark: SparkSession, derby: Database, tmp_path: Path
) -> None:
    place = derby.sink()._place
    masked = place._masked(f"{derby.url} refuses {PASSWORD}\nand more", place.options())
    assert masked == "url refuses ***"
    assert PASSWORD not in repr(place)
    session: Any = spark._jsparkSession
    store = session.sharedState().statusStore()
    with run(spark, tmp_path) as here:
        here.call(derby.sink(), orders(spark, (1, 1, "figs")), 0)
    executions = store.executionsList()
    plans = [
        executions.apply(number).physicalPlanDescription() for number in range(executions.size())
    ]
    assert any("fanout_" in plan for plan in plans)
    assert PASSWORD not in "".join(plans)


@pytest.mark.fault("A grant, a column or a library is missing, or the server is away")
def test_columns_that_do_not_fit_are_errors(
    spark: SparkSession, derby: Database, tmp_path: Path
) -> None:
    rows = orders(spark, (1, 1, "figs"))
    keyed = derby.sink(key="nope", latest_by="version", sink_name="k")
    with run(spark, tmp_path) as here:
        for sink, wrong, says in (
            (None, rows.withColumnRenamed("item", "thing"), "orders has no column 'thing'; it has"),
            (None, rows.selectExpr("struct(id) AS item"), "'item' is struct<id:bigint>, which"),
            (keyed, rows, "key names the column 'nope', which the DataFrame has not"),
        ):
            with pytest.raises(OptionError, match=says):
                here.call(sink or derby.sink(), wrong, 0)
    assert derby.staging() == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"table": "a; drop b"}, "table='a; drop b' must be a name"),
        ({"table": "a.b.c.d"}, "table='a.b.c.d' must be a name"),
        ({"url": "postgres://db"}, 'url must be the URL .* begins with "jdbc:"'),
        ({"url": "jdbc:mysql://etl:hunter2@db/shop"}, "url has a password in it"),
        ({"url": "jdbc:oracle:thin:etl/hunter2@db"}, "url has a password in it"),
        ({"url": "jdbc:sqlserver://db;user=etl;password=hunter2"}, "url has a password in it"),
        ({"driver": ""}, "driver='' must be the name"),
        ({"properties": {"user": 1}}, "properties must be a mapping of strings"),
        ({"properties": 1}, "properties must be a mapping of strings"),
        ({"properties": {"DBTABLE": "x"}}, "properties must not have 'DBTABLE'"),
        ({"properties": {"numPartitions": "some"}}, "must have a number above 0 as 'numPartitio"),
        ({"key": "k"}, "key and latest_by belong together"),
    ],
)
def test_bad_options(options: dict[str, Any], says: str) -> None:
    given: dict[str, Any] = {"table": "a", "url": "jdbc:derby:x", "driver": "x", "properties": {}}
    with pytest.raises(OptionError, match=says) as caught:
        JdbcSink(**(given | options))
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "jdbc:oracle:thin:@//db:1521/shop",
        "jdbc:mysql://db:3306/shop?user=etl",
        "jdbc:sqlserver://db:1433;databaseName=shop",
        "jdbc:db2://db:50000/shop",
        "jdbc:h2:mem:shop;DB_CLOSE_DELAY=-1",
    ],
)
def test_urls_without_a_password_are_taken(url: str) -> None:
    assert JdbcSink(table="a", url=url, driver="x", properties={}).url == url


def test_a_qualifier_is_what_comes_before_the_name() -> None:
    assert [qualifier(name) for name in ("a", "a.b", '"x.y"."b.c"', "[a].b.`c d`")] == [
        "",
        "a.",
        '"x.y".',
        "[a].b.",
    ]
