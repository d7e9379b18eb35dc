"""A value of any Arrow type comes through `format("fanout")` as it is, or is an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from fanout.errors import OptionError
from fanout.spark.dataframe.data_source import LandingDataSource
from tests.spark.arrow_columns import columns, in_arrow, in_spark
from tests.spark.dataframe.landings import write_landing
from tests.support.manual_source import ManualSource

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.long
@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kathmandu"])
@pytest.mark.parametrize("large", ["false", "true"])
def test_each_value_of_each_type_is_equal(
    spark: SparkSession, tmp_path: Path, zone: str, large: str
) -> None:
    found = columns()
    write_landing(tmp_path / "landing", pa.table(found))
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", large)
    spark.conf.set("spark.sql.parquet.datetimeRebaseModeInRead", "LEGACY")
    try:
        df = spark.read.format("fanout").option("landing", str(tmp_path / "landing")).load()
        differing = {
            name: (in_spark(df, name), in_arrow(column))
            for name, column in found.items()
            if in_spark(df, name) != in_arrow(column)
        }
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")
        spark.conf.unset("spark.sql.parquet.datetimeRebaseModeInRead")
    assert differing == {}


@pytest.mark.long
def test_nanoseconds_that_spark_cannot_hold_are_an_error_and_others_are_equal(
    spark: SparkSession, tmp_path: Path
) -> None:
    for name, at in (("whole", 1_767_323_045_678_901_000), ("not", 1_767_323_045_678_901_234)):
        table = pa.table({"at": pa.array([at], pa.timestamp("ns", "UTC"))})
        write_landing(tmp_path / name, table)
    read = spark.read.format("fanout")
    df = read.option("landing", str(tmp_path / "whole")).load()
    assert in_spark(df, "at") == ["1767323045678901"]
    with pytest.raises(Exception, match="not each value can be timestamp"):
        read.option("landing", str(tmp_path / "not")).load().collect()


@pytest.mark.long
def test_a_landing_with_a_type_that_spark_has_not_names_the_column(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_landing(tmp_path / "landing", pa.table({"n": pa.array([1], pa.uint64())}))
    df = spark.read.format("fanout").option("landing", str(tmp_path / "landing"))
    with pytest.raises(Exception, match="the column 'n' is uint64, for which this version of Sp"):
        df.load()


def test_a_source_whose_columns_spark_cannot_read_is_refused_before_it_is_landed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ManualSource()
    source.schema = source.schema.append(pa.field("at", pa.timestamp("ns")))
    monkeypatch.setattr(LandingDataSource, "source", source)
    with pytest.raises(OptionError, match=r"the column 'at' is timestamp\[ns\], which Spark canno"):
        LandingDataSource({"landing": str(tmp_path / "landing")}).schema()
    assert not (tmp_path / "landing").exists()
