"""Rare values in tables of Delta Lake and Apache Iceberg, as readers other than Spark see them."""

from __future__ import annotations

import itertools
import struct
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fanout.errors import SetupError
from fanout.spark import DeltaSink, IcebergSink
from tests.spark.sinks.kafka.harness import run
from tests.support.delta_table import files_of
from tests.support.spark.table_formats import CATALOG, LAKEHOUSES, require

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [LAKEHOUSES, pytest.mark.spark]

ZONES: Final = (
    "America/New_York",
    pytest.param("UTC", marks=pytest.mark.prove),
    pytest.param("Asia/Kathmandu", marks=pytest.mark.prove),
)
_NAMES = itertools.count(1)
# 0001-01-01, both sides of the gap of 1582, a day of now, and 9999-12-31.
DAYS: Final = (-719_162, -141_428, -141_427, 20_758, 2_932_896)
# The hour that comes twice in New York is that of 1793511000 and 1793514600 seconds.
SECONDS: Final = (-62_135_596_800, -12_219_292_801, 1_793_511_000, 1_793_514_600, 253_402_300_799)
DOUBLES: Final = (-0.0, float("nan"), float("-inf"), 5e-324, 1.7976931348623157e308)
WHOLE: Final = (-(2**63), 2**63 - 1, 0, -1, 1)
TEXTS: Final = ("", "\0", "x" * 1_000_000, "\U0001f34c e\u0301", " a ")
DECIMALS: Final = ("0.0000000001", "-9999999999999999999999999999.9999999999", "40000.01", "0", "1")


def values(spark: SparkSession) -> DataFrame:
    """Return a row for each place in the lists above."""
    given = [*zip(range(5), DAYS, SECONDS, DOUBLES, WHOLE, TEXTS, DECIMALS, strict=True)]
    named = "id int, day int, second bigint, d double, n bigint, s string, x string"
    return spark.createDataFrame(given, named).selectExpr(
        "id",
        "date_from_unix_date(day) AS day",
        "timestamp_micros(second * 1000000 + 123456) AS at",
        "d",
        "CAST(d AS float) AS f",
        "n",
        "s",
        "CAST(s AS binary) AS b",
        "CAST(x AS decimal(38, 10)) AS x",
        "IF(id = 0, NULL, named_struct("
        "'a', array(s, NULL), 'm', IF(id = 1, NULL, map('k', n)))) AS r",
        "n = 0 AS flag",
        "1 AS version",
    )


def bits(number: float) -> bytes:
    return b"nan" if number != number else struct.pack("<d", number)  # noqa: PLR0124 - NaN


def seen(files: list[str]) -> list[tuple[Any, ...]]:
    """Return what Arrow reads in files of Parquet, with times as numbers and doubles as bits."""
    tables = [pq.read_table(file, coerce_int96_timestamp_unit="us") for file in files]
    found = pa.concat_tables(tables).sort_by("id")
    numbers = found["at"].cast(pa.timestamp("us")).cast(pa.int64()).to_pylist()
    floats = [
        bits(struct.unpack("<f", struct.pack("<f", one))[0]) for one in found["f"].to_pylist()
    ]
    rows = zip(
        found["day"].cast(pa.int32()).to_pylist(),
        numbers,
        map(bits, found["d"].to_pylist()),
        floats,
        *(found[name].to_pylist() for name in ("n", "s", "b", "flag")),
        map(str, found["x"].to_pylist()),
        found["r"].to_pylist(),
        strict=True,
    )
    return [*rows]


def expected() -> list[tuple[Any, ...]]:
    """Return what was given, as `seen` returns it."""
    singles = (*DOUBLES[:3], 0.0, float("inf"))
    nested = [
        None if place == 0 else {"a": [text, None], "m": None if place == 1 else [("k", n)]}
        for place, (text, n) in enumerate(zip(TEXTS, WHOLE, strict=True))
    ]
    rows = zip(
        DAYS,
        [second * 1_000_000 + 123_456 for second in SECONDS],
        map(bits, DOUBLES),
        map(bits, singles),
        WHOLE,
        TEXTS,
        map(str.encode, TEXTS),
        [n == 0 for n in WHOLE],
        [
            str(Decimal(one).quantize(Decimal("1e-10"), context=Context(prec=38)))
            for one in DECIMALS
        ],
        nested,
        strict=True,
    )
    return [*rows]


@pytest.fixture(params=ZONES)
def zone(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.sql.session.timeZone", request.param)
    spark.conf.set("spark.sql.parquet.datetimeRebaseModeInWrite", "CORRECTED")
    spark.conf.set("spark.sql.parquet.int96RebaseModeInWrite", "CORRECTED")
    yield
    spark.conf.unset("spark.sql.session.timeZone")
    spark.conf.unset("spark.sql.parquet.datetimeRebaseModeInWrite")
    spark.conf.unset("spark.sql.parquet.int96RebaseModeInWrite")


@pytest.mark.usefixtures("zone")
@pytest.mark.parametrize("options", [{}, {"key": ("id", "d"), "latest_by": "version"}])
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_rare_values_are_what_other_readers_see(
    spark: SparkSession, tmp_path: Path, kind: str, options: dict[str, Any]
) -> None:
    require(kind)
    path, name = tmp_path / "table", f"{CATALOG}.rare.v{next(_NAMES)}"
    sink: DeltaSink | IcebergSink = IcebergSink(table=name, **options)
    if kind == "delta":
        sink = DeltaSink(path=str(path), **options)
    with run(spark, tmp_path / "checkpoint") as here:
        here.call(sink, values(spark), 0)
        if options:
            here.call(sink, values(spark), 1)  # each takes the place of itself
    if kind == "delta":
        files = [str(file) for file in files_of(path)]
    else:
        stored = spark.table(f"{name}.files").select("file_path").collect()
        files = [unquote(urlparse(file).path) for (file,) in stored]
    assert seen(files) == expected()


def test_a_session_that_shifts_old_days_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    require("delta")
    name = "spark.sql.parquet.datetimeRebaseModeInWrite"
    spark.conf.set(name, "LEGACY")
    try:
        with (
            run(spark, tmp_path / "checkpoint") as here,
            pytest.raises(SetupError, match=f"{name} is LEGACY"),
        ):
            here.call(DeltaSink(path=str(tmp_path / "table")), values(spark), 0)
    finally:
        spark.conf.unset(name)
    assert not (tmp_path / "table").exists()
