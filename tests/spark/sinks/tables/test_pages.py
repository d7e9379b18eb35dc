"""The examples and the tables of options of the pages on sinks for tables."""

from __future__ import annotations

import re
from dataclasses import fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest

from fanout.spark import DeltaSink, IcebergSink, JdbcSink, ParquetSink, PostgresSink
from tests.spark.sinks.kafka.harness import run
from tests.spark.sinks.tables.jdbc_databases import PASSWORD, database
from tests.support.pages import page, python_blocks
from tests.support.spark.harness import eventually
from tests.support.spark.table_formats import require

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from fanout.testing.kinesis.server import KinesisServer

pytestmark = pytest.mark.spark

SINKS: Final[dict[str, Any]] = {
    "writing-to-delta.md": DeltaSink,
    "writing-to-iceberg.md": IcebergSink,
    "writing-to-jdbc.md": JdbcSink,
    "writing-to-parquet.md": ParquetSink,
    "writing-to-postgres.md": PostgresSink,
}


@pytest.mark.parametrize("name", SINKS)
def test_the_page_names_every_option(name: str) -> None:
    section = page(name).split("\n## Options\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", section, re.MULTILINE)
    options = {one.name: one.default for one in fields(SINKS[name]) if one.init}
    assert {option for option, _ in rows} == options.keys()
    for option, default in rows:
        written = default.strip("`").strip('"')
        assert written in {str(options[option]), "required"}, option


