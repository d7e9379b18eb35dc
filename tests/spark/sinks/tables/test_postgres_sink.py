"""Batches in a real PostgreSQL: rows and the batch's id in one transaction."""

from __future__ import annotations

import functools
import os
import re
import signal
import sys
import threading
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from importlib import import_module
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pyarrow as pa
import pytest

from fanout.core.remote_error import ErrorWire
from fanout.errors import (
    BatchNotWrittenError,
    CheckpointError,
    OptionError,
    ServiceError,
    SetupError,
)
from fanout.landing.claims import run_name
from fanout.spark import PostgresSink
from fanout.spark.sinks.tables import postgres_sink
from fanout.spark.sinks.tables.postgres_connection import CopyTask, transaction
from fanout.spark.sinks.tables.postgres_table import TargetTable, column_types, find_table
from tests.spark.sinks.kafka.harness import CONTENT, OTHER, run
from tests.support.manual_source import ManualSource
from tests.support.spark.harness import PATIENCE, eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from fanout.spark import FanOutQuery

pytestmark = pytest.mark.spark


def query(url: str, statement: str) -> list[tuple[Any, ...]]:
    """Run a statement, and return its rows, in order."""
    with psycopg.connect(url) as database:
        cursor = database.execute(statement)
        return sorted(cursor.fetchall()) if cursor.description else []


@pytest.fixture
def url(database_url: str) -> str:
    """An empty database with a table of orders."""
    query(database_url, "CREATE TABLE orders (id integer UNIQUE, version smallint, item text)")
    return database_url


def orders(spark: SparkSession, *rows: tuple[int, int, str]) -> DataFrame:
    return spark.createDataFrame([*rows], "id bigint, version int, item string").repartition(2)


