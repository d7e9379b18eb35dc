"""A sink whose rows are made by a function of Arrow records, on a real broker."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from fanout.decoding import Json
from fanout.errors import BatchFailedError, OptionError, UnwritableRecordError
from fanout.kafka import Cluster
from fanout.spark import KafkaSink
from fanout.spark.query.batch_context import handling
from fanout.spark.sinks.kafka import job
from tests.spark.sinks.kafka.harness import Output, Run, run
from tests.support.kafka.topics import PLAINTEXT
from tests.support.manual_source import ManualSource

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from fanout.spark import FanOutQuery
    from fanout.testing.kafka.broker import KafkaBroker

pytestmark = pytest.mark.spark

ROWS = 200


@pytest.fixture
def output(kafka_broker: KafkaBroker) -> Output:
    return Output(kafka_broker)


@pytest.fixture
def by_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tasks write batches that are small enough for the driver."""
    monkeypatch.setattr("fanout.spark.sinks.kafka.job._SMALL_ROWS", -1)


@pytest.fixture(params=["by tasks", "by the driver"])
def way(request: pytest.FixtureRequest) -> None:
    """Let a test run in both ways."""
    if request.param == "by tasks":
        request.getfixturevalue("by_tasks")


@pytest.fixture
def file(tmp_path: Path) -> str:
    """Return a file of records as a source delivers them."""
    shards = pa.array([f"shard-{row % 5}" for row in range(ROWS)])
    data = pa.array([b"%d" % row for row in range(ROWS)])
    path = tmp_path / "segment.parquet"
    pq.write_table(pa.table({"shard": shards, "data": data}), path, row_group_size=30)
    return str(path)


def by_shard(records: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [records["shard"], pc.binary_join_element_wise(records["data"], b"!", b"")],
        names=["key", "value"],
    )


def write(here: Run, sink: KafkaSink, df: DataFrame, file: str, batch_id: int = 0) -> None:
    """Call a sink as the handler of a query whose batch is a file."""
    with handling(replace(here.context(batch_id), frame=df, files=(file,))):
        sink(df, batch_id)


@pytest.mark.long
@pytest.mark.usefixtures("way")
def test_tasks_read_the_batch_and_write_it_as_dataframes_are_written(
    spark: SparkSession, kafka_broker: KafkaBroker, tmp_path: Path, file: str
) -> None:
    read_by_tasks, from_spark = Output(kafka_broker), Output(kafka_broker)
    df = spark.read.parquet(file)
    with run(spark, tmp_path) as here:
        write(here, read_by_tasks.sink(transform_arrow=by_shard, sink_name="a"), df, file)
        # Another DataFrame than that of the batch, so that Spark gives the tasks their rows.
        with handling(replace(here.context(0), frame=df, files=(file,))):
            sink = from_spark.sink(transform_arrow=by_shard, sink_name="b")
            sink.write(df.filter("data != '7'"), 0)
    found, others = (
        {
            number: [(record.key, record.value) for record in records]
            for number, records in output.read().items()
        }
        for output in (read_by_tasks, from_spark)
    )
    assert sorted(read_by_tasks.values()) == sorted(b"%d!" % row for row in range(ROWS))
    seven = {
        number: [record for record in records if record[1] != b"7!"]
        for number, records in found.items()
    }
    assert seven == others


