"""format("fanout") on Spark itself."""

from __future__ import annotations

import asyncio
import re
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException

import fanout
from fanout.kafka.reading.columns import SCHEMA as KAFKA
from fanout.kinesis.reading.decode import SCHEMA as KINESIS
from fanout.landing.log.columns import read_identity
from fanout.landing.log.entries import entry_name
from fanout.landing.storage.local_storage import LocalStorage
from tests.spark.dataframe.killed_query import counts, expected
from tests.spark.dataframe.landings import write_landing
from tests.spark.dataframe.triggers import needs_trigger
from tests.support.manual_source import SCHEMA
from tests.support.retention import expire
from tests.support.shaped_source import ShapedSource

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.dataframe.conftest import Runs
    from tests.spark.dataframe.landings import FilledLanding

pytestmark = pytest.mark.spark
PAGE = (Path(__file__).parents[3] / "docs" / "landing.md").read_text()
NOW = datetime(2026, 11, 22, 8, 30, 0, 123456, UTC)
VALUES = {
    "partitionKey": "k",
    "data": b"1",
    "stream": "orders",
    "shardId": "shardId-000000000000",
    "sequenceNumber": "4" * 56,
    "approximateArrivalTimestamp": NOW,
    "subSequenceNumber": 2**40,
    "key": b"k",
    "value": b"",
    "topic": "orders",
    "partition": 3,
    "offset": 2**40,
    "timestamp": NOW,
    "timestampType": 1,
    "headers": [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
}
# After ten records in the entries 0 and 1; without what Spark notes of its settings.
CHECKPOINT_OF_4_0 = {
    "metadata": '{"id":"963028cc-a52a-4d8b-a733-997495e6eea1"}',
    "offsets/0": "v1\n"
    '{"batchWatermarkMs":0,"batchTimestampMs":1795424197487,"conf":{}}\n'
    '{"version": 1, "landing": "IDENTITY", "entry": 2, "row": 0, "began": 0}',
    "commits/0": 'v1\n{"nextBatchWatermarkMs":0}',
}


@needs_trigger
def test_batches_hold_every_row_once_and_say_how_far_behind_they_are(
    landing: FilledLanding, read_stream: Callable[..., DataFrame], runs: Runs
) -> None:
    landing.put(45)
    df = read_stream(reader="sessions", maxRecordsPerTrigger=20)
    assert [*map(len, runs.run(df))] == [20, 20, 5]
    assert [one["numInputRows"] for one in runs.progress()] == [20, 20, 5]
    assert [one["latestOffset"]["entriesBehind"] for one in runs.progress()] == [3, 1, 0]
    landing.put(5)
    assert runs.run(df) == [[46, 47, 48, 49, 50]]


@pytest.mark.long
def test_two_queries_read_a_landing_while_it_is_filled(
    landing: FilledLanding, read_stream: Callable[..., DataFrame], tmp_path: Path
) -> None:
    landing.put(20)
    found: dict[str, list[int]] = {"one": [], "two": []}
    queries = []
    for name, sequences in found.items():

        def take(df: DataFrame, _: int, sequences: list[int] = sequences) -> None:
            sequences += sorted(row.sequence for row in df.collect())

        writer = read_stream(reader=name, maxRecordsPerTrigger=17).writeStream.foreachBatch(take)
        queries.append(writer.option("checkpointLocation", str(tmp_path / name)).start())
    try:
        for _ in range(4):
            landing.put(20)
        for query in queries:
            query.processAllAvailable()
    finally:
        for query in queries:
            query.stop()
    assert found == {"one": landing.sequences(), "two": landing.sequences()}


@pytest.mark.long
@needs_trigger
def test_a_query_is_restarted_from_an_older_checkpoint(
    landing: FilledLanding,
    read_stream: Callable[..., DataFrame],
    runs: Runs,
    tmp_path: Path,
) -> None:
    landing.put(15)
    df = read_stream(reader="sessions", maxRecordsPerTrigger=10)
    runs.run(df)
    # The second batch was planned, and is not committed.
    (tmp_path / "checkpoint" / "commits" / "1").unlink()
    landing.put(5)
    assert runs.run(df) == [[11, 12, 13, 14, 15], [16, 17, 18, 19, 20]]


@pytest.mark.prove
def test_a_query_goes_on_from_a_copy_of_its_checkpoint(
    landing: FilledLanding, read_stream: Callable[..., DataFrame], runs: Runs, tmp_path: Path
) -> None:
    def rows(checkpoint: str) -> list[int]:
        return [row for batch in runs.run(df, checkpoint) for row in batch]

    landing.put(10)
    df = read_stream(reader="sessions")
    assert rows(runs.checkpoint) == landing.sequences()
    copies = [shutil.copytree(runs.checkpoint, tmp_path / name) for name in ("older", "oldest")]
    landing.put(15)
    assert rows(runs.checkpoint) == [*range(11, 26)]
    landing.put(5)
    assert rows(str(copies[0])) == [*range(11, 31)]
    for number in range(4):
        LocalStorage(landing.path).delete(entry_name(number))
    with pytest.raises(StreamingQueryException, match=r"the entries 2 to 3 of .* were deleted"):
        rows(str(copies[1]))


@pytest.mark.long
def test_a_checkpoint_of_spark_4_0_is_continued(
    landing: FilledLanding, read_stream: Callable[..., DataFrame], runs: Runs
) -> None:
    landing.put(25)
    identity = read_identity(LocalStorage(landing.path)).id
    for name, text in CHECKPOINT_OF_4_0.items():
        file = Path(runs.checkpoint) / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.replace("IDENTITY", identity))
    assert runs.run(read_stream(reader="sessions")) == [[*range(11, 26)]]