def staging(url: str) -> list[str]:
    names = query(url, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    return [name for (name,) in names if name not in {"orders", "fanout_batches"}]


@pytest.mark.fault("A batch comes again that the table has")
def test_a_batch_that_comes_again_is_written_once(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    sink = PostgresSink(table="orders", dsn=url)
    with run(spark, tmp_path) as here:
        here.call(sink, orders(spark, (1, 1, "figs"), (2, 1, "tea")), 0)
        here.call(sink, orders(spark, (1, 1, "figs"), (2, 1, "tea")), 0)
        here.call(sink, orders(spark, (3, 1, "nuts")), 1)
        here.call(sink, orders(spark, (3, 1, "nuts")), 1)
        writer = f"{here.query_id}/postgres"
    assert query(url, "TABLE orders") == [(1, 1, "figs"), (2, 1, "tea"), (3, 1, "nuts")]
    assert query(url, "SELECT writer, batch_id FROM fanout_batches") == [(writer, 1)]
    assert staging(url) == []


@pytest.mark.long
def test_a_batch_of_an_older_checkpoint_is_not_taken_for_the_one_that_is_written(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    sink = PostgresSink(table="orders", dsn=url)
    with run(spark, tmp_path) as here:
        writer = f"{here.query_id}/postgres"
        # As an earlier version has left it.
        query(
            url,
            "CREATE TABLE fanout_batches (writer text PRIMARY KEY, batch_id bigint NOT NULL,"
            " written_at timestamptz NOT NULL)",
        )
        query(url, f"INSERT INTO fanout_batches VALUES ('{writer}', 0, now())")  # noqa: S608 - ours
        here.call(sink, orders(spark, (1, 1, "figs")), 0, content=CONTENT)
        here.call(sink, orders(spark, (2, 1, "tea")), 1, content=CONTENT)
        here.call(sink, orders(spark, (2, 1, "tea")), 1, content=CONTENT)
        with pytest.raises(CheckpointError, match="which holds another batch with this id"):
            here.call(sink, orders(spark, (3, 1, "nuts")), 1, content=OTHER)
        with pytest.raises(CheckpointError, match=r"batch 0 was .* holds the later batch 1"):
            here.call(sink, orders(spark, (3, 1, "nuts")), 0, content=OTHER)
    assert query(url, "TABLE orders") == [(2, 1, "tea")]
    assert staging(url) == []


@pytest.mark.long
def test_a_copy_of_a_checkpoint_that_writes_the_same_batch_is_found_in_the_transaction(
    spark: SparkSession, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, copy = PostgresSink(table="orders", dsn=url), PostgresSink._copy
    with run(spark, tmp_path) as here:

        def copy_later(self: PostgresSink, *arguments: Any) -> Any:
            monkeypatch.undo()
            here.call(sink, orders(spark, (1, 1, "figs")), 0, content=OTHER)
            return copy(self, *arguments)

        monkeypatch.setattr(PostgresSink, "_copy", copy_later)
        with pytest.raises(CheckpointError, match="which holds another batch with this id"):
            here.call(sink, orders(spark, (2, 1, "tea")), 0, content=CONTENT)
    assert query(url, "TABLE orders") == [(1, 1, "figs")]


@pytest.mark.fault("Two runs write one batch at once")
@pytest.mark.long
def test_two_runs_that_write_one_batch_write_it_once(
    spark: SparkSession, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, rows = PostgresSink(table="orders", dsn=url), orders(spark, (1, 1, "figs"))
    copy = PostgresSink._copy
    with run(spark, tmp_path) as here:

        def copy_later(self: PostgresSink, *arguments: Any) -> Any:
            monkeypatch.undo()
            here.call(sink, rows, 0)  # another run commits the batch
            query(url, "ALTER TABLE orders DROP CONSTRAINT orders_id_key")
            return copy(self, *arguments)

        monkeypatch.setattr(PostgresSink, "_copy", copy_later)
        here.call(sink, rows, 0)
    assert query(url, "TABLE orders") == [(1, 1, "figs")]
    assert staging(url) == []


def test_the_newest_row_of_a_key_stays(spark: SparkSession, url: str, tmp_path: Path) -> None:
    sink = PostgresSink(table="orders", dsn=url, key="id", latest_by="version")
    with run(spark, tmp_path) as here:
        here.call(sink, orders(spark, (1, 2, "b"), (1, 3, "c"), (1, 1, "a"), (2, 5, "x")), 0)
        here.call(sink, orders(spark, (1, 2, "late"), (2, 6, "y"), (3, 1, "z")), 1)
    assert query(url, "TABLE orders") == [(1, 3, "c"), (2, 6, "y"), (3, 1, "z")]


@pytest.mark.long
def test_rows_without_a_key_are_refused(spark: SparkSession, url: str, tmp_path: Path) -> None:
    sink = PostgresSink(table="orders", dsn=url, key=("id", "item"), latest_by="version")
    query(url, "CREATE UNIQUE INDEX ON orders (id, item)")
    rows: Any = [(1, 1, "figs"), (2, 1, None), (None, 1, "tea"), (None, 1, None)]
    with run(spark, tmp_path) as here:
        with pytest.raises(BatchNotWrittenError, match=r"3 rows have a null in the key id, item"):
            here.call(sink, orders(spark, *rows), 0)
        here.call(sink, orders(spark, *rows).where("id IS NOT NULL AND item IS NOT NULL"), 0)
    assert query(url, "TABLE orders") == [(1, 1, "figs")]


@pytest.mark.long
def test_an_empty_batch_is_remembered(spark: SparkSession, url: str, tmp_path: Path) -> None:
    with run(spark, tmp_path) as here:
        here.call(PostgresSink(table="orders", dsn=url), orders(spark), 4)
    assert [batch for (batch,) in query(url, "SELECT batch_id FROM fanout_batches")] == [4]


def answers(url: str) -> bool:
    with suppress(psycopg.OperationalError):
        query(url, "SELECT 1")
        return True
    return False


def crash(url: str) -> None:
    """Let the server recover from a crash: it does so when one of its processes was killed."""
    with suppress(psycopg.OperationalError), psycopg.connect(url) as database:
        os.kill(database.info.backend_pid, signal.SIGKILL)
        database.execute("SELECT 1")
    eventually(lambda: answers(url), "the end of the recovery")


def delete_staged_rows(url: str) -> None:
    name = next(one for one in staging(url) if query(url, f'TABLE "{one}"'))
    query(url, f'DELETE FROM "{name}"')  # noqa: S608 - a name of ours


def drop_a_staging_table(url: str) -> None:
    query(url, f'DROP TABLE "{staging(url)[0]}"')


@pytest.mark.fault("The server crashes between the tasks and the transaction")
@pytest.mark.long
@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (crash, "the server has 0 of the 2 rows that the tasks have copied"),
        (delete_staged_rows, "the server has [01] of the 2 rows that the tasks have copied"),
        (drop_a_staging_table, 'relation "public.fanout_.*" does not exist'),
    ],
)
def test_copied_rows_that_a_crash_takes_are_written_again(  # noqa: PLR0917 - fixtures
    spark: SparkSession,
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[str], None],
    says: str,
) -> None:
    sink, rows = PostgresSink(table="orders", dsn=url), orders(spark, (1, 1, "figs"), (2, 1, "tea"))
    copy = PostgresSink._copy

    def copy_then_damage(self: PostgresSink, *arguments: Any) -> Any:
        copied = copy(self, *arguments)
        damage(url)
        return copied

    with run(spark, tmp_path) as here:
        with monkeypatch.context() as patch:
            patch.setattr(PostgresSink, "_copy", copy_then_damage)
            with pytest.raises(BatchNotWrittenError, match=says):
                here.call(sink, rows, 0)
        assert query(url, "TABLE orders") == query(url, "TABLE fanout_batches") == []
        here.call(sink, rows, 0)
    assert query(url, "TABLE orders") == [(1, 1, "figs"), (2, 1, "tea")]
    assert staging(url) == []


@pytest.mark.long
@pytest.mark.fault("The server crashes between the tasks and the transaction")
def test_a_crash_in_the_transaction_takes_all_of_it(
    spark: SparkSession, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, rows = PostgresSink(table="orders", dsn=url), orders(spark, (1, 1, "figs"))
    insert = TargetTable.insert

    def crash_first(self: TargetTable, *arguments: Any) -> str:
        crash(url)
        return insert(self, *arguments)

    with run(spark, tmp_path) as here:
        with monkeypatch.context() as patch:
            patch.setattr(TargetTable, "insert", crash_first)
            with pytest.raises(BatchNotWrittenError, match="the connection to PostgreSQL failed"):
                here.call(sink, rows, 0)
        here.call(sink, rows, 0)
    assert query(url, "TABLE orders") == [(1, 1, "figs")]
    assert staging(url) == []


@pytest.mark.fault("A killed attempt leaves files or tables behind")
@pytest.mark.long
@pytest.mark.parametrize("method", ["_copy", "_take_over"])
def test_what_a_killed_attempt_left_is_dropped(
    spark: SparkSession, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    sink, rows = PostgresSink(table="orders", dsn=url), orders(spark, (1, 1, "figs"), (2, 1, "tea"))

    def die(original: Callable[..., Any], *arguments: Any) -> None:
        if method == "_copy":
            original(*arguments)
        raise KeyboardInterrupt

    with run(spark, tmp_path) as here:
        with monkeypatch.context() as patch:
            original = getattr(PostgresSink, method)
            patch.setattr(PostgresSink, method, functools.partialmethod(_call(die, original)))
            with pytest.raises(KeyboardInterrupt):
                here.call(sink, rows, 0)
        assert staging(url)
        other = PostgresSink(table="orders", dsn=url, sink_name="other")
        here.call(other, orders(spark), 0)
        assert staging(url), "of another sink"
        here.call(sink, rows, 0)
    assert staging(url) == []
    assert query(url, "TABLE orders") == [(1, 1, "figs"), (2, 1, "tea")]


def _call(die: Callable[..., None], original: Callable[..., Any]) -> Callable[..., None]:
    def method(*arguments: Any) -> None:
        die(original, *arguments)

    return method


def test_columns_have_the_types_of_the_table(spark: SparkSession, url: str, tmp_path: Path) -> None:
    query(
        url,
        'CREATE TABLE "all" ("B" boolean, i2 smallint, i8 bigint, f4 real, f8 double precision,'
        " n numeric(6, 2), s varchar(2), y bytea, d date, at timestamptz, local timestamp,"
        " j jsonb, u uuid, a bigint[], missing int DEFAULT 7)",
    )
    rows = spark.sql(
        "SELECT true AS B, 1Y AS i2, 2 AS i8, 1.5f AS f4, 2.5d AS f8, 12.340BD AS n, 's' AS s,"
        " unhex('00ff') AS y, date'2026-01-02' AS d, timestamp'2026-01-02 03:04:05Z' AS at,"
        " timestamp_ntz'2026-01-02 03:04:05' AS local, '{\"a\": 1}' AS j,"
        " '6ec8f8a8-1f6b-4d8b-9a55-0d0f6ad1c1a1' AS u, array(1L, 2L) AS a"
        " UNION ALL SELECT null, null, null, null, null, null, null, null, null, null, null, null,"
        " null, null"
    )
    with run(spark, tmp_path) as here:
        here.call(PostgresSink(table="public.all", dsn=url), rows, 0)
    (row,) = query(url, 'SELECT * FROM "all" WHERE "B"')
    assert row[:9] == (True, 1, 2, 1.5, 2.5, Decimal("12.34"), "s", b"\x00\xff", date(2026, 1, 2))
    assert row[9] == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert row[10] == datetime(2026, 1, 2, 3, 4, 5)  # noqa: DTZ001 - it has no zone
    assert (row[11], str(row[12]), *row[13:]) == (
        {"a": 1},
        "6ec8f8a8-1f6b-4d8b-9a55-0d0f6ad1c1a1",
        [1, 2],
        7,
    )
    assert query(url, 'SELECT count(*) FROM "all" WHERE "B" IS NULL AND a IS NULL') == [(1,)]


# The type of a column, a value that it would alter, and one that it keeps.
ALTERED = [
    ("varchar(2)", "'abcdef'", "'ab'"),
    ("varchar(2)", "'ab '", "'é'"),
    ("char(4)", "'abcdef'", "'ab'"),
    ("short", "'abcdef'", "'ab'"),
    ("short[]", "array('ab', 'abcdef')", "array('ab', null)"),
    ("shorts", "array('ab', 'abcdef')", "array('ab', null)"),
    ("varchar(2)[]", "array('abcdef')", "array('ab')"),
    ("name", "repeat('n', 64)", "repeat('n', 63)"),
    ("name[]", "array(repeat('n', 64))", "array('n')"),
    ('"char"', "'ab'", "'a'"),
    ("bit(4)", "'10101111'", "'1010'"),
    ("bit", "'10'", "'1'"),
    ("varbit(3)", "'11111'", "'111'"),
    ("numeric(5, 2)", "12.345BD", "12.340BD"),
    ("numeric(5, 2)", "'12.345'", "'12.34'"),
    ("numeric(5, 2)[]", "array(12.345BD)", "array(12.340BD)"),
    ("numeric", "0.1d + 0.2d", "0.1d"),
    ("real", "0.1d", "0.5d"),
    ("double precision", "9007199254740993L", "9007199254740992L"),
    ("double precision", "0.12345678901234567890BD", "0.1BD"),
    ("integer", "1.5BD", "2.0BD"),
    ("boolean", "2", "1"),
    ("timestamp(0)", "timestamp_ntz'2026-01-01 00:00:00.6'", "timestamp_ntz'2026-01-01'"),
    ("timestamptz(3)", "timestamp_micros(1L)", "timestamp_millis(1L)"),
    ("time(0)", "'10:00:00.6'", "'10:00:01'"),
    ("interval(0)", "'1.6 seconds'", "'2 seconds'"),
    ("interval month", "'1 month 2 days'", "'1 month'"),
    ("date", "timestamp_ntz'2026-01-01 00:00:01'", "timestamp_ntz'2026-01-01'"),
    ("date", "date_from_unix_date(-2147472691)", "date'0001-01-01'"),
    ("timestamptz", "timestamp_micros(-9222425352054775808)", "timestamp_micros(0)"),
    (
        "timestamptz[]",
        "array(timestamp_micros(-9222425352054775808))",
        "array(timestamp_micros(0))",
    ),
]
REFUSED = [
    ("smallint", "32768", r"does not fit .* \(SQLSTATE 22003\)"),
    ("integer", "2147483648L", r"does not fit .* \(SQLSTATE 22003\)"),
    ("mood", "'HAPPY'", r"is none that .* can be read from \(SQLSTATE 22P02\)"),
]


@pytest.mark.long
@pytest.mark.parametrize("options", [{}, {"key": "id", "latest_by": "n"}])
def test_values_that_their_columns_would_alter_are_refused(
    spark: SparkSession, url: str, tmp_path: Path, options: dict[str, Any]
) -> None:
    query(url, "CREATE DOMAIN short AS varchar(2)")
    query(url, "CREATE DOMAIN shorts AS short[]")
    columns = ", ".join(f"c{number} {kind}" for number, (kind, *_) in enumerate(ALTERED))
    query(url, f"CREATE TABLE t (id int UNIQUE, n int, {columns})")
    altered, kept = (
        spark.sql("SELECT 1 AS id, 1 AS n, " + ", ".join(f"{v} AS c{i}" for i, v in enumerate(one)))
        for one in zip(*(values for _, *values in ALTERED), strict=True)
    )
    sink = PostgresSink(table="t", dsn=url, **options)
    with run(spark, tmp_path) as here:
        with pytest.raises(BatchNotWrittenError, match="would alter values") as caught:
            here.call(sink, altered, 0)
        assert query(url, "TABLE t") == query(url, "TABLE fanout_batches") == []
        here.call(sink, kept, 0)
    named = re.findall(r"1 rows in 'c(\d+)'", str(caught.value))
    assert [*map(int, named)] == [*range(len(ALTERED))]
    assert query(url, "SELECT id FROM t") == [(1,)]


@pytest.mark.long
@pytest.mark.parametrize(("kind", "value", "says"), REFUSED)
def test_values_that_no_column_of_the_type_has_are_refused(  # noqa: PLR0917 - fixtures
    spark: SparkSession, url: str, tmp_path: Path, kind: str, value: str, says: str
) -> None:
    query(url, "CREATE TYPE mood AS ENUM ('happy')")
    query(url, f"CREATE TABLE t (v {kind})")
    with run(spark, tmp_path) as here, pytest.raises(BatchNotWrittenError, match=says):
        here.call(PostgresSink(table="t", dsn=url), spark.sql(f"SELECT {value} AS v"), 0)
    assert query(url, "TABLE t") == []


@pytest.mark.long
def test_keys_that_a_column_would_cut_to_one_are_refused(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    query(url, "CREATE TABLE t (id varchar(4) PRIMARY KEY, v int)")
    sink = PostgresSink(table="t", dsn=url, key="id", latest_by="v")
    rows = spark.sql("SELECT concat('user-', id) AS id, 1 AS v FROM range(3)")
    with (
        run(spark, tmp_path) as here,
        pytest.raises(
            BatchNotWrittenError, match=r"3 rows in 'id', which is character varying\(4\)"
        ),
    ):
        here.call(sink, rows, 0)
    assert query(url, "TABLE t") == []


@pytest.mark.long
def test_the_newest_row_is_that_of_the_tables_type(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    sink = PostgresSink(table="orders", dsn=url, key="id", latest_by="version")
    rows = spark.sql("SELECT '1' AS id, v AS version FROM values ('9'), ('10') AS t(v)")
    with run(spark, tmp_path) as here:
        here.call(sink, rows, 0)
    assert query(url, "SELECT id, version FROM orders") == [(1, 10)]


@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        ("timestamp", "timestamp_micros(0)", "only a time zone makes the one of the other"),
        ("date", "timestamp_micros(0)", "only a time zone"),
        ("timestamptz", "timestamp_ntz'2026-01-01'", "only a time zone"),
        ("timestamptz(3)", "date'2026-01-01'", "only a time zone"),
        ("timestamp[]", "array(timestamp_micros(0))", "only a time zone"),
        ("text", "unhex('00')", "'v' is binary, and the table has text: cast it"),
        ("uuid", "unhex('00')", "'v' is binary"),
    ],
)
def test_a_value_that_needs_a_guess_is_refused_before_it_is_copied(  # noqa: PLR0917 - fixtures
    spark: SparkSession, url: str, tmp_path: Path, kind: str, value: str, says: str
) -> None:
    query(url, f"CREATE TABLE t (v {kind})")
    with run(spark, tmp_path) as here, pytest.raises(OptionError, match=says):
        here.call(PostgresSink(table="t", dsn=url), spark.sql(f"SELECT {value} AS v"), 0)
    assert staging(url) == ["t"]


@pytest.mark.long
@pytest.mark.parametrize("encoding", ["LATIN1", "WIN1252", "EUC_JP", "UTF8", "SQL_ASCII"])
def test_text_is_the_same_in_every_encoding(
    spark: SparkSession,
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    encoding: str,
) -> None:
    name = f"test_{encoding.lower()}"
    with psycopg.connect(url, autocommit=True) as database:
        database.execute(
            f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0 LOCALE 'C'"
        )
    ((of_test,),) = query(url, "SELECT current_database()")
    there = url.replace(of_test, name)
    query(there, "CREATE TABLE t (item text)")
    if encoding == "UTF8":
        query(there, f"ALTER DATABASE {name} SET client_encoding = 'LATIN9'")
    sink = PostgresSink(table="t", dsn=there)
    with run(spark, tmp_path) as here, monkeypatch.context() as patch:
        patch.setenv("PGCLIENTENCODING", "WIN1252")
        here.call(sink, spark.sql("SELECT 'Müller' AS item"), 0)
        if encoding not in {"UTF8", "SQL_ASCII"}:
            with pytest.raises(BatchNotWrittenError, match="the encoding of the database has not"):
                here.call(sink, spark.sql("SELECT 'Мюллер 😀' AS item"), 1)
    utf8 = "SQL_ASCII" if encoding == "SQL_ASCII" else "UTF8"
    assert query(there, f"SELECT convert_to(item, '{utf8}') FROM t") == [("Müller".encode(),)]  # noqa: S608 - ours
    with psycopg.connect(url, autocommit=True) as database:
        database.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.long
def test_settings_of_the_role_and_the_environment_change_no_value(
    spark: SparkSession, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ((database,),) = query(url, "SELECT current_database()")
    for setting in (
        "DateStyle = 'SQL, DMY'",
        "IntervalStyle = sql_standard",
        "TimeZone = 'America/New_York'",
        "standard_conforming_strings = off",
        "bytea_output = escape",
        "extra_float_digits = -15",
        "client_encoding = LATIN1",
        "search_path = own, pg_catalog",
        "default_transaction_isolation = serializable",
        "array_nulls = off",
        "transform_null_equals = on",
    ):
        query(url, f"ALTER DATABASE {database} SET {setting}")
    utc = f"{url}&options=-c%20timezone%3DUTC%20-c%20datestyle%3DISO"
    query(url, "CREATE SCHEMA own")
    query(
        url,
        "CREATE TABLE own.t (s text, y bytea, d date, at timestamptz, local timestamp,"
        " day text, moment text, a text[], i interval)",
    )
    rows = spark.sql(
        r"SELECT 'a\\b\'é' AS s, unhex('00ff5c') AS y, date'2026-02-01' AS d,"
        " timestamp'2026-11-01 05:30:00.123456Z' AS at,"
        " timestamp_ntz'2026-11-01 01:30:00' AS local, date'2026-02-01' AS day,"
        " timestamp_ntz'2026-02-01 03:04:05' AS moment, array('NULL', null) AS a,"
        " '1 year -2 days' AS i"
    )
    with run(spark, tmp_path) as here, monkeypatch.context() as patch:
        patch.setenv("PGTZ", "Asia/Tokyo")
        patch.setenv("PGDATESTYLE", "German")
        here.call(PostgresSink(table="t", dsn=url), rows, 0)
    at = datetime(2026, 11, 1, 5, 30, 0, 123456, tzinfo=UTC)
    (row,) = query(utc, "SELECT s, y, d, at, local, day, moment, a, i::text FROM own.t")
    assert row[:5] == (
        rows.first().s,  # type: ignore[union-attr]
        b"\x00\xff\\",
        date(2026, 2, 1),
        at,
        datetime(2026, 11, 1, 1, 30),  # noqa: DTZ001 - it has no zone
    )
    assert row[5:8] == ("2026-02-01", "2026-02-01 03:04:05", ["NULL", None])
    assert query(utc, "SELECT i = '1 year -2 days' FROM own.t") == [(True,)]


@pytest.mark.long
def test_names_of_tables_are_taken_as_they_are(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    query(url, 'CREATE SCHEMA "my.schema"')
    query(url, 'CREATE TABLE "my.schema"."a.""b" (id int)')
    query(url, "CREATE SCHEMA hidden")
    query(url, "CREATE TABLE hidden.secrets (id int)")
    with run(spark, tmp_path) as here:
        rows = spark.sql("SELECT 1 AS id")
        here.call(PostgresSink(table='"my.schema"."a.""b"', dsn=url), rows, 0)
        for table, like in (("Orders", "public.orders"), ("secrets", "hidden.secrets")):
            with pytest.raises(OptionError, match=f"no table {table} .* but {like}: table names"):
                here.call(PostgresSink(table=table, dsn=url, sink_name="other"), rows, 0)
    assert query(url, 'TABLE "my.schema"."a.""b"') == [(1,)]


@pytest.mark.long
@pytest.mark.parametrize("state", ["40001", "40P01"])
def test_a_transaction_that_another_one_is_in_the_way_of_is_tried_again(
    spark: SparkSession, url: str, tmp_path: Path, state: str
) -> None:
    # The first two of them fail; a sequence counts also where a transaction rolls back.
    query(url, "CREATE SEQUENCE tries")
    query(
        url,
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF nextval('tries') < 3 THEN RAISE SQLSTATE '{state}'; END IF; RETURN new; END $$",
    )
    query(url, "CREATE TRIGGER fail BEFORE INSERT ON orders FOR ROW EXECUTE FUNCTION fail()")
    with run(spark, tmp_path) as here:
        here.call(PostgresSink(table="orders", dsn=url), orders(spark, (1, 1, "figs")), 0)
        query(url, "ALTER SEQUENCE tries MINVALUE -99 RESTART WITH -99")
        with pytest.raises(BatchNotWrittenError, match="PostgreSQL refuses"):
            here.call(PostgresSink(table="orders", dsn=url), orders(spark, (2, 1, "tea")), 1)
    assert query(url, "SELECT last_value FROM tries") == [(-95,)]
    assert query(url, "TABLE orders") == [(1, 1, "figs")]


@pytest.mark.long
def test_the_end_of_a_connection_is_told(
    spark: SparkSession, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, rows = PostgresSink(table="orders", dsn=url), orders(spark, (1, 1, "figs"))
    insert = TargetTable.insert

    def end_it(self: TargetTable, *arguments: Any) -> str:
        query(
            url,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )
        return insert(self, *arguments)

    with run(spark, tmp_path) as here:
        with monkeypatch.context() as patch:
            patch.setattr(TargetTable, "insert", end_it)
            says = "connection to PostgreSQL failed: terminating connection due to administrator"
            with pytest.raises(BatchNotWrittenError, match=says):
                here.call(sink, rows, 0)
        here.call(sink, rows, 0)
    assert query(url, "TABLE orders") == [(1, 1, "figs")]


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("statement_timeout = '1ms'", "canceling statement due to statement timeout"),
        # The end of a connection may overtake the reason that the server sends.
        ("idle_session_timeout = '1ms'", "due to idle-session timeout|failed: server closed the"),
        ("default_transaction_read_only = on", "in a read-only transaction; name the primary"),
    ],
)
def test_limits_of_the_role_are_not_taken_for_a_malformed_dsn(
    spark: SparkSession, url: str, tmp_path: Path, setting: str, says: str
) -> None:
    role = f"etl_{uuid4().hex}"
    query(url, f"CREATE ROLE {role} LOGIN SUPERUSER")
    query(url, f"ALTER ROLE {role} SET {setting}")
    sink = PostgresSink(table="orders", dsn=url.replace("postgres:", f"{role}:"))
    with run(spark, tmp_path) as here, pytest.raises(ServiceError, match=says):
        here.call(sink, orders(spark, (1, 1, "figs")), 0)
    query(url, f"DROP ROLE {role}")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("'SECRET\\0'", r"a string has a NUL, or bytes that are not UTF-8 \(SQLSTATE 22021\)"),
        ("cast(unhex('53454352455480') AS string)", "bytes that are not UTF-8"),
        ("array(cast(unhex('eda080') AS string))", "bytes that are not UTF-8"),
        ("timestamp_micros(-9223372036854775808)", "a date or time is outside of the range"),
        ("date_from_unix_date(2147483647)", "a date or time is outside of the range"),
        ("date_from_unix_date(-2147483648)", "a date or time is outside of the range"),
    ],
)
def test_a_value_that_postgres_has_not_is_named(
    spark: SparkSession, url: str, tmp_path: Path, value: str, says: str
) -> None:
    rows = spark.sql(f"SELECT {value} AS v")
    (name, copied) = next(iter(column_types(rows.schema).items()))
    query(url, f"CREATE TABLE t ({name} {copied})")
    with (
        run(spark, tmp_path) as here,
        pytest.raises(BatchNotWrittenError, match=says) as caught,
    ):
        here.call(PostgresSink(table="t", dsn=url), rows, 0)
    assert "SECRET" not in str(caught.value)


def test_a_query_writes_what_it_reads(url: str, start: Callable[..., FanOutQuery]) -> None:
    source = ManualSource(bounded=True)
    source.put(*(b"%d" % n for n in range(100)))
    source.end("a")
    sink = PostgresSink(
        table="orders",
        dsn=lambda: url,
        transform=lambda df: df.selectExpr("sequence AS id", "cast(data AS string) AS item"),
    )
    assert start(source, sink, available_now=True).await_termination(PATIENCE)
    assert query(url, "SELECT id, item FROM orders") == [(n + 1, str(n)) for n in range(100)]


@pytest.mark.fault("A run that lost its checkpoint to another one writes nothing more")
def test_a_run_that_lost_the_checkpoint_writes_nothing(
    spark: SparkSession, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, rows = PostgresSink(table="orders", dsn=url), orders(spark, (1, 1, "figs"))
    with run(spark, tmp_path) as here:
        copy = PostgresSink._copy

        def lose_then_copy(self: PostgresSink, *arguments: Any) -> Any:
            here.storage.delete(run_name(here.ownership.run))
            return copy(self, *arguments)

        monkeypatch.setattr(PostgresSink, "_copy", lose_then_copy)
        with pytest.raises(CheckpointError, match="this run stops"):
            here.call(sink, rows, 0)
    assert query(url, "TABLE orders") == []
    assert query(url, "TABLE fanout_batches") == []


@pytest.mark.fault("The database refuses a value")
@pytest.mark.long
def test_what_the_database_refuses_is_said_without_data(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    sink = PostgresSink(table="orders", dsn=url)
    by_item = PostgresSink(table="orders", dsn=url, key="item", latest_by="version", sink_name="k")
    with run(spark, tmp_path) as here:
        here.call(sink, orders(spark, (1, 1, "figs")), 0)
        for rows, other, says in (
            (orders(spark, (1, 1, "SECRET")), sink, "duplicate key value violates unique"),
            (orders(spark, (2, 99_999, "SECRET")), sink, r"does not fit .* \(SQLSTATE 22003\)"),
            (orders(spark, (2, 1, "SECRET\0")), sink, r"has a NUL, .* \(SQLSTATE 22021\)"),
            (orders(spark, (2, 1, "SECRET")), by_item, "no unique or exclusion constraint"),
        ):
            with pytest.raises(BatchNotWrittenError, match=says) as caught:
                here.call(other, rows, 1)
            assert "SECRET" not in str(caught.value)
            assert "99999" not in str(caught.value)
    assert query(url, "TABLE orders") == [(1, 1, "figs")]


@pytest.mark.fault("A grant, a column or a library is missing, or the server is away")
def test_grants_that_are_missing_are_named(spark: SparkSession, url: str, tmp_path: Path) -> None:
    query(url, "CREATE ROLE etl LOGIN")
    query(url, "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    sink = PostgresSink(table="orders", dsn=url.replace("postgres:", "etl:"))
    with (
        run(spark, tmp_path) as here,
        pytest.raises(ServiceError, match="permission denied for schema public"),
    ):
        here.call(sink, orders(spark, (1, 1, "figs")), 0)


@pytest.mark.fault("A grant, a column or a library is missing, or the server is away")
@pytest.mark.parametrize(
    ("options", "kind", "says"),
    [
        ({"dsn": "postgresql://etl:hunter2/@db/shop"}, OptionError, "dsn is malformed"),
        ({"table": "nope"}, OptionError, "the database has no table nope: create it"),
        (
            {"dsn": "postgresql://etl:hunter2@127.0.0.1:1/shop"},
            ServiceError,
            "PostgreSQL cannot be reached: connection to server at .* Connection refused",
        ),
    ],
)
def test_a_bad_place_is_said_before_the_first_record(
    url: str,
    start: Callable[..., FanOutQuery],
    options: dict[str, Any],
    kind: type[Exception],
    says: str,
) -> None:
    sink = PostgresSink(**({"table": "orders", "dsn": url} | options))
    with pytest.raises(kind, match=says) as caught:
        start(ManualSource(), sink)
    assert "hunter2" not in str(caught.value) + repr(sink)
    assert "\n" not in str(caught.value)


@pytest.mark.fault("A grant, a column or a library is missing, or the server is away")
def test_columns_that_do_not_fit_are_errors(spark: SparkSession, url: str, tmp_path: Path) -> None:
    rows = orders(spark, (1, 1, "figs"))
    keyed = PostgresSink(table="orders", dsn=url, key="nope", latest_by="version", sink_name="k")
    with run(spark, tmp_path) as here:
        for sink, wrong, says in (
            (None, rows.withColumnRenamed("item", "thing"), "orders has no column 'thing'; it has"),
            (None, rows.selectExpr("struct(id) AS item"), "'item' is struct<id:bigint>, which"),
            (keyed, rows, "key names the column 'nope', which the DataFrame has not"),
        ):
            with pytest.raises(OptionError, match=says):
                here.call(sink or PostgresSink(table="orders", dsn=url), wrong, 0)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"table": "a.b.c", "dsn": "x"}, "table='a.b.c' must be a name"),
        ({"table": "a", "dsn": ""}, "dsn must be a connection string"),
        ({"table": "a", "dsn": "x", "key": "k"}, "key and latest_by belong together"),
        ({"table": "a", "dsn": "x", "latest_by": "k"}, "key and latest_by belong together"),
        ({"table": "a", "dsn": "x", "key": "k", "latest_by": "k"}, "must not be one of the key's"),
    ],
)
def test_bad_options(options: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        PostgresSink(**options)


def test_a_task_without_the_driver_reports_an_error_of_the_setup(
    spark: SparkSession, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = CopyTask("host=db password=hunter2", "public", "fanout_", [("id", "bigint")])
    assert "hunter2" not in repr(task)
    with monkeypatch.context() as patch:
        for module in ("adbc_driver_postgresql", "adbc_driver_postgresql.dbapi"):
            patch.setitem(sys.modules, module, None)
        (report,) = task.run(iter([pa.record_batch({"id": [1]})]))
    (row,) = report.to_pylist()
    assert isinstance(ErrorWire.from_json(row["failure"]).error(), SetupError)

    monkeypatch.setattr(postgres_sink, "copy_rows", lambda _: lambda _: iter([report]))
    with (
        run(spark, tmp_path) as here,
        pytest.raises(SetupError, match=r"PostgresSink needs .*postgres"),
    ):
        here.call(PostgresSink(table="orders", dsn=url), orders(spark, (1, 1, "figs")), 0)


@pytest.mark.long
def test_workers_without_the_library_are_an_error_of_the_setup(
    spark: SparkSession, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy_rows(_: CopyTask) -> Any:
        def copy(batches: Any) -> Any:
            import_module("fanout.no_such_module")
            return batches

        return copy

    monkeypatch.setattr(postgres_sink, "copy_rows", copy_rows)
    with (
        run(spark, tmp_path) as here,
        pytest.raises(SetupError, match=r"No module named 'fanout.no_such_module'; install it"),
    ):
        here.call(PostgresSink(table="orders", dsn=url), orders(spark, (1, 1, "figs")), 0)


@pytest.mark.fault("A server or the lock of a dead run answers nothing")
@pytest.mark.long
def test_waits_for_locks_are_bounded(spark: SparkSession, url: str, tmp_path: Path) -> None:
    rows = orders(spark, (1, 1, "figs"))
    with run(spark, tmp_path) as here, psycopg.connect(url) as other:
        here.call(PostgresSink(table="orders", dsn=url), orders(spark), 0)
        other.execute("UPDATE fanout_batches SET batch_id = 1")  # a run that has died just now
        bounded = PostgresSink(table="orders", dsn=f"{url}&options=-c%20lock_timeout%3D100ms")
        with pytest.raises(BatchNotWrittenError, match="due to lock timeout"):
            here.call(bounded, rows, 1)
    assert query(url, "TABLE orders") == []


@pytest.mark.fault("A server or the lock of a dead run answers nothing")
@pytest.mark.long
def test_what_a_session_waits_for_is_bounded(spark: SparkSession, url: str, tmp_path: Path) -> None:
    names = ("lock_timeout", "idle_in_transaction_session_timeout", "synchronous_commit")
    for name in names:
        query(url, f"ALTER TABLE orders ADD {name} text DEFAULT current_setting('{name}')")
    ((database,),) = query(url, "SELECT current_database()")
    query(url, f"ALTER DATABASE {database} SET synchronous_commit = off")
    of_user = "-c%20lock_timeout%3D5s%20-c%20synchronous_commit%3Dlocal"
    with run(spark, tmp_path) as here:
        here.call(PostgresSink(table="orders", dsn=url), orders(spark, (1, 1, "figs")), 0)
        own = PostgresSink(table="orders", dsn=f"{url}&options={of_user}")
        here.call(own, orders(spark, (2, 1, "tea")), 1)
    assert query(url, "TABLE orders") == [
        (1, 1, "figs", "2min", "1min", "on"),
        (2, 1, "tea", "5s", "1min", "local"),
    ]


def test_two_first_runs_create_the_table_of_batches_once(url: str) -> None:
    failures: list[Exception] = []

    def start() -> None:
        try:
            with transaction(url) as database:
                find_table(database, "orders")
        except Exception as error:  # noqa: BLE001 - the test looks at it
            failures.append(error)

    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    waiting += " AND datname = current_database()"
    second = threading.Thread(target=start)
    with transaction(url) as database:
        find_table(database, "orders")
        second.start()
        eventually(lambda: query(url, waiting), "the second run waits for the first")
    second.join(PATIENCE)
    assert failures == []
    assert query(url, "TABLE fanout_batches") == []
