"""Batches in a real PostgreSQL: rows and the batch's id in one transaction."""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from importlib import import_module
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest

from fanout.errors import (
    BatchNotWrittenError,
    CheckpointError,
    OptionError,
    ServiceError,
    SetupError,
)
from fanout.landing.owner import run_name
from fanout.spark import PostgresSink
from fanout.spark.tables import postgres_sink
from fanout.spark.tables.postgres_connection import transaction
from fanout.spark.tables.postgres_copy import CopyTask
from fanout.spark.tables.postgres_table import TargetTable, find_table
from tests.spark.harness import PATIENCE, eventually
from tests.spark.manual import ManualSource
from tests.spark.sink.harness import CONTENT, OTHER, run

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


def test_rows_without_a_key_are_refused(spark: SparkSession, url: str, tmp_path: Path) -> None:
    sink = PostgresSink(table="orders", dsn=url, key=("id", "item"), latest_by="version")
    query(url, "CREATE UNIQUE INDEX ON orders (id, item)")
    rows: Any = [(1, 1, "figs"), (2, 1, None), (None, 1, "tea"), (None, 1, None)]
    with run(spark, tmp_path) as here:
        with pytest.raises(BatchNotWrittenError, match=r"3 rows have a null in the key id, item"):
            here.call(sink, orders(spark, *rows), 0)
        here.call(sink, orders(spark, *rows).where("id IS NOT NULL AND item IS NOT NULL"), 0)
    assert query(url, "TABLE orders") == [(1, 1, "figs")]


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
        " n numeric(6, 2), s varchar(5), y bytea, d date, at timestamptz, local timestamp,"
        " j jsonb, u uuid, a bigint[], missing int DEFAULT 7)",
    )
    rows = spark.sql(
        "SELECT true AS B, 1Y AS i2, 2 AS i8, 1.5f AS f4, 2.5d AS f8, 12.345BD AS n, 's' AS s,"
        " unhex('00ff') AS y, date'2026-01-02' AS d, timestamp'2026-01-02 03:04:05Z' AS at,"
        " timestamp_ntz'2026-01-02 03:04:05' AS local, '{\"a\": 1}' AS j,"
        " '6ec8f8a8-1f6b-4d8b-9a55-0d0f6ad1c1a1' AS u, array(1L, 2L) AS a"
        " UNION ALL SELECT null, null, null, null, null, null, null, null, null, null, null, null,"
        " null, null"
    )
    with run(spark, tmp_path) as here:
        here.call(PostgresSink(table="public.all", dsn=url), rows, 0)
    (row,) = query(url, 'SELECT * FROM "all" WHERE "B"')
    assert row[:9] == (True, 1, 2, 1.5, 2.5, Decimal("12.35"), "s", b"\x00\xff", date(2026, 1, 2))
    assert row[9] == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert row[10] == datetime(2026, 1, 2, 3, 4, 5)  # noqa: DTZ001 - it has no zone
    assert (row[11], str(row[12]), *row[13:]) == (
        {"a": 1},
        "6ec8f8a8-1f6b-4d8b-9a55-0d0f6ad1c1a1",
        [1, 2],
        7,
    )
    assert query(url, 'SELECT count(*) FROM "all" WHERE "B" IS NULL AND a IS NULL') == [(1,)]


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
            (orders(spark, (2, 1, "SECRET\0")), sink, r"does not fit .* \(SQLSTATE 22021\)"),
            (orders(spark, (2, 1, "SECRET")), by_item, "no unique or exclusion constraint"),
        ):
            with pytest.raises(BatchNotWrittenError, match=says) as caught:
                here.call(other, rows, 1)
            assert "SECRET" not in str(caught.value)
            assert "99999" not in str(caught.value)
    assert query(url, "TABLE orders") == [(1, 1, "figs")]


def test_grants_that_are_missing_are_named(spark: SparkSession, url: str, tmp_path: Path) -> None:
    query(url, "CREATE ROLE etl LOGIN")
    query(url, "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    sink = PostgresSink(table="orders", dsn=url.replace("postgres:", "etl:"))
    with (
        run(spark, tmp_path) as here,
        pytest.raises(ServiceError, match="permission denied for schema public"),
    ):
        here.call(sink, orders(spark, (1, 1, "figs")), 0)


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
    assert row["kind"] == "SetupError"

    monkeypatch.setattr(postgres_sink, "copy_rows", lambda _: lambda _: iter([report]))
    with (
        run(spark, tmp_path) as here,
        pytest.raises(SetupError, match=r"PostgresSink needs .*postgres"),
    ):
        here.call(PostgresSink(table="orders", dsn=url), orders(spark, (1, 1, "figs")), 0)


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


def test_waits_for_locks_are_bounded(spark: SparkSession, url: str, tmp_path: Path) -> None:
    rows = orders(spark, (1, 1, "figs"))
    with run(spark, tmp_path) as here, psycopg.connect(url) as other:
        here.call(PostgresSink(table="orders", dsn=url), orders(spark), 0)
        other.execute("UPDATE fanout_batches SET batch_id = 1")  # a run that has died just now
        bounded = PostgresSink(table="orders", dsn=f"{url}&options=-c%20lock_timeout%3D100ms")
        with pytest.raises(BatchNotWrittenError, match="due to lock timeout"):
            here.call(bounded, rows, 1)
    assert query(url, "TABLE orders") == []


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