@pytest.mark.long
def test_a_query_that_was_changed_goes_on(
    landing: FilledLanding, read_stream: Callable[..., DataFrame], runs: Runs
) -> None:
    landing.put(15)
    before = read_stream(reader="sessions", maxRecordsPerTrigger=100)
    assert runs.run(before.select("sequence")) == [landing.sequences()]
    landing.put(10)
    after = read_stream(maxBytesPerTrigger=1 << 20, failOnDataLoss="false")
    after = after.where("sequence % 2 = 0").selectExpr("sequence", "shard", "length(data)")
    assert runs.run(after) == [[16, 18, 20, 22, 24]]


@pytest.mark.long
def test_two_queries_read_one_landing(
    landing: FilledLanding, read_stream: Callable[..., DataFrame], runs: Runs, tmp_path: Path
) -> None:
    landing.put(15)
    assert runs.run(read_stream(reader="one")) == [landing.sequences()]
    assert runs.run(read_stream(reader="two"), str(tmp_path / "two")) == [landing.sequences()]
    marks = LocalStorage(landing.path).list("readers")
    assert [mark.name.rpartition("-")[0] for mark in marks] == ["one", "two"]


@pytest.mark.long
def test_a_query_is_told_that_its_entries_were_deleted(
    landing: FilledLanding, read_stream: Callable[..., DataFrame], runs: Runs
) -> None:
    landing.put(25)
    expire(landing.path, 2)
    with pytest.raises(StreamingQueryException, match=r"the entries 0 to 1 of .* were deleted"):
        runs.run(read_stream(start=0))
    assert runs.run(read_stream(start=0, failOnDataLoss="false")) == [list(range(11, 26))]


def test_a_batch_read_is_bounded(spark: SparkSession, landing: FilledLanding) -> None:
    landing.put(35)

    def read(**options: Any) -> list[int]:
        df = spark.read.format("fanout").options(landing=landing.location, **options).load()
        return sorted(row.sequence for row in df.select("sequence").collect())

    assert read() == landing.sequences()
    assert read(start=2, stop=4) == list(range(11, 31))
    assert read(start="latest") == []


def test_sql_reads_a_landing(spark: SparkSession, landing: FilledLanding) -> None:
    landing.put(15)
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW landed USING fanout "
        f"OPTIONS (landing '{landing.location}', stop '2')"
    )
    assert spark.sql("SELECT count(*), max(sequence) FROM landed").collect() == [(10, 10)]
    spark.catalog.dropTempView("landed")


def test_a_schema_chooses_columns(spark: SparkSession, landing: FilledLanding) -> None:
    landing.put(5)
    reading = spark.read.format("fanout").option("landing", landing.location)
    assert reading.schema("sequence bigint").load().columns == ["sequence"]
    assert reading.schema("sequence int").load().agg({"sequence": "max"}).collect() == [(5,)]
    for schema, words in (
        ("colour string", "the records of entry 1 of .* have no column colour"),
        ("shard int", "the column shard of entry 1 of .* is string, and not each value can be int"),
    ):
        with pytest.raises(Exception, match=words):
            reading.schema(schema).load().collect()


@pytest.mark.long
def test_columns_that_were_added_are_null_before(
    spark: SparkSession, tmp_path: Path, read_stream: Callable[..., DataFrame], runs: Runs
) -> None:
    """A stream that began before reads on, and one with the new columns reads all."""
    location = str(tmp_path / "landing")
    with_note = pa.schema([("note", pa.string()), *SCHEMA])

    def land_all(source: ShapedSource) -> None:
        source.put(*[b"1"] * (12 if source.schema == with_note else 6))
        asyncio.run(land_what_is_there(source, location))

    land_all(ShapedSource())
    before = read_stream(landing=location)
    assert runs.run(before) == [[*range(1, 7)]]
    land_all(ShapedSource(with_note, note="new"))
    assert runs.run(before) == [[*range(7, 13)]]
    after = spark.read.format("fanout").option("landing", location).load()
    assert after.columns == [*SCHEMA.names, "note"]
    rows = after.groupBy("note").count().orderBy("note").collect()
    assert [tuple(row) for row in rows] == [(None, 6), ("new", 6)]
    alone = spark.read.format("fanout").option("landing", location).schema("note string").load()
    assert alone.groupBy("note").count().orderBy("note").collect() == rows
    assert runs.run(read_stream(landing=location), str(tmp_path / "other")) == [[*range(1, 13)]]


