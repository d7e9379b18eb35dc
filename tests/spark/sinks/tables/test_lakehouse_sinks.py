"""Batches in tables of Delta Lake and Apache Iceberg, for a pyspark that they have jars for."""

from __future__ import annotations

import itertools
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyspark
import pytest
from py4j.java_gateway import JavaGateway
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from fanout.core.backoff import Backoff
from fanout.errors import (
    BatchFailedError,
    BatchNotWrittenError,
    CheckpointError,
    OptionError,
    SetupError,
)
from fanout.landing.claims import run_name
from fanout.spark import DeltaSink, IcebergSink
from fanout.spark.sinks.tables.merge import _run, in_attempts
from tests.spark.sinks.kafka.harness import CONTENT, OTHER, run
from tests.support.manual_source import ManualSource
from tests.support.spark.harness import PATIENCE, eventually
from tests.support.spark.table_formats import CATALOG, LAKEHOUSES, require

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from fanout.spark import FanOutQuery

pytestmark = [LAKEHOUSES, pytest.mark.spark]

_NAMES = itertools.count(1)
KEYED = {"key": "id", "latest_by": "version"}
ONE_OF_EACH = [("delta", KEYED), ("delta by name", {}), ("iceberg", {})]


class Table:
    """A table of its own for a test, that does not exist yet."""

    def __init__(self, spark: SparkSession, kind: str, directory: Path) -> None:
        self._spark = spark
        self._kind = kind
        self._path = str(directory / "table")
        self._name = f"orders{next(_NAMES)}"

    def sink(self, **options: Any) -> DeltaSink | IcebergSink:
        match self._kind:
            case "delta":
                return DeltaSink(path=self._path, **options)
            case "delta by name":
                return DeltaSink(table=self._name, **options)
            case _:
                return IcebergSink(table=f"{CATALOG}.shop.{self._name}", **options)

    @property
    def in_sql(self) -> str:
        if self._kind == "delta":
            return f"delta.`{self._path}`"
        return self._name if self._kind == "delta by name" else f"{CATALOG}.shop.{self._name}"

    @property
    def provider(self) -> str:
        return self._kind.partition(" ")[0]

    def version(self) -> int:
        if self.provider == "delta":
            found = self._spark.sql(f"DESCRIBE HISTORY {self.in_sql} LIMIT 1").select("version")
        else:
            refs = self._spark.table(f"{self.in_sql}.refs")
            found = refs.where("name = 'main'").select("snapshot_id")
        ((version,),) = found.collect()
        return int(version)

    def roll_back(self, version: int) -> None:
        if self.provider == "delta":
            self._spark.sql(f"RESTORE TABLE {self.in_sql} TO VERSION AS OF {version}")
        else:
            name = self.in_sql.removeprefix(f"{CATALOG}.")
            call = f"CALL {CATALOG}.system.rollback_to_snapshot('{name}', {version})"
            self._spark.sql(call)

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(map(tuple, self._spark.table(self.in_sql).collect()), key=repr)


