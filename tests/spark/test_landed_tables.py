"""Spark on tables that name the files of a landing: it reads, compacts and deletes."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.landing.projections.tables import Delta, Iceberg, Lab, iceberg_catalog
from tests.support.rest_catalog import rest_catalog
from tests.support.spark.table_formats import require

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

_CATALOGS = itertools.count(1)


class SparkOnDelta:
    """Spark's statements on a table of Delta."""

    def __init__(self, spark: SparkSession, tmp_path: Path) -> None:
        location = str(tmp_path / "landing")
        self.lab = Lab(location, Delta(location, None), None)
        self._spark = spark
        self.table = f"delta.`{location}/segments`"

    def compact(self) -> None:
        self._spark.sql(f"OPTIMIZE {self.table}").collect()

    def expire(self) -> None:
        settings = {
            "spark.databricks.delta.retentionDurationCheck.enabled": "false",
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",  # not ten thousand
        }
        for name, value in settings.items():
            self._spark.conf.set(name, value)
        self._spark.sql(f"VACUUM {self.table} RETAIN 0 HOURS").collect()
        for name in settings:
            self._spark.conf.unset(name)


class SparkOnIceberg:
    """Spark's statements on a table of Iceberg, in a REST catalog."""

    def __init__(self, spark: SparkSession, tmp_path: Path, uri: str) -> None:
        kind = Iceberg({"type": "rest", "uri": uri})
        self.lab = Lab(str(tmp_path / "landing"), kind, None)
        self._spark = spark
        self._catalog = f"far{next(_CATALOGS)}"
        name = f"spark.sql.catalog.{self._catalog}"
        spark.conf.set(name, "org.apache.iceberg.spark.SparkCatalog")
        options = {"type": "rest", "uri": uri, "cache-enabled": "false"}
        for option, value in options.items():
            spark.conf.set(f"{name}.{option}", value)
        self.table = f"{self._catalog}.db.orders"

    def compact(self) -> None:
        options = "options => map('rewrite-all', 'true')"
        call = f"system.rewrite_data_files(table => 'db.orders', {options})"
        self._spark.sql(f"CALL {self._catalog}.{call}").collect()

    def expire(self) -> None:
        until = "older_than => TIMESTAMP '2099-01-01 00:00:00', retain_last => 1"
        call = f"system.expire_snapshots(table => 'db.orders', {until})"
        self._spark.sql(f"CALL {self._catalog}.{call}").collect()


@pytest.fixture(params=["delta", "iceberg"])
def here(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path
) -> Iterator[SparkOnDelta | SparkOnIceberg]:
    require(request.param)
    if request.param == "delta":
        yield SparkOnDelta(spark, tmp_path)
        return
    with rest_catalog(iceberg_catalog(tmp_path)) as served:
        yield SparkOnIceberg(spark, tmp_path, served.uri)


def land(lab: Lab, entries: int, *without: int) -> None:
    """Land entries, and check that the table has them all, `without` those that were deleted."""
    told = asyncio.run(lab.land(entries))
    assert (told.entries_behind, told.failure) == (0, "")
    found = sorted(int(data) for data in lab.kind.read().column("data").to_pylist())
    assert found == [number for number in range(lab.count) if number not in without]


def files(lab: Lab) -> set[str]:
    """Return the files that the landing has written, and that are still there."""
    return {path.name for path in Path(lab.location, "segments").glob("run-*.parquet")}


def rows(spark: SparkSession, table: str) -> list[tuple[Any, ...]]:
    found = spark.table(table).selectExpr("shard", "sequence", "CAST(data AS STRING)").collect()
    return sorted(tuple(row) for row in found)


def expected(lab: Lab, *without: int) -> list[tuple[Any, ...]]:
    numbers = (number for number in range(lab.count) if number not in without)
    return sorted(("a", number + 1, str(number)) for number in numbers)


def test_spark_reads_what_was_landed(
    spark: SparkSession, here: SparkOnDelta | SparkOnIceberg
) -> None:
    for _ in range(2):
        land(here.lab, 2)
        assert rows(spark, here.table) == expected(here.lab)
        found = spark.table(here.table).where("sequence = 2").collect()
        assert [bytes(row.data) for row in found] == [b"1"]


def test_a_landing_goes_on_while_spark_compacts_and_deletes_what_is_old(
    spark: SparkSession, here: SparkOnDelta | SparkOnIceberg
) -> None:
    for _ in range(2):
        land(here.lab, 3)
        here.compact()
        here.expire()
        assert rows(spark, here.table) == expected(here.lab)
    land(here.lab, 1)
    assert rows(spark, here.table) == expected(here.lab)


@pytest.mark.parametrize("deletes", ["rewrites files", "adds files of deletes"])
def test_a_landing_goes_on_when_spark_deletes_rows(
    spark: SparkSession, here: SparkOnDelta | SparkOnIceberg, deletes: str
) -> None:
    land(here.lab, 3)
    if deletes == "adds files of deletes":
        if isinstance(here, SparkOnDelta):
            pytest.skip("deltalake reads no deletion vectors")
        properties = "'write.delete.mode' = 'merge-on-read', 'format-version' = '2'"
        spark.sql(f"ALTER TABLE {here.table} SET TBLPROPERTIES ({properties})")
    spark.sql(f"DELETE FROM {here.table} WHERE sequence = 2")  # noqa: S608 - of this test
    land(here.lab, 2, 1)
    assert rows(spark, here.table) == expected(here.lab, 1)
    before = files(here.lab)
    here.compact()
    here.expire()
    assert files(here.lab) == set()
    assert before
    land(here.lab, 1, 1)
    assert rows(spark, here.table) == expected(here.lab, 1)
