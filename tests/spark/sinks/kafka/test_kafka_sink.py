"""Batches that Spark writes to a real broker, in jobs in which something goes wrong."""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark import SparkContext, TaskContext
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from fanout.errors import (
    BatchFailedError,
    CheckpointError,
    FanOutError,
    StreamStateError,
    UnwritableRecordError,
)
from fanout.kafka import Cluster, Security
from fanout.spark import KafkaSink
from tests.spark.sinks.kafka.harness import CONTENT, OTHER, Output, Record, run
from tests.support.kafka.topics import PLAINTEXT
from tests.support.manual_source import ManualSource
from tests.support.spark.harness import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from fanout.spark import FanOutQuery
    from fanout.testing.kafka.broker import KafkaBroker

pytestmark = pytest.mark.spark


@pytest.fixture
def output(kafka_broker: KafkaBroker) -> Output:
    return Output(kafka_broker)


def numbered(spark: SparkSession, rows: int, first: int = 0) -> DataFrame:
    """Return rows whose values count, each under one of seven keys."""
    ids = spark.range(first, first + rows, numPartitions=3)
    return ids.selectExpr("cast(id % 7 as string) key", "cast(id as string) value")


def check_order(records: Iterable[list[Record]]) -> None:
    for of_partition in records:
        values = [int(record.value or b"") for record in of_partition]
        assert values == sorted(values)


def once(flag: Path, act: Callable[[], object]) -> Callable[[], Security]:
    """Return a security that lets something happen in the first task that asks for it."""

    def security() -> Security:
        if TaskContext.get() is not None:
            try:
                flag.touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                act()
        return Security(protocol="PLAINTEXT")

    return security


def test_every_record_is_there_once_and_each_key_in_order(
    spark: SparkSession, output: Output, tmp_path: Path
) -> None:
    sink = output.sink()
    with run(spark, tmp_path) as here:
        for batch_id in range(2):
            here.write(sink, numbered(spark, 500, 500 * batch_id), batch_id)
    found = output.read()
    assert sorted(map(int, output.values())) == list(range(1000))
    check_order(found.values())
    keys = [{record.key for record in records} for records in found.values()]
    assert sum(map(len, keys)) == 7, "a key is in one partition"