@pytest.fixture(params=["delta", "delta by name", "iceberg"])
def table(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Table:
    require(request.param.partition(" ")[0])
    return Table(spark, request.param, tmp_path)


def orders(spark: SparkSession, *rows: tuple[Any, int, str]) -> DataFrame:
    return spark.createDataFrame([*rows], "id bigint, version int, item string").repartition(2)


@pytest.mark.fault("A batch comes again that the table has")
def test_a_batch_that_comes_again_is_written_once(
    spark: SparkSession, table: Table, tmp_path: Path
) -> None:
    sink = table.sink()
    with run(spark, tmp_path / "checkpoint") as here:
        here.call(sink, orders(spark, (1, 1, "figs"), (2, 1, "tea")), 0)
        here.call(sink, orders(spark, (1, 1, "figs"), (2, 1, "tea")), 0)
        here.call(sink, orders(spark, (3, 1, "nuts")), 1)
        here.call(sink, orders(spark, (3, 1, "nuts")), 1)
    assert table.rows() == [(1, 1, "figs"), (2, 1, "tea"), (3, 1, "nuts")]


@pytest.mark.parametrize(("table", "options"), ONE_OF_EACH, indirect=["table"])
def test_a_batch_of_an_older_checkpoint_is_not_taken_for_the_one_that_is_written(
    spark: SparkSession, table: Table, tmp_path: Path, options: dict[str, Any]
) -> None:
    sink = table.sink(**options)
    with run(spark, tmp_path / "checkpoint") as here:
        here.call(sink, orders(spark, (1, 1, "figs")), 0)  # of an earlier version
        here.call(sink, orders(spark, (1, 1, "figs")), 0, content=CONTENT)
        here.call(sink, orders(spark, (2, 1, "tea")), 1, content=CONTENT)
        here.call(sink, orders(spark, (2, 1, "tea")), 1, content=CONTENT)
        with pytest.raises(CheckpointError, match="which holds another batch with this id"):
            here.call(sink, orders(spark, (3, 1, "nuts")), 1, content=OTHER)
        with pytest.raises(CheckpointError, match=r"batch 0 was .* holds the later batch 1"):
            here.call(sink, orders(spark, (3, 1, "nuts")), 0, content=OTHER)
        here.call(sink, orders(spark, (3, 1, "nuts")), 2, content=OTHER)
    assert table.rows() == [(1, 1, "figs"), (2, 1, "tea"), (3, 1, "nuts")]


@pytest.mark.parametrize(("table", "options"), ONE_OF_EACH, indirect=["table"])
def test_a_batch_that_was_rolled_back_is_written_again(
    spark: SparkSession, table: Table, tmp_path: Path, options: dict[str, Any]
) -> None:
    sink = table.sink(**options)
    with run(spark, tmp_path / "checkpoint") as here:
        for batch_id in range(4):
            here.call(sink, orders(spark, (batch_id, 1, "figs")), batch_id, content=CONTENT)
            if batch_id == 1:
                version = table.version()
        table.roll_back(version)
        assert table.rows() == [(0, 1, "figs"), (1, 1, "figs")]
        for _ in range(2):  # as where the checkpoint was taken back, too, and again
            here.call(sink, orders(spark, (2, 1, "figs")), 2, content=OTHER)
        with pytest.raises(CheckpointError, match="which holds another batch with this id"):
            here.call(sink, orders(spark, (5, 1, "figs")), 2, content=CONTENT)
        for batch_id in (3, 3, 4, 4):
            here.call(sink, orders(spark, (batch_id, 1, "figs")), batch_id, content=OTHER)
    assert table.rows() == [(batch_id, 1, "figs") for batch_id in range(5)]


@pytest.mark.parametrize("table", ["delta by name", "iceberg"], indirect=True)
def test_a_batch_of_a_table_that_was_replaced_is_written_again(
    spark: SparkSession, table: Table, tmp_path: Path
) -> None:
    with run(spark, tmp_path / "checkpoint") as here:
        here.call(table.sink(), orders(spark, (1, 1, "figs")), 0, content=CONTENT)
        spark.sql(
            f"CREATE OR REPLACE TABLE {table.in_sql} (id bigint, version int, item string)"
            f" USING {table.provider}"
        )
        for _ in range(2):
            here.call(table.sink(), orders(spark, (1, 1, "figs")), 0, content=CONTENT)
    assert table.rows() == [(1, 1, "figs")]


def test_metadata_of_the_user_stay_in_the_commits_of_delta(
    spark: SparkSession, tmp_path: Path
) -> None:
    require("delta")
    table = Table(spark, "delta", tmp_path)
    spark.conf.set("spark.databricks.delta.commitInfo.userMetadata", "mine")
    try:
        with run(spark, tmp_path / "checkpoint") as here:
            for batch_id, options in enumerate(({}, {"key": "id", "latest_by": "version"})):
                rows = orders(spark, (1, 1, "figs"))
                here.call(table.sink(**options), rows, batch_id, content=CONTENT)
                here.call(table.sink(**options), rows, batch_id, content=CONTENT)
    finally:
        spark.conf.unset("spark.databricks.delta.commitInfo.userMetadata")
    history = spark.sql(f"DESCRIBE HISTORY {table.in_sql}")
    # Two batches, and before them the commit that creates the table.
    assert [row.userMetadata.split()[0] for row in history.collect()] == ["mine"] * 3
    assert len(table.rows()) == 1


@pytest.mark.fault("Other writers commit to the table in between")
def test_the_newest_snapshot_of_a_query_is_enough(spark: SparkSession, tmp_path: Path) -> None:
    require("iceberg")
    table = Table(spark, "iceberg", tmp_path)
    with run(spark, tmp_path / "checkpoint") as here:
        for batch_id in (0, 1):
            here.call(table.sink(), orders(spark, (batch_id, 1, "figs")), batch_id)
        name = table.in_sql.removeprefix(f"{CATALOG}.")
        spark.sql(
            f"CALL {CATALOG}.system.expire_snapshots(table => '{name}', retain_last => 1, "
            f"older_than => TIMESTAMP '{datetime.now(UTC):%Y-%m-%d %H:%M:%S.%f}')"
        )
        assert spark.table(f"{table.in_sql}.snapshots").count() == 1
        here.call(table.sink(), orders(spark, (1, 1, "figs")), 1)
    assert table.rows() == [(0, 1, "figs"), (1, 1, "figs")]


def test_each_query_and_each_sink_counts_for_itself(
    spark: SparkSession, table: Table, tmp_path: Path
) -> None:
    rows = orders(spark, (1, 1, "figs"))
    for checkpoint in ("one", "two"):
        with run(spark, tmp_path / checkpoint) as here:
            here.call(table.sink(), rows, 5)
            here.call(table.sink(sink_name="other"), rows, 5)
    assert table.rows() == [(1, 1, "figs")] * 4


def held(rows: DataFrame, begun: Path, go_on: Path) -> DataFrame:
    """Return rows whose job creates a file, and then waits for another one."""

    def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begun.touch()
        while not go_on.exists():
            time.sleep(0.01)
        yield from batches

    return rows.coalesce(1).mapInArrow(hold, rows.schema)


@pytest.mark.fault("Two queries share a session")
@pytest.mark.parametrize("options", [{}, {"key": "id", "latest_by": "version"}])
def test_queries_of_one_session_commit_under_their_own_ids(
    spark: SparkSession, tmp_path: Path, options: dict[str, Any]
) -> None:
    require("delta")
    table, other_table = (Table(spark, "delta", tmp_path / name) for name in ("one", "two"))
    sink, other_sink = table.sink(**options), other_table.sink(**options)
    begun, go_on = tmp_path / "begun", tmp_path / "go on"
    rows = held(orders(spark, (2, 1, "tea")), begun, go_on)
    with run(spark, tmp_path / "first") as here, run(spark, tmp_path / "second") as other:
        here.call(sink, orders(spark, (1, 1, "figs")), 0)
        thread = threading.Thread(target=here.call, args=(sink, rows, 1))
        thread.start()
        try:
            eventually(begun.exists)
            other.call(other_sink, orders(spark, (3, 1, "nuts")), 7)
        finally:
            go_on.touch()
            thread.join(PATIENCE)
    assert transactions(tmp_path / "one") == {
        (f"{here.query_id}/delta", 0),
        (f"{here.query_id}/delta", 1),
    }
    assert transactions(tmp_path / "two") == {(f"{other.query_id}/delta", 7)}


@pytest.mark.parametrize("table", ["delta", "iceberg"], indirect=True)
def test_a_batch_is_merged_although_another_writer_changes_the_table_meanwhile(
    spark: SparkSession, table: Table, tmp_path: Path
) -> None:
    sink = table.sink(key="id", latest_by="version")
    begun, go_on = tmp_path / "begun", tmp_path / "go on"
    rows = held(orders(spark, (1, 2, "tea"), (3, 1, "nuts")), begun, go_on)
    with run(spark, tmp_path / "checkpoint") as here, ThreadPoolExecutor(1) as threads:
        here.call(sink, orders(spark, (1, 1, "figs"), (2, 1, "figs")), 0)
        merged = threads.submit(here.call, sink, rows, 1)
        try:
            eventually(begun.exists)
            spark.sql(f"UPDATE {table.in_sql} SET item = 'oil' WHERE version = 1")  # noqa: S608 - ours
        finally:
            go_on.touch()
        merged.result(PATIENCE)
        here.call(sink, rows, 1)
    assert table.rows() == [(1, 2, "tea"), (2, 1, "oil"), (3, 1, "nuts")]


def test_a_batch_is_merged_on_read_although_the_table_is_compacted_meanwhile(
    spark: SparkSession, tmp_path: Path
) -> None:
    require("iceberg")
    table = Table(spark, "iceberg", tmp_path)
    sink = table.sink(key="id", latest_by="version")
    begun, go_on = tmp_path / "begun", tmp_path / "go on"
    rows = held(orders(spark, (1, 2, "tea")), begun, go_on)
    name = table.in_sql.removeprefix(f"{CATALOG}.")
    with run(spark, tmp_path / "checkpoint") as here, ThreadPoolExecutor(1) as threads:
        for batch_id in (0, 1):
            here.call(sink, orders(spark, (1, 1, "figs"), (2 + batch_id, 1, "figs")), batch_id)
        spark.sql(
            f"ALTER TABLE {table.in_sql} SET TBLPROPERTIES ('write.merge.mode' = 'merge-on-read')"
        )
        merged = threads.submit(here.call, sink, rows, 2)
        try:
            eventually(begun.exists)
            spark.sql(
                f"CALL {CATALOG}.system.rewrite_data_files(table => '{name}',"
                f" options => map('rewrite-all', 'true'))"
            )
        finally:
            go_on.touch()
        merged.result(PATIENCE)
    assert table.rows() == [(1, 2, "tea"), (2, 1, "figs"), (3, 1, "figs")]


def test_two_queries_that_create_one_table_of_delta_both_write(
    spark: SparkSession, tmp_path: Path
) -> None:
    require("delta")
    table = Table(spark, "delta", tmp_path)
    begun, go_on = tmp_path / "begun", tmp_path / "go on"
    rows = held(orders(spark, (1, 1, "figs")), begun, go_on)
    with (
        run(spark, tmp_path / "one") as here,
        run(spark, tmp_path / "two") as other,
        ThreadPoolExecutor(1) as threads,
    ):
        written = threads.submit(here.call, table.sink(), rows, 0)
        try:
            eventually(begun.exists)
            other.call(table.sink(), orders(spark, (2, 1, "tea")), 0)
        finally:
            go_on.touch()
        written.result(PATIENCE)
    assert table.rows() == [(1, 1, "figs"), (2, 1, "tea")]


def test_two_queries_that_create_one_table_of_iceberg_both_write(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require("iceberg")
    table = Table(spark, "iceberg", tmp_path)
    with run(spark, tmp_path / "one") as here, run(spark, tmp_path / "two") as other:

        def exists(*_: object) -> bool:
            monkeypatch.undo()
            other.call(table.sink(), orders(spark, (2, 1, "tea")), 0)
            return False  # as it was when the first query looked

        monkeypatch.setattr(type(spark.catalog), "tableExists", exists)
        here.call(table.sink(), orders(spark, (1, 1, "figs")), 0)
    assert table.rows() == [(1, 1, "figs"), (2, 1, "tea")]


def test_the_waits_for_other_writers_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fanout.spark.sinks.tables.merge._WAITS", Backoff(base=1e-6, cap=1e-6))
    attempts: list[int] = []

    def attempt() -> None:
        attempts.append(1)
        raise ConnectionError("changed")

    with pytest.raises(ConnectionError, match="changed"):
        in_attempts(attempt, lambda error: "changed" in str(error))
    assert len(attempts) == 30
    with pytest.raises(ConnectionError, match="changed"):
        in_attempts(attempt, lambda _: False)
    assert len(attempts) == 31


@pytest.mark.parametrize("table", ["delta", "iceberg"], indirect=True)
def test_columns_of_the_table_alone_stay_and_are_generated(
    spark: SparkSession, table: Table, tmp_path: Path
) -> None:
    sink = table.sink(key="id", latest_by="version")
    with run(spark, tmp_path / "checkpoint") as here:
        here.call(sink, orders(spark, (1, 1, "figs")), 0)
        spark.sql(f"ALTER TABLE {table.in_sql} ADD COLUMN added string")
        spark.sql(f"UPDATE {table.in_sql} SET added = 'mine'")  # noqa: S608 - a name of ours
        here.call(sink, orders(spark, (1, 1, "tea"), (2, 1, "nuts")), 1)
    assert table.rows() == [(1, 1, "tea", "mine"), (2, 1, "nuts", None)]


def test_generated_columns_of_delta_follow_the_rows(spark: SparkSession, tmp_path: Path) -> None:
    require("delta")
    table = Table(spark, "delta by name", tmp_path)
    session: Any = spark._jsparkSession
    java: Any = spark._jvm
    tables = java.io.delta.tables.DeltaTable
    twice = tables.columnBuilder(session, "twice").dataType("bigint")
    made = tables.create(session).tableName(table.in_sql).addColumn("id", "bigint")
    made = made.addColumn("version", "int").addColumn("item", "string")
    made.addColumn(twice.generatedAlwaysAs("CAST(version * 2 AS bigint)").build()).execute()
    sink = table.sink(key="id", latest_by="version")
    with run(spark, tmp_path / "checkpoint") as here:
        here.call(sink, orders(spark, (1, 1, "figs"), (2, 1, "tea")), 0)
        here.call(sink, orders(spark, (1, 5, "nuts"), (3, 4, "oil")), 1)
    assert table.rows() == [(1, 5, "nuts", 10), (2, 1, "tea", 2), (3, 4, "oil", 8)]


@pytest.mark.parametrize("table", ["delta", "iceberg"], indirect=True)
def test_the_reason_of_a_refusal_is_said(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    with run(spark, tmp_path / "checkpoint") as here:
        here.call(table.sink(), orders(spark, (1, 1, "figs")), 0)
        more = orders(spark, (1, 1, "figs")).selectExpr("*", "1 AS added")
        with pytest.raises(BatchNotWrittenError, match=r"was not written to .*: .*\badded\b") as at:
            here.call(table.sink(), more, 1)
    assert "\n" not in str(at.value)


@pytest.mark.parametrize(("table", "options"), ONE_OF_EACH, indirect=["table"])
@pytest.mark.parametrize("policy", ["ANSI", "LEGACY"])
def test_a_type_that_would_change_a_value_is_refused(
    spark: SparkSession, table: Table, tmp_path: Path, options: dict[str, Any], policy: str
) -> None:
    sink = table.sink(**options)
    spark.conf.set("spark.sql.storeAssignmentPolicy", policy)
    try:
        with run(spark, tmp_path / "checkpoint") as here:
            here.call(sink, orders(spark, (1, 1, "figs")), 0)
            rows = orders(spark, (2, 1, "tea")).withColumn("version", F.expr("version + 0.7D"))
            with pytest.raises(OptionError, match="the column 'version' is double, and int in"):
                here.call(sink, rows, 1)
    finally:
        spark.conf.unset("spark.sql.storeAssignmentPolicy")
    assert table.rows() == [(1, 1, "figs")]


def test_a_statement_has_settings_of_its_own(spark: SparkSession) -> None:
    view = "CREATE OR REPLACE GLOBAL TEMP VIEW fanout_seen AS SELECT '${fanout.seen}' AS seen"
    _run(spark, view, {"fanout.seen": "mine"})
    (seen,) = spark.table("global_temp.fanout_seen").collect()
    assert seen.seen == "mine"
    assert spark.conf.get("fanout.seen", None) is None
    spark.catalog.dropGlobalTempView("fanout_seen")


def transactions(directory: Path) -> set[tuple[str, int]]:
    """Return the id of the writer and of the batch of each commit of a table that has some."""
    entries = (directory / "table" / "_delta_log").glob("*.json")
    actions = [json.loads(line) for entry in entries for line in entry.read_text().splitlines()]
    found = [action["txn"] for action in actions if "txn" in action]
    return {(one["appId"], one["version"]) for one in found}


@pytest.mark.fault("Another session has written a batch")
def test_a_batch_that_another_session_has_written_is_found(
    spark: SparkSession, table: Table, tmp_path: Path
) -> None:
    other = spark.newSession()
    with run(spark, tmp_path / "checkpoint") as here:
        here.call(table.sink(), orders(spark, (1, 1, "figs")), 0)
        here.call(table.sink(), orders(other, (1, 1, "figs")), 0)  # the session has the table now
        here.call(table.sink(), orders(spark, (2, 1, "tea")), 1)
        here.call(table.sink(), orders(other, (2, 1, "tea")), 1)
    # As the session that wrote last has the table.
    assert sorted(map(tuple, other.table(table.in_sql).collect())) == [
        (1, 1, "figs"),
        (2, 1, "tea"),
    ]


def test_iceberg_needs_a_thread_of_java_for_each_one_of_python(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, rows = IcebergSink(table=f"{CATALOG}.shop.nothing"), orders(spark, (1, 1, "figs"))
    with run(spark, tmp_path / "checkpoint") as here:
        # As with PYSPARK_PIN_THREAD=false.
        monkeypatch.setattr(spark.sparkContext, "_gateway", JavaGateway.__new__(JavaGateway))
        with pytest.raises(SetupError, match="PYSPARK_PIN_THREAD=true"):
            here.call(sink, rows, 0)
        with pytest.raises(SetupError, match="PYSPARK_PIN_THREAD=true"):
            sink.prepare(spark, here.loop)


@pytest.mark.fault("Other writers commit to the table in between")
def test_other_writers_do_not_hide_a_batch(
    spark: SparkSession, table: Table, tmp_path: Path
) -> None:
    rows = orders(spark, (1, 1, "figs"))
    with run(spark, tmp_path / "checkpoint") as here:
        here.call(table.sink(), rows, 0)
        orders(spark, (9, 9, "other")).write.insertInto(table.in_sql)
        here.call(table.sink(), rows, 0)
    assert table.rows() == [(1, 1, "figs"), (9, 9, "other")]


def test_the_newest_row_of_a_key_stays(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    sink = table.sink(key=["id"], latest_by="version")
    first = orders(spark, (1, 2, "b"), (1, 3, "c"), (1, 1, "a"), (2, 5, "x"), (None, 1, "none"))
    with run(spark, tmp_path / "checkpoint") as here:
        here.call(sink, first, 0)
        here.call(sink, orders(spark, (1, 2, "late"), (2, 6, "y"), (3, 1, "z"), (None, 2, "n")), 1)
        spark.sql(f"DELETE FROM {table.in_sql} WHERE id = 3")  # noqa: S608 - a name of ours
        here.call(sink, orders(spark, (3, 1, "z")), 1)  # it is written already
    assert table.rows() == [(1, 3, "c"), (2, 6, "y"), (None, 2, "n")]


def test_nothing_is_left_in_the_session(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    before = {row.key for row in spark.sql("SET").collect()}
    with run(spark, tmp_path / "checkpoint") as here:
        here.call(table.sink(key="id", latest_by="version"), orders(spark, (1, 1, "figs")), 0)
        with pytest.raises(BatchNotWrittenError, match=r"batch 1 was not written to .*: "):
            here.call(table.sink(), orders(spark).withColumnRenamed("item", "thing"), 1)
    assert {row.key for row in spark.sql("SET").collect()} == before
    assert spark.sql("SHOW VIEWS").collect() == []


def test_a_query_writes_what_it_reads(table: Table, start: Callable[..., FanOutQuery]) -> None:
    source = ManualSource(bounded=True)
    source.put(*(b"%d" % n for n in range(100)))
    source.end("a")
    sink = table.sink(transform=lambda df: df.select("sequence"))
    assert start(source, sink, available_now=True).await_termination(PATIENCE)
    assert sorted(table.rows()) == [(n + 1,) for n in range(100)]


@pytest.mark.fault("A run that lost its checkpoint to another one writes nothing more")
def test_a_run_that_lost_the_checkpoint_writes_nothing(
    spark: SparkSession, table: Table, tmp_path: Path
) -> None:
    with run(spark, tmp_path / "checkpoint") as here:
        here.call(table.sink(), orders(spark, (1, 1, "figs")), 0)
        here.storage.delete(run_name(here.ownership.run))
        with pytest.raises(CheckpointError, match="this run stops"):
            here.call(table.sink(), orders(spark, (2, 1, "tea")), 1)
    assert table.rows() == [(1, 1, "figs")]


def test_a_key_that_the_rows_lack_is_an_error(
    spark: SparkSession, table: Table, tmp_path: Path
) -> None:
    sink = table.sink(key="nope", latest_by="version")
    with (
        run(spark, tmp_path / "checkpoint") as here,
        pytest.raises(OptionError, match="key names the column 'nope', which the DataFrame has"),
    ):
        here.call(sink, orders(spark, (1, 1, "figs")), 0)


@pytest.mark.fault("A grant, a column or a library is missing, or the server is away")
@pytest.mark.skipif(
    not pyspark.__version__.startswith("4.3"), reason="this session has Delta and Iceberg"
)
@pytest.mark.parametrize(
    ("sink", "says"),
    [
        (DeltaSink(path="/out"), "no class io.delta.*; the sink needs Delta: start Spark with"),
        (IcebergSink(table="a.b"), "no class org.apache.iceberg.*; the sink needs Iceberg: start"),
    ],
)
def test_missing_jars_are_said_before_the_first_record(
    start: Callable[..., FanOutQuery], sink: DeltaSink | IcebergSink, says: str
) -> None:
    with pytest.raises(SetupError, match=says):
        start(ManualSource(), sink)


@pytest.mark.long
@pytest.mark.skipif(
    not pyspark.__version__.startswith("4.3"), reason="this session has Delta and Iceberg"
)
@pytest.mark.parametrize("sink", [DeltaSink(path="/out"), IcebergSink(table="a.b")])
def test_missing_jars_are_said_in_the_first_batch_of_an_own_handler(
    start: Callable[..., FanOutQuery], sink: DeltaSink | IcebergSink
) -> None:
    source = ManualSource()
    source.put(b"figs")
    query = start(source, sink.write)
    with pytest.raises(BatchFailedError, match=r"SetupError in batch .* has no class .*") as at:
        query.await_termination(PATIENCE)
    assert isinstance(at.value.__cause__, SetupError)


@pytest.mark.parametrize(
    ("kind", "options", "says"),
    [
        (DeltaSink, {}, "either table= or path="),
        (DeltaSink, {"table": "a", "path": "b"}, "either table= or path="),
        (DeltaSink, {"path": "b", "key": "k"}, "key and latest_by belong together"),
        (IcebergSink, {"table": ""}, "table='' must be the name of a table"),
        (IcebergSink, {"table": "a", "latest_by": "k"}, "key and latest_by belong together"),
    ],
)
def test_bad_options(kind: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        kind(**options)
