"""Queries whose source is landed by landers on Spark's executors, in a session on this machine."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from fanout.decoding import Json
from fanout.errors import ServiceError
from fanout.kafka import Cluster, KafkaSource
from fanout.spark import read_stream
from fanout.spark.dataframe import driver_landings
from tests.spark.dataframe.test_read_stream import filled
from tests.spark.dataframe.triggers import needs_trigger
from tests.support.kafka.topics import PLAINTEXT, Topic
from tests.support.spark.harness import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from fanout.core.source import Source
    from fanout.testing.kafka.broker import KafkaBroker
    from tests.spark.dataframe.conftest import Runs


pytestmark = pytest.mark.spark


class Landing:
    """A landing that queries fill, without landers too."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.root = root

    def read(self, source: Source, **how: Any) -> DataFrame:
        """Land and read with one lander: one of the two cores is left for the batches."""
        options = {"maxWait": 0, "reader": "sessions"} | how.pop("options", {})
        chosen = {"landers": 1} | how
        return read_stream(self.spark, source, landing=str(self.root), options=options, **chosen)

    def named(self) -> list[str]:
        """Return the names of the files that its entries name."""
        entries = [json.loads(path.read_bytes()) for path in (self.root / "batches").iterdir()]
        return [file["name"] for entry in entries for file in entry["segments"]]

    def files(self) -> list[str]:
        return [f"segments/{path.name}" for path in (self.root / "segments").glob("*.parquet")]


@pytest.fixture
def landing(spark: SparkSession, tmp_path: Path) -> Landing:
    return Landing(spark, tmp_path / "landing")


@pytest.fixture(autouse=True)
def driver_ends() -> Iterator[None]:
    """End what the driver has for planners, as the end of its process does."""
    yield
    driver_landings.of_this_process().close()
    driver_landings.of_this_process.cache_clear()


def lander_jobs(spark: SparkSession) -> list[int]:
    """Return the jobs of landers that run."""
    scala = spark.sparkContext._jsc.sc()
    return list(scala.statusTracker().getActiveJobIds())


@pytest.mark.long
@needs_trigger
def test_landers_land_for_a_query_and_end_with_it(
    landing: Landing, runs: Runs, spark: SparkSession
) -> None:
    runs.run(landing.read(filled(45), options={"maxRecordsPerTrigger": 20}))
    assert [row for batch in runs.batches for row in batch] == list(range(1, 46))
    assert max(map(len, runs.batches)) == 20
    assert all(re.fullmatch(r"segments/run-\d+-\d+-\d+\.parquet", name) for name in landing.named())
    eventually(lambda: not lander_jobs(spark), "no landers")
    assert sorted(landing.files()) == sorted(landing.named())


@needs_trigger
@pytest.mark.prove
def test_the_next_query_continues_with_landers_or_without(
    landing: Landing, runs: Runs, spark: SparkSession
) -> None:
    assert runs.run(landing.read(filled(45))) == [list(range(1, 46))]
    assert runs.run(landing.read(filled(50), landers=None)) == [[46, 47, 48, 49, 50]]
    assert runs.run(landing.read(filled(60))) == [list(range(51, 61))]
    eventually(lambda: not lander_jobs(spark), "no landers")
    assert sorted(landing.files()) == sorted(landing.named())


@pytest.mark.long
@needs_trigger
def test_the_error_of_a_source_ends_the_query(landing: Landing, runs: Runs) -> None:
    source = filled(5)
    source.fail(ServiceError("the stream is gone"))
    with pytest.raises(StreamingQueryException, match=r"SplitFailedError: .*the stream is gone"):
        runs.run(landing.read(source))


@pytest.mark.long
def test_too_few_cores_end_the_query(landing: Landing, runs: Runs) -> None:
    with pytest.raises(StreamingQueryException, match=r"landers=2 need 3 cores, .* use 1 at most"):
        runs.run(landing.read(filled(5), landers=2))


@pytest.mark.long
@needs_trigger
def test_landers_read_with_the_schema_of_before(
    landing: Landing, kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    topic = Topic(kafka_broker)

    def rows(decode: Json) -> list[dict[str, Any]]:
        cluster = Cluster(kafka_broker.bootstrap_servers, security=PLAINTEXT)
        source = KafkaSource(cluster=cluster, topics=topic.name, start="earliest", decode=decode)
        found: list[Any] = []

        def take(frame: DataFrame, _: int) -> None:
            found.extend(frame.drop("topic", "partition", "offset").collect())

        frame = landing.read(source, options={"newColumns": "ignore"})
        writer = frame.writeStream.foreachBatch(take).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        query.awaitTermination(100)
        return [row.asDict() for row in found]

    topic.write([{"value": b'{"id": 1, "name": "a"}'}])
    assert rows(Json("id BIGINT, name STRING")) == [{"id": 1, "name": "a"}]
    topic.write([{"value": b'{"id": 2, "name": "b", "more": 2}'}])
    assert rows(Json("more INT, id BIGINT")) == [{"id": 2, "name": "b"}]