@pytest.mark.long
def test_a_landing_of_mixed_directories_is_copied(spark: SparkSession, tmp_path: Path) -> None:
    """As docs/landing.md shows; a version that compared nothing has mixed it."""
    (example,) = re.findall(r"```python\n(old = .*?)```", PAGE, re.DOTALL)
    old, new, copy = (str(tmp_path / name) for name in ("old", "new", "copy"))
    timed = pa.schema([*SCHEMA, ("time", pa.timestamp("us", "UTC"))])

    def land_all(records: int, location: str, **options: Any) -> None:
        source = ShapedSource(timed, time=NOW)
        source.put(*[b"1"] * records)
        asyncio.run(land_what_is_there(source, location, **options))

    land_all(4, old, partition_by_date="time")
    for stored in (tmp_path / "old" / "columns").iterdir():
        stored.write_text(stored.read_text().replace('"by_date":true', '"by_date":false'))
    land_all(9, old)
    land_all(4, new)
    land_all(9, new)
    for entry in (0, 1):  # the service had them no longer
        (tmp_path / "new" / entry_name(entry)).unlink()
    names = {"spark": spark, "PLACE": ["shard", "sequence"], "COPY": copy}
    exec(example, names | {"LOCATION": old, "NEW_LOCATION": new})  # noqa: S102 - the page is ours
    rows = spark.read.parquet(copy).orderBy("sequence").collect()
    assert [row.sequence for row in rows] == [1, 2, 3, 4]


async def land_what_is_there(source: ShapedSource, location: str, **options: Any) -> None:
    chosen: dict[str, Any] = {"max_wait": 0.0, "available_now": True} | options
    async with fanout.land(source, location, **chosen) as landing:
        async for _ in landing:
            pass


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"failOnDatLoss": "true"}, "OptionError: failondatloss is no option of .*; did you mean"),
        ({"landing": "/nowhere"}, "there is no landing at /nowhere: start one with fanout.land"),
        ({"storage.account_key": "canary"}, "would show a secret in Spark's plans"),
    ],
)
def test_an_option_that_is_wrong_is_refused_as_it_is_loaded(
    read_stream: Callable[..., DataFrame], landing: FilledLanding, options: Any, words: str
) -> None:
    landing.put(5)
    with pytest.raises(Exception, match=words) as raised:
        read_stream(**options)
    assert "canary" not in str(raised.value)


@pytest.mark.long
def test_rows_go_to_a_sink_of_spark(
    landing: FilledLanding, read_stream: Callable[..., DataFrame], runs: Runs, tmp_path: Path
) -> None:
    landing.put(35)
    df = read_stream(maxRecordsPerTrigger=20)
    sink = df.writeStream.format("parquet").option("checkpointLocation", runs.checkpoint)
    query = sink.trigger(availableNow=True).start(str(tmp_path / "sink"))
    query.awaitTermination(50)
    assert not query.isActive
    rows = df.sparkSession.read.parquet(str(tmp_path / "sink")).select("sequence").collect()
    assert sorted(row.sequence for row in rows) == landing.sequences()


@pytest.mark.long
@pytest.mark.usefixtures("whole_runs")
def test_windows_and_duplicates_within_a_watermark(
    landing: FilledLanding, read_stream: Callable[..., DataFrame], runs: Runs
) -> None:
    landing.put(60)
    found: dict[int, int] = {}

    def take(df: DataFrame, _: int) -> None:
        found.update((row["start"], row["count"]) for row in df.collect())

    query = (
        counts(read_stream(maxRecordsPerTrigger=20))
        .writeStream.outputMode("append")
        .foreachBatch(take)
        .option("checkpointLocation", runs.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(50)
    assert not query.isActive
    assert found == expected(landing.sequences())


@pytest.mark.parametrize("schema", [KINESIS, KAFKA], ids=["kinesis", "kafka"])
def test_the_columns_are_those_of_foreach_batch(
    spark: SparkSession, tmp_path: Path, schema: pa.Schema
) -> None:
    rows = [dict.fromkeys(schema.names), {name: VALUES[name] for name in schema.names}]
    write_landing(tmp_path, pa.Table.from_pylist(rows, schema))
    read = spark.read.format("fanout").option("landing", str(tmp_path)).load()
    expected = spark.read.parquet(str(tmp_path / "segments"))  # as foreach_batch reads a segment
    assert read.schema == expected.schema
    assert read.collect() == expected.collect()
