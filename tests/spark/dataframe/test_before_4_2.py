"""What Spark 4.0 and 4.1 do: their planners are not told of limits and Trigger.AvailableNow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fanout.spark import read_stream as read_source
from tests.spark.dataframe.killed_query import counts, expected
from tests.support.manual_source import ManualSource
from tests.support.spark.harness import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.dataframe.conftest import Runs
    from tests.spark.dataframe.landings import FilledLanding

pytestmark = pytest.mark.spark


def test_available_now_is_one_batch_within_the_limits_after_a_restart(
    landing: FilledLanding, read_stream: Callable[..., DataFrame], runs: Runs
) -> None:
    landing.put(45)
    df = read_stream(reader="sessions", maxRecordsPerTrigger=20)
    assert runs.run(df) == [landing.sequences()]
    landing.put(25)
    assert runs.run(df) == [[*range(46, 66)]]
    assert runs.run(df) == [[*range(66, 71)]]


@pytest.mark.usefixtures("whole_runs")
def test_available_now_is_all_that_is_there_with_a_setting_of_spark(
    landing: FilledLanding, read_stream: Callable[..., DataFrame], runs: Runs
) -> None:
    landing.put(45)
    df = read_stream(reader="sessions", maxRecordsPerTrigger=20)
    assert runs.run(df) == [landing.sequences()]
    landing.put(25)
    assert runs.run(df) == [[*range(46, 71)]]


def test_a_batch_that_was_not_finished_is_repeated(
    landing: FilledLanding, read_stream: Callable[..., DataFrame], runs: Runs, tmp_path: Path
) -> None:
    landing.put(10)
    df = read_stream(reader="sessions")
    runs.run(df)
    landing.put(5)
    runs.run(df)
    (tmp_path / "checkpoint" / "commits" / "1").unlink()
    landing.put(5)
    assert runs.run(df) == [[*range(11, 16)]]
    assert runs.run(df) == [[*range(16, 21)]]


def test_limits_hold_after_the_first_batch(
    landing: FilledLanding, read_stream: Callable[..., DataFrame], tmp_path: Path
) -> None:
    landing.put(25)
    batches: list[int] = []
    writer = read_stream(maxRecordsPerTrigger=20).writeStream.foreachBatch(
        lambda df, _: batches.append(df.count())
    )
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        query.processAllAvailable()
        landing.put(45)
        query.processAllAvailable()
    finally:
        query.stop()
    assert [count for count in batches if count] == [25, 20, 20, 5]


def test_a_complete_window_is_written_by_the_next_run_with_records(
    landing: FilledLanding, read_stream: Callable[..., DataFrame], runs: Runs
) -> None:
    landing.put(60)
    complete = expected(landing.sequences())
    found: dict[int, int] = {}

    def run() -> None:
        writer = counts(read_stream()).writeStream.foreachBatch(
            lambda df, _: found.update((row["start"], row["count"]) for row in df.collect())
        )
        writer = writer.option("checkpointLocation", runs.checkpoint)
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination(50)
            assert not query.isActive
        finally:
            query.stop()

    run()
    assert found == {}
    landing.put(5)
    run()
    assert found == complete


def test_a_query_lands_its_source_and_the_next_one_continues(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows: list[int] = []

    def run(records: int) -> None:
        source = ManualSource()
        source.put(*(b"%d" % number for number in range(records)))
        landing = str(tmp_path / "landing")
        df = read_source(spark, source, landing=landing, options={"maxWait": 0})
        writer = df.writeStream.foreachBatch(
            lambda df, _: rows.extend(row.sequence for row in df.collect())
        )
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            eventually(lambda: len(rows) >= records or not query.isActive, "its records")
            query.processAllAvailable()
        finally:
            query.stop()

    run(45)
    eventually(lambda: not list((tmp_path / "landing").glob("_scratch/*")), "no leftovers")
    run(50)
    assert sorted(rows) == [*range(1, 51)]