@pytest.mark.long
@pytest.mark.usefixtures("way")
def test_columns_are_encoded_as_they_are_written(
    spark: SparkSession, output: Output, tmp_path: Path
) -> None:
    path = tmp_path / "typed.parquet"
    ids = pa.array(range(ROWS))
    pq.write_table(pa.table({"id": ids, "note": pa.array(["a", None] * (ROWS // 2))}), path)
    orders = Json("id BIGINT, note STRING", key=Json("id BIGINT", into="key"))

    def encoded(records: pa.RecordBatch) -> pa.RecordBatch:
        return orders.encode(records.append_column("key", records.select(["id"]).to_struct_array()))

    with run(spark, tmp_path) as here:
        write(here, output.sink(transform_arrow=encoded), spark.read.parquet(str(path)), str(path))
    records = [record for each in output.read().values() for record in each]
    found, problems = orders.read(pa.array([record.value for record in records], pa.binary()))
    assert problems == {}
    rows = sorted(found.to_pylist(), key=lambda row: row["id"])
    assert rows == [{"id": n, "note": None if n % 2 else "a"} for n in range(ROWS)]
    assert {record.key for record in records} == {b'{"id":%d}' % n for n in range(ROWS)}


@pytest.mark.long
@pytest.mark.usefixtures("way")
def test_the_rows_of_the_file_are_written_without_spark(
    spark: SparkSession, output: Output, tmp_path: Path, file: str
) -> None:
    empty = spark.read.parquet(file).filter("false")
    with run(spark, tmp_path) as here:
        write(here, output.sink(transform_arrow=by_shard), empty, file)
    assert len(output.values()) == ROWS


@pytest.mark.long
def test_the_driver_of_a_cluster_writes_a_small_batch_and_spark_gives_tasks_their_rows(
    spark: SparkSession, output: Output, tmp_path: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[str] = []

    def noted(name: str) -> None:
        original = getattr(job, name)

        def call(*arguments: Any, **options: Any) -> Any:
            used.append(name)
            return original(*arguments, **options)

        monkeypatch.setattr(job, name, call)

    for name in ("write_files", "file_task", "write_rows"):
        noted(name)
    monkeypatch.setattr(spark.sparkContext, "master", "spark://master:7077")
    sink = output.sink(transform_arrow=by_shard)
    with run(spark, tmp_path / "checkpoint") as here:
        df = spark.read.parquet(file)
        write(here, sink, df, file)
        monkeypatch.setattr(job, "_SMALL_ROWS", ROWS - 1)
        write(here, sink, df, file, 1)
    assert used == ["write_files", "write_rows"]
    assert output.values() == sorted(2 * [b"%d!" % row for row in range(ROWS)])


@pytest.mark.long
@pytest.mark.usefixtures("by_tasks")
def test_a_function_that_gives_each_task_other_keys_writes_nothing(
    spark: SparkSession, output: Output, tmp_path: Path, file: str
) -> None:
    def random_keys(records: pa.RecordBatch) -> pa.RecordBatch:
        keys = pc.random(records.num_rows).cast(pa.string())
        return by_shard(records).set_column(0, "key", keys)

    df = spark.read.parquet(file)
    with (
        run(spark, tmp_path) as here,
        pytest.raises(UnwritableRecordError, match="transform_arrow and partitioner must return"),
    ):
        write(here, output.sink(transform_arrow=random_keys), df, file)
    assert output.values() == []


@pytest.mark.long
@pytest.mark.usefixtures("way")
def test_topics_that_appear_in_a_batch_are_found(
    spark: SparkSession, kafka_broker: KafkaBroker, tmp_path: Path, file: str
) -> None:
    outputs = [Output(kafka_broker, partitions) for partitions in (1, 3)]
    names = pa.array([output.name for output in outputs])

    def to_both(records: pa.RecordBatch) -> pa.RecordBatch:
        odd = pc.bit_wise_and(records["data"].cast(pa.string()).cast(pa.int64()), 1)
        return by_shard(records).append_column("topic", names.take(odd))

    with run(spark, tmp_path) as here:
        sink = outputs[0].sink(topic=None, transform_arrow=to_both)
        write(here, sink, spark.read.parquet(file), file)
    for odd, output in enumerate(outputs):
        assert sorted(output.values()) == sorted(b"%d!" % row for row in range(odd, ROWS, 2))


@pytest.mark.parametrize(
    ("transform", "says"),
    [
        (lambda records: records["missing"], "must accept a RecordBatch without rows, and raised"),
        (lambda records: records.to_pylist(), "returned a list"),
        (lambda records: records, "the column 'shard' is not part of a Kafka record"),
    ],
)
def test_a_function_that_cannot_work_is_refused_before_a_task_runs(
    spark: SparkSession, tmp_path: Path, file: str, transform: Any, says: str
) -> None:
    df = spark.read.parquet(file)
    sink = KafkaSink(
        cluster=Cluster("127.0.0.1:1", security=PLAINTEXT), topic="none", transform_arrow=transform
    )
    with run(spark, tmp_path) as here, pytest.raises(OptionError, match=says):
        write(here, sink, df, file)


@pytest.mark.long
@pytest.mark.usefixtures("by_tasks")
def test_a_worker_that_is_killed_costs_an_attempt_and_no_record(
    spark: SparkSession,
    output: Output,
    tmp_path: Path,
    file: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    flag = tmp_path / "died"

    def die_once(records: pa.RecordBatch) -> pa.RecordBatch:
        if records.num_rows and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return by_shard(records)

    with run(spark, tmp_path / "checkpoint") as here:
        write(here, output.sink(transform_arrow=die_once), spark.read.parquet(file), file)
    assert "attempt 1 to write batch 0: the Spark job failed" in caplog.text
    assert sorted(output.values()) == sorted(b"%d!" % row for row in range(ROWS))


def test_two_transforms_contradict_each_other(output: Output) -> None:
    with pytest.raises(OptionError, match="transform and transform_arrow contradict each other"):
        output.sink(transform=lambda df: df, transform_arrow=by_shard)


@pytest.mark.long
@pytest.mark.usefixtures("way")
def test_a_query_lets_tasks_read_what_it_reads_over_restarts(
    start: Callable[..., FanOutQuery], output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    def values(records: pa.RecordBatch) -> pa.RecordBatch:
        return records.select(["data"]).rename_columns(["value"])

    source = ManualSource("a", bounded=True)
    sink = output.sink(transform_arrow=values)
    source.put(b"0", b"1", b"2")
    with monkeypatch.context() as patch:
        # The records are in an open transaction.
        patch.setattr("fanout.spark.sinks.kafka.stored_tokens.SinkState.record", fail)
        with pytest.raises(BatchFailedError):
            start(source, sink, available_now=True).await_termination(60)
    # No row comes from Spark.
    monkeypatch.setattr("fanout.spark.sinks.kafka.job.partitioned", fail)
    source.put(b"3", b"4")
    assert start(source, sink, available_now=True).await_termination(60)
    assert output.values() == [b"%d" % number for number in range(5)]


def fail(*_: object, **__: object) -> None:
    raise RuntimeError("the driver is gone")
