"""Queries on Spark whose options name a source of Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException

from fanout.kafka.shuffle.frames import HelloFrame, encode_control
from tests.spark.dataframe.triggers import needs_trigger
from tests.support.kafka.shuffle_scripted import framed
from tests.support.kafka.topics import Topic, committed

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, Row, SparkSession

    from fanout.testing.kafka.broker import KafkaBroker

pytestmark = pytest.mark.spark


@pytest.fixture
def topic(kafka_broker: KafkaBroker) -> Topic:
    return Topic(kafka_broker, partitions=2)


def read_all(spark: SparkSession, tmp_path: Path, **options: str) -> list[Row]:
    """Run a query until everything is read; return its rows."""
    rows: list[Row] = []

    def take(frame: DataFrame, _: int) -> None:
        rows.extend(frame.collect())

    records = spark.readStream.format("fanout").options(
        landing=str(tmp_path / "landing"), maxWait="0", **options
    )
    writer = records.load().writeStream.foreachBatch(take).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        query.awaitTermination(50)
        assert not query.isActive
    finally:
        query.stop()
    return rows


def options_of(topic: Topic, **more: Any) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": topic.broker.bootstrap_servers,
        "subscribe": topic.name,
        "startingOffsets": "earliest",
    } | more


@needs_trigger
@pytest.mark.prove
def test_topics_of_kafka_are_landed_and_read(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    group = f"{topic.name}-group"
    options = options_of(topic, source="kafka") | {"kafka.group.id": group}
    topic.put(10, partition=0)
    topic.put(10, partition=1)
    rows = read_all(spark, tmp_path, **options)
    topic.put(5, partition=1)
    rows += read_all(spark, tmp_path, **options)
    assert sorted((row.partition, row.offset) for row in rows) == [
        (partition, offset) for partition, log in sorted(topic.log.items()) for offset, _ in log
    ]
    assert committed(topic, group) == {0: 10, 1: 15}


@needs_trigger
@pytest.mark.prove
@pytest.mark.fault(
    "A topic is deleted and created again between two runs, however many records it has then"
)
def test_a_topic_that_was_created_again_between_two_runs_is_told_by_its_id(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    options = options_of(topic, source="kafka")
    topic.put(10)
    assert len(read_all(spark, tmp_path, **options)) == 10
    topic.broker.delete_topic(topic.name)
    again = Topic(topic.broker, partitions=2, name=topic.name)
    again.put(20)
    with pytest.raises(StreamingQueryException, match="was deleted and created anew"):
        read_all(spark, tmp_path, **options)
    rows = read_all(spark, tmp_path, **options, failOnDataLoss="false")
    assert [row.offset for row in rows] == [*range(20)]


@needs_trigger
@pytest.mark.prove
def test_a_shuffle_is_landed_and_read(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    for partition in (0, 1):
        hello = {"value": encode_control(HelloFrame(0, 1, 1, 2))}
        records = [{"key": b"k", "value": framed(b"%d" % n, n)} for n in range(5)]
        topic.write([hello, *records], partition)
    rows = read_all(spark, tmp_path, **options_of(topic, source="shuffle"))
    assert sorted(int(row.value) for row in rows) == sorted([*range(5), *range(5)])
    assert {row.eventTime is not None for row in rows} == {True}


@pytest.mark.long
def test_a_topic_that_does_not_exist_ends_the_query(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    options = options_of(topic, source="kafka", subscribe="nowhere")
    with pytest.raises(StreamingQueryException, match=r"ServiceError: .*nowhere"):
        read_all(spark, tmp_path, **options)


@pytest.mark.long
def test_a_wrong_option_is_an_error_before_anything_is_read(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    options = options_of(topic, source="kafka", startingOffset="earliest")
    sentence = r"the option 'startingoffset' is not known; did you mean 'startingOffsets'\?"
    with pytest.raises(AnalysisException, match=sentence):
        read_all(spark, tmp_path, **options)
    assert not (tmp_path / "landing").exists()