@pytest.mark.long
def test_all_columns_reach_the_broker_and_a_handler_writes_to_two_sinks(
    spark: SparkSession, kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    first, second = Output(kafka_broker), Output(kafka_broker)
    # Brokers delete what is older than a week.
    now = int(datetime.now(UTC).timestamp()) * 1000
    headers = "array(struct('trace' as key, cast('x' as binary) as value))"
    all_columns = (
        "cast(null as binary) as key",
        "cast(id as string) value",
        "cast(id % 4 as int) partition",
        f"case when id = 0 then {headers} end headers",
        f"timestamp_millis({now} + id) timestamp",
    )

    def partitioner(keys: pa.Array, count: int) -> pa.Array:
        return pa.array([len(key) % count for key in keys.to_pylist()], pa.int32())

    cluster = Cluster(kafka_broker.bootstrap_servers, security=PLAINTEXT)

    def handler(df: DataFrame, batch_id: int) -> None:
        KafkaSink(cluster=cluster, sink_name="one", topic=first.name).write(
            df.selectExpr(*all_columns), batch_id
        )
        rows = df.selectExpr(
            "repeat('k', cast(id as int)) key", "cast(id as string) value", f"'{second.name}' topic"
        )
        KafkaSink(cluster=cluster, sink_name="two", partitioner=partitioner).write(rows, batch_id)

    with run(spark, tmp_path) as here:
        here.call(handler, spark.range(6), 0)
    assert first.read() == {
        number: [
            Record(
                None,
                b"%d" % id_,
                [("trace", b"x")] if id_ == 0 else None,
                now + id_,
            )
            for id_ in range(number, 6, 4)
        ]
        for number in range(4)
    }
    assert {
        number: [record.value for record in records] for number, records in second.read().items()
    } == {number: [b"%d" % id_ for id_ in range(number, 6, 4)] for number in range(4)}


@pytest.mark.long
def test_a_worker_that_is_killed_costs_an_attempt_and_no_record(
    spark: SparkSession, output: Output, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def transform(df: DataFrame) -> DataFrame:
        return df.repartition(3).withColumn("value", F.concat("value", F.lit("-"), F.rand()))

    sink = output.sink(security=once(tmp_path / "died", die), transform=transform)
    with run(spark, tmp_path / "checkpoint") as here:
        here.write(sink, numbered(spark, 100), 0)
    assert "attempt 1 to write batch 0" in caplog.text
    numbers = Counter(int(value.partition(b"-")[0]) for value in output.values())
    assert numbers == Counter(range(100))
    assert len(output.values(isolation="read_uncommitted")) >= 100


@pytest.mark.long
@pytest.mark.usefixtures("lost_shuffle")
def test_a_stage_that_spark_begins_anew_costs_an_attempt_and_no_record(
    spark: SparkSession,
    output: Output,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lose_what_was_shuffled() -> None:
        for directory in os.environ["SPARK_LOCAL_DIRS"].split(","):
            for file in pathlib.Path(directory).glob("*/shuffle_*.data"):
                file.unlink()

    # More tasks than can run at once, so that some find nothing.
    monkeypatch.setattr(SparkContext, "defaultParallelism", 4)
    sink = output.sink(security=once(tmp_path / "lost", lose_what_was_shuffled))
    with run(spark, tmp_path / "checkpoint") as here:
        here.write(sink, numbered(spark, 100), 0)
    assert "attempt 1 to write batch 0: Spark began its stage anew" in caplog.text
    assert sorted(map(int, output.values())) == list(range(100))


def test_rows_name_their_topics(
    spark: SparkSession, kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    outputs = [Output(kafka_broker, partitions) for partitions in (1, 3)]
    names = ", ".join(f"'{output.name}'" for output in outputs)
    df = spark.range(20).selectExpr(
        "cast(id % 5 as string) key", "cast(id as string) value",
        f"element_at(array({names}), cast(id % 2 as int) + 1) topic",
    )  # fmt: skip
    sink = outputs[0].sink(topic=None)
    with run(spark, tmp_path) as here:
        here.write(sink, df, 0)
        with pytest.raises(UnwritableRecordError, match="a record has no topic"):
            here.write(sink, df.withColumn("topic", F.lit(None).cast("string")), 1)
    for odd, output in enumerate(outputs):
        found = output.read()
        assert sorted(map(int, output.values())) == list(range(odd, 20, 2))
        check_order(found.values())


@pytest.mark.parametrize("guarantee", ["at_least_once", "none"])
def test_other_guarantees_need_no_transaction(
    spark: SparkSession, output: Output, tmp_path: Path, guarantee: str
) -> None:
    sink = output.sink(delivery_guarantee=guarantee)
    with run(spark, tmp_path) as here:
        sink.prepare(spark, here.loop)
        sink.recover(here.context(0))
        here.write(sink, numbered(spark, 50), 0)
        assert here.storage.list("sinks/kafka") == ()
    # Whether an unconfirmed record is there already is not known.
    found = output.read(wait_for=50)
    assert sorted(int(r.value or b"") for records in found.values() for r in records) == [
        *range(50)
    ]
    check_order(found.values())


def test_a_query_writes_what_it_reads_once_over_restarts(
    start: Callable[..., FanOutQuery], output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ManualSource("a", bounded=True)
    sink = output.sink(transform=lambda df: df.select("data").withColumnRenamed("data", "value"))
    source.put(b"0", b"1", b"2")
    with monkeypatch.context() as patch:
        # All is committed but what Spark remembers.
        patch.setattr("fanout.spark.sinks.kafka.stored_tokens.SinkState.record_committed", fail)
        with pytest.raises(BatchFailedError):
            start(source, sink, available_now=True).await_termination(60)
    source.put(b"3", b"4")
    assert start(source, sink, available_now=True).await_termination(60)
    assert output.values() == [b"%d" % number for number in range(5)]


@pytest.mark.long
def test_a_batch_of_an_older_checkpoint_is_not_taken_for_the_one_that_is_committed(
    spark: SparkSession, output: Output, tmp_path: Path
) -> None:
    sink = output.sink()
    with run(spark, tmp_path) as here:
        here.call(sink, numbered(spark, 5), 0)  # of an earlier version
        here.call(sink, numbered(spark, 5), 0, content=CONTENT)
        here.call(sink, numbered(spark, 5, 5), 1, content=CONTENT)
        here.call(sink, numbered(spark, 5, 5), 1, content=CONTENT)
        with pytest.raises(CheckpointError, match="which holds another batch with this id"):
            here.call(sink, numbered(spark, 5, 10), 1, content=OTHER)
        shutil.rmtree(tmp_path / "sinks")  # as where the copy was made before
        with pytest.raises(CheckpointError, match="which holds another batch with this id"):
            here.call(sink, numbered(spark, 5, 10), 1, content=OTHER)
        with pytest.raises(CheckpointError, match=r"batch 0 was .* holds the later batch 1"):
            here.call(sink, numbered(spark, 5, 10), 0, content=OTHER)
        here.call(sink, numbered(spark, 5, 10), 2, content=OTHER)
    assert output.values() == sorted(b"%d" % number for number in range(15))


def fail(*_: object) -> None:
    raise RuntimeError("the driver is gone")


def test_a_job_that_somebody_cancels_is_not_tried_again(
    spark: SparkSession, output: Output, tmp_path: Path
) -> None:
    flag, cancelled = tmp_path / "running", tmp_path / "cancelled"

    def wait() -> None:
        while not cancelled.exists():
            pass

    def cancel() -> None:
        eventually(flag.exists, "a task")
        spark.sparkContext.cancelAllJobs()
        cancelled.touch()

    sink = output.sink(security=once(flag, wait))
    with ThreadPoolExecutor() as threads, run(spark, tmp_path / "checkpoint") as here:
        cancelling = threads.submit(cancel)
        with pytest.raises(Exception, match="cancelled") as caught:
            here.write(sink, numbered(spark, 10), 0)
        cancelling.result()
    assert not isinstance(caught.value, FanOutError)
    assert output.values() == []


@pytest.mark.long
def test_nothing_is_written_outside_of_a_handler_or_twice_under_one_name(
    spark: SparkSession, output: Output, tmp_path: Path
) -> None:
    sink = output.sink()
    df = numbered(spark, 1)
    with pytest.raises(StreamStateError, match="no handler is running"):
        sink(df, 0)

    def twice(df: DataFrame, batch_id: int) -> None:
        sink(df, batch_id)
        sink(df, batch_id)

    with run(spark, tmp_path) as here:
        with pytest.raises(StreamStateError, match="batch_id=5 is not the batch of the handler"):
            here.call(lambda df, _: sink(df, 5), df, 4)
        with pytest.raises(StreamStateError, match="'kafka' was written to before in batch 0"):
            here.call(twice, df, 0)
    assert output.values() == [b"0"]
