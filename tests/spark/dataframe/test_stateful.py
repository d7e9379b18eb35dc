"""Queries that remember what they have read, over a restart."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F  # noqa: N812 - as Spark's documentation names it

from tests.spark.dataframe.landings import FilledLanding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.prove, pytest.mark.timeout(300)]


@pytest.fixture
def read_all(tmp_path: Path) -> Callable[[DataFrame], list[Row]]:
    """Run a query until everything is read; return the rows that it writes."""

    def read_all(df: DataFrame) -> list[Row]:
        rows: list[Row] = []

        def take(batch: DataFrame, _: int) -> None:
            rows.extend(batch.collect())

        writer = df.writeStream.foreachBatch(take)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        return rows

    return read_all


def test_duplicates_within_a_watermark_are_dropped_over_a_restart(
    landing: FilledLanding,
    read_stream: Callable[..., DataFrame],
    read_all: Callable[[DataFrame], list[Row]],
) -> None:
    landing.put(31)  # the second event of an id is the last one; the third comes afterwards
    events = read_stream(maxRecordsPerTrigger=10).select(F.expr("sequence DIV 3").alias("id"))
    once = events.withColumn("at", F.timestamp_seconds(F.col("id") + 1))
    once = once.withWatermark("at", "5 seconds").dropDuplicatesWithinWatermark(["id"])
    rows = read_all(once)
    landing.put(20)
    rows += read_all(once)
    assert Counter(row["id"] for row in rows) == {n // 3: 1 for n in landing.sequences()}


def test_two_landings_are_joined_over_a_restart(
    landing: FilledLanding,
    read_stream: Callable[..., DataFrame],
    read_all: Callable[[DataFrame], list[Row]],
    tmp_path: Path,
) -> None:
    other = FilledLanding(tmp_path / "other")
    landing.put(25)
    other.put(12)  # what is missing comes after the restart

    def numbered(df: DataFrame, name: str) -> DataFrame:
        events = df.select(F.col("sequence").alias(name))
        events = events.withColumn(f"{name}At", F.timestamp_seconds(name))
        return events.withWatermark(f"{name}At", "5 seconds")

    left = numbered(read_stream(maxRecordsPerTrigger=10), "a")
    right = numbered(read_stream(landing=other.location), "b").where("b % 3 != 0")
    close = "a = b AND bAt BETWEEN aAt - INTERVAL 1 second AND aAt + INTERVAL 1 second"
    joined = left.join(right, F.expr(close), "leftOuter").select("a", "b")
    rows = read_all(joined)
    other.put(8)
    landing.put(15)
    rows += read_all(joined)
    # The watermark is 15: that of the landing which is behind.
    alone = [(a, None) for a in (3, 6, 9, 12)]
    pairs = [(b, b) for b in other.sequences() if b % 3]
    assert Counter(tuple(row) for row in rows) == Counter([*alone, *pairs])


@pytest.fixture
def rocksdb(spark: SparkSession) -> Iterator[None]:
    """Let Spark keep state where transformWithState needs it."""
    name = "spark.sql.streaming.stateStore.providerClass"
    package = "org.apache.spark.sql.execution.streaming.state"
    spark.conf.set(name, f"{package}.RocksDBStateStoreProvider")
    yield
    spark.conf.unset(name)


@pytest.mark.usefixtures("rocksdb")
def test_state_of_ones_own_is_kept_over_a_restart(
    landing: FilledLanding,
    read_stream: Callable[..., DataFrame],
    read_all: Callable[[DataFrame], list[Row]],
) -> None:
    from tests.spark.dataframe.sessions import PAUSE, SCHEMA, Sessions, sessions  # noqa: PLC0415

    landing.put(70)  # in the middle of a session
    # Twenty records of as many seconds, and a pause; three keys.
    events = read_stream(maxRecordsPerTrigger=30).select(
        F.expr("sequence % 3").alias("key"),
        F.expr("sequence + 50 * (sequence DIV 20)").alias("second"),
    )
    events = events.withColumn("at", F.timestamp_seconds("second")).withWatermark("at", "5 seconds")
    found = events.groupBy("key").transformWithStateInPandas(
        statefulProcessor=Sessions(),
        outputStructType=SCHEMA,
        outputMode="Append",
        timeMode="EventTime",
    )
    rows = read_all(found)
    landing.put(60)
    rows += read_all(found)
    seconds = {n: n + 50 * (n // 20) for n in landing.sequences()}
    ended = max(seconds.values()) - 5 - PAUSE
    expected = [
        (key, one[0], one[-1], len(one))
        for key in range(3)
        for one in sessions(seconds[n] for n in seconds if n % 3 == key)
        if one[-1] <= ended
    ]
    assert len(expected) == 18
    assert sorted(tuple(row) for row in rows) == sorted(expected)
