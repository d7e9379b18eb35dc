"""Each value is stored as it is, or refused before anything of its batch is stored.

Every sink here writes every type of Spark that it takes, under several time zones and the settings
of Spark's older releases. A client that is not ours reads what it has stored.
"""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pyspark
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fanout.errors import FanOutError
from tests.spark.sinks.kafka.harness import run
from tests.spark.sinks.tables.jdbc_databases import database
from tests.spark.sinks.tables.value_kinds import KINDS, Column, comparable, rows
from tests.spark.sinks.tables.value_places import JdbcPlace, ParquetPlace, Place, PostgresPlace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.spark.sinks.kafka.harness import Run

pytestmark = pytest.mark.spark

# Of Spark 2, and of one that fails early; the zone has an hour twice, and one never.
OLD: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "America/New_York",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.caseSensitive": "true",
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
    "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
    "spark.sql.parquet.int96RebaseModeInRead": "LEGACY",
    "spark.sql.parquet.int96RebaseModeInWrite": "LEGACY",
    "spark.sql.parquet.writeLegacyFormat": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
SETTINGS: Final[Mapping[str, Mapping[str, str]]] = {
    "old": OLD,
    "new": {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
        "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    },
    "java": {
        "spark.sql.session.timeZone": "Asia/Kolkata",
        "spark.sql.datetime.java8API.enabled": "true",
        "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
        "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    },
}
_BATCHES = itertools.count()


@pytest.fixture(params=["postgres", "parquet", "h2", "derby"])
def place(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Iterator[Place]:
    """What each sink writes to."""
    if request.param == "postgres":
        yield PostgresPlace(request.getfixturevalue("database_url"))
    elif request.param == "parquet":
        yield ParquetPlace(tmp_path / "out")
    else:
        with database(spark, request.param, tmp_path) as found:
            yield JdbcPlace(found)


@contextmanager
def configured(spark: SparkSession, name: str) -> Iterator[None]:
    """Let Spark have other settings in the block."""
    for key, value in SETTINGS[name].items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key in SETTINGS[name]:
            spark.conf.unset(key)


def check(
    spark: SparkSession, here: Run, place: Place, columns: Sequence[Column], *, single: bool = True
) -> list[Column]:
    """Check that values come back, or are refused; return the columns of those that came back.

    Args:
        spark: The session.
        here: The query.
        place: Where the values are stored.
        columns: The values.
        single: Try the values of a refused column one by one.
    """
    sink = place.sink(columns)
    try:
        here.call(sink, rows(spark, columns), next(_BATCHES))
    except FanOutError:
        assert all([*place.read(n, one.kind)] == [] for n, one in enumerate(columns)), columns
        parts = _halves(columns) if single or len(columns) > 1 else []
        return [one for half in parts for one in check(spark, here, place, half, single=single)]
    for number, column in enumerate(columns):
        signed = place.signs_zero(column.target)
        stored = dict(place.read(number, column.kind))
        found = [comparable(stored.pop(row), signed=signed) for row in range(len(column.values))]
        assert found == [comparable(value, signed=signed) for value in column.values], column
        assert {*stored.values()} <= {None}, column
    return [*columns]


def _halves(columns: Sequence[Column]) -> list[Sequence[Column]]:
    """Return two parts of what was refused as a whole, or none where it is a single value."""
    if len(columns) > 1:
        return [columns[: len(columns) // 2], columns[len(columns) // 2 :]]
    (column,) = columns
    half = len(column.values) // 2
    parts = (column.values[:half], column.values[half:]) if half else ()
    return [[replace(column, values=part)] for part in parts]


# What a sink has no type for, or Java's times cannot tell in every zone.
REFUSED: Final[Mapping[str, set[str]]] = {
    "postgres": set(),
    "parquet": set(),
    "h2": {kind.name for kind in KINDS if kind.name.startswith("array")} | {"timestamp_ntz"},
}
if pyspark.__version__.startswith("3."):
    REFUSED["h2"].add("timestamp")  # Spark 3.5 reads no table with a time that has a zone


@pytest.mark.long
@pytest.mark.parametrize("place", REFUSED, indirect=True)
def test_hard_values_are_kept(
    request: pytest.FixtureRequest, spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    name = request.node.callspec.params["place"]
    columns = [
        Column(kind, place.types(kind)[0], [None, *kind.kept, *(() if name == "h2" else kind.old)])
        for kind in KINDS
        if kind.name not in REFUSED[name]
    ]
    with configured(spark, "old"), run(spark, tmp_path / "checkpoint") as here:
        # Its nanoseconds have no first and last instant of Spark, but all of these.
        spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
        assert check(spark, here, place, columns) == columns


@pytest.mark.prove
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("configuration", SETTINGS)
def test_every_value_is_kept_or_refused(
    spark: SparkSession, place: Place, tmp_path: Path, configuration: str
) -> None:
    with configured(spark, configuration), run(spark, tmp_path / "checkpoint") as here:
        for kind in KINDS:
            # What a number becomes in a column of another type depends on no zone and no calendar.
            every = configuration == "old" or "date" in kind.name or "time" in kind.name
            types = place.types(kind) if every else place.types(kind)[:1]
            edges = [None, *kind.kept, *kind.old, *kind.hard]
            check(spark, here, place, [Column(kind, one, edges) for one in types])

        @settings(
            max_examples=8,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=[*HealthCheck],
        )
        @given(drawn=st.tuples(*(st.lists(kind.some, max_size=9) for kind in KINDS)))
        def random(drawn: tuple[list[Any], ...]) -> None:
            columns = [
                Column(kind, place.types(kind)[0], [None, *values])
                for kind, values in zip(KINDS, drawn, strict=True)
            ]
            check(spark, here, place, columns, single=False)

        random()