@pytest.fixture
def names(
    kinesis: KinesisServer, monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> dict[str, Any]:
    """What examples find: a stream with records, and credentials. Returns their names."""
    for name, value in kinesis.environment.items():
        monkeypatch.setenv(name, value)
    kinesis.put_records("orders", [(f"customer-{n % 3}", b"item %d" % n) for n in range(12)])
    return {"spark": spark}


def run_example(
    name: str, names: dict[str, Any], lake: Path, here: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """Run the first example of a page, without its last line; return the others.

    The lake, and other places, take the place of those that the page names.
    """

    def placed(code: str) -> str:
        for place, other in {"s3a://lake": str(lake), **here}.items():
            code = code.replace(place, other)
        return code

    first, *others = map(placed, python_blocks(name))
    assert first.endswith("query.await_termination()\n")
    exec(first.removesuffix("query.await_termination()\n"), names)  # noqa: S102 - the pages are ours
    return others


def write_newest(names: dict[str, Any], code: str, lake: Path) -> Any:
    """Run the example with a key, and write two batches with its sink; return the sink."""
    exec(code, names)  # noqa: S102 - the pages are ours
    sink = names["newest"]
    with run(names["spark"], lake / "_chk" / "newest") as here:
        for batch_id, rows in enumerate(
            (
                [("ann", b"figs", 2), ("ann", b"tea", 3), ("bob", b"nuts", 1)],
                [("ann", b"late", 1), ("bob", b"oil", 4)],
            )
        ):
            frame = names["spark"].createDataFrame(rows, "partitionKey string, data binary, s int")
            arrived = "timestamp_seconds(s) AS approximateArrivalTimestamp"
            here.call(sink, frame.selectExpr("partitionKey", "data", arrived), batch_id)
    return sink


ITEMS: Final = {f"item {n}" for n in range(12)}
NEWEST: Final = {("ann", "tea"), ("bob", "oil")}


@pytest.mark.long
def test_the_examples_for_parquet(names: dict[str, Any], tmp_path: Path) -> None:
    (reading,) = run_example("writing-to-parquet.md", names, tmp_path)
    try:
        eventually(lambda: [*(tmp_path / "orders").glob("query=*/sink=parquet/batch=*/_SUCCESS")])
        exec(reading, names)  # noqa: S102 - the page is ours
        assert {row.data for row in names["orders"].collect()} <= ITEMS
        eventually(lambda: {r.data for r in names["sink"].read(names["spark"]).collect()} == ITEMS)
    finally:
        names["query"].stop()
    (directory,) = (tmp_path / "orders").glob("query=*/sink=parquet/batch=0")
    assert [*directory.glob("day=*")]


@pytest.mark.long
def test_the_examples_for_postgres(
    names: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database_url: str
) -> None:
    def query(statement: str) -> set[tuple[Any, ...]]:
        with psycopg.connect(database_url) as database:
            cursor = database.execute(statement)
            return set(cursor.fetchall()) if cursor.description else set()

    (setup,) = re.findall(r"```sql\n(.*?)```", page("writing-to-postgres.md"), re.DOTALL)
    role = f"etl_{tmp_path.name.rpartition('_')[2]}"
    query(f"CREATE ROLE {role} LOGIN")
    # The grants of the page are enough.
    query(setup.replace("TO etl;", f"TO {role};"))
    monkeypatch.setenv("DATABASE_URL", database_url.replace("postgres:", f"{role}:"))
    monkeypatch.setitem(
        names["spark"].sparkContext.environment,
        "DATABASE_URL",
        database_url.replace("postgres:", f"{role}:"),
    )
    (keyed,) = run_example("writing-to-postgres.md", names, tmp_path)
    try:
        eventually(lambda: {item for _, item in query("TABLE orders")} == ITEMS)
    finally:
        names["query"].stop()
    write_newest(names, keyed, tmp_path)
    assert query("SELECT customer, item FROM customers") == NEWEST


@pytest.mark.long
def test_the_examples_for_jdbc(
    names: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (setup,) = re.findall(r"```sql\n(.*?)```", page("writing-to-jdbc.md"), re.DOTALL)
    monkeypatch.setenv("DATABASE_PASSWORD", PASSWORD)
    with database(names["spark"], "h2", tmp_path) as db:
        db.run(*filter(str.strip, setup.split(";")))
        here = {
            "jdbc:oracle:thin:@//db.example.com:1521/shop": db.url,
            "oracle.jdbc.OracleDriver": db.driver,
        }
        (keyed,) = run_example("writing-to-jdbc.md", names, tmp_path, here)
        try:
            eventually(lambda: {item for _, item in db.run("SELECT * FROM orders")} == ITEMS)
        finally:
            names["query"].stop()
        write_newest(names, keyed, tmp_path)
        assert set(db.run("SELECT customer, item FROM customers")) == NEWEST


def test_the_examples_for_delta(names: dict[str, Any], tmp_path: Path) -> None:
    require("delta")
    keyed, own = run_example("writing-to-delta.md", names, tmp_path)
    spark, orders = names["spark"], tmp_path / "orders"
    try:
        eventually(lambda: [*orders.glob("_delta_log/*.json")])
        eventually(lambda: {r.item for r in spark.table(f"delta.`{orders}`").collect()} == ITEMS)
    finally:
        names["query"].stop()
    write_newest(names, keyed, tmp_path)
    found = spark.table(f"delta.`{tmp_path}/customers`").collect()
    assert {(row.customer, row["item"]) for row in found} == NEWEST
    exec(own.removesuffix("query.await_termination()\n"), names)  # noqa: S102 - the page is ours
    counts = f"delta.`{tmp_path}/counts`"
    try:
        eventually(lambda: [*(tmp_path / "counts").glob("_delta_log/*.json")])
        eventually(lambda: sum(row["count"] for row in spark.table(counts).collect()) == len(ITEMS))
    finally:
        names["query"].stop()


def test_the_handler_of_the_page_on_delta_writes_each_batch_with_both_sinks(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It needs no jars of Delta: what the sinks do with a batch is replaced."""
    written: list[tuple[str, set[str], int]] = []

    def write(sink: DeltaSink, df: Any, batch_id: int) -> None:
        assert sink.transform is not None
        written.append((sink.sink_name, {*sink.transform(df).columns}, batch_id))

    monkeypatch.setattr(DeltaSink, "write", write)
    first, _, own = python_blocks("writing-to-delta.md")
    names: dict[str, Any] = {"spark": spark}
    for code in (first, own):
        exec(code.partition("\nquery = ")[0], names)  # noqa: S102 - the page is ours
    df = spark.createDataFrame([("ann", b"figs")], "partitionKey string, data binary")
    names["write"](df, 7)
    assert written == [
        ("delta", {"customer", "item"}, 7),
        ("counts", {"partitionKey", "count"}, 7),
    ]


def test_the_examples_for_iceberg(names: dict[str, Any], tmp_path: Path) -> None:
    require("iceberg")
    spark = names["spark"]
    (keyed,) = run_example("writing-to-iceberg.md", names, tmp_path)
    try:
        eventually(lambda: spark.catalog.tableExists("lake.shop.orders"))
        eventually(lambda: {r["item"] for r in spark.table("lake.shop.orders").collect()} == ITEMS)
    finally:
        names["query"].stop()
    (statement,) = re.findall(r"```sql\n(.*?)```", page("writing-to-iceberg.md"), re.DOTALL)
    assert "0" in {row[1] for row in spark.sql(statement).collect()}
    write_newest(names, keyed, tmp_path)
    found = spark.table("lake.shop.customers").collect()
    assert {(row.customer, row["item"]) for row in found} == NEWEST
