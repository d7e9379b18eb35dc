from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from fanout.errors import BatchFailedError
from fanout.spark import foreach_batch
from tests.support.kafka.topics import Topic
from tests.support.manual_source import ManualSource
from tests.support.pages import defined_by, on_this_machine, python_blocks
from tests.support.spark.harness import Recorder

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from fanout.testing.kafka.broker import KafkaBroker
    from fanout.testing.kinesis.server import KinesisServer

pytestmark = pytest.mark.spark

README, _ = python_blocks("README.md")
FIRST_RECORD = python_blocks("tutorial.md")[0]
SPARK, SET_ASIDE = python_blocks("foreach-batch.md")
KAFKA_SPARK = python_blocks("kafka.md")[0]
STOP_SPARK, _ = python_blocks("operations.md")


def test_the_first_record_is_shown_once(
    kinesis_server: KinesisServer,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    del spark  # the example gets the session that runs
    for name, value in kinesis_server.environment.items():
        monkeypatch.setenv(name, value)
    kinesis_server.create_stream("orders")
    code = FIRST_RECORD.replace("/tmp/first", str(tmp_path))  # noqa: S108 - replaced
    for _ in range(2):
        exec(code, {})  # noqa: S102 - the page is ours
        shown = capsys.readouterr().out
        assert shown.count("|my first record|shardId-000000000000|") == 1


@pytest.mark.long
def test_the_example_of_the_first_page_shows_and_writes_its_record(
    kinesis_server: KinesisServer,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in kinesis_server.environment.items():
        monkeypatch.setenv(name, value)
    kinesis_server.create_stream("orders", shards=2)
    code = README.replace("/tmp/orders", f"{tmp_path}/orders")  # noqa: S108 - replaced
    exec(code, {})  # noqa: S102 - the page is ours
    assert "|2 figs|shardId-00000000000" in capsys.readouterr().out
    (row,) = spark.read.parquet(f"{tmp_path}/orders").collect()
    assert bytes(row.data) == b"2 figs"


@pytest.mark.long
def test_the_spark_example_writes_what_was_put(
    kinesis_server: KinesisServer,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in kinesis_server.environment.items():
        monkeypatch.setenv(name, value)
    kinesis_server.create_stream("orders")
    kinesis_server.put_records("orders", [("customer", b"1"), ("customer", b"2")])
    written = run(SPARK, tmp_path)
    rows = spark.read.parquet(written).orderBy("sequenceNumber").collect()
    assert [bytes(row.data) for row in rows] == [b"1", b"2"]


@pytest.mark.long
@pytest.mark.parametrize(("error", "aside"), [(ValueError, [b"1", b"2"]), (OSError, None)])
def test_the_example_of_a_failed_batch_sets_those_with_bad_values_aside(
    spark: SparkSession, tmp_path: Path, error: type[Exception], aside: list[bytes] | None
) -> None:
    source = ManualSource()
    source.put(b"1", b"2")

    def write(_: DataFrame, __: int) -> None:
        raise error("bad")

    code = SET_ASIDE.replace("s3a://lake", f"file://{tmp_path}")
    code = code.replace("    on_failed", "    available_now=True,\n    on_failed")
    names: dict[str, Any] = {"spark": spark, "source": source, "write": write}
    names["foreach_batch"] = foreach_batch
    exec(code, names)  # noqa: S102 - the page is ours
    if aside is None:
        with pytest.raises(BatchFailedError, match="the handler raised OSError in batch 0: bad"):
            names["query"].await_termination()
        return
    names["query"].await_termination()
    rows = spark.read.parquet(f"{tmp_path}/failed/batch=0").orderBy("sequence").collect()
    assert [bytes(row.data) for row in rows] == aside


@pytest.mark.long
def test_the_kafka_example_writes_what_was_put(
    kafka_broker: KafkaBroker, spark: SparkSession, tmp_path: Path
) -> None:
    # The other example of the page has a topic of this name on the same broker.
    code = KAFKA_SPARK.replace('topics="orders"', 'topics="orders-for-spark"')
    topic = Topic(kafka_broker, name="orders-for-spark")
    topic.put(10)
    written = run(on_this_machine(code, kafka_broker.bootstrap_servers), tmp_path)
    rows = spark.read.parquet(written).orderBy("offset").collect()
    assert [(row.offset, bytes(row.value)) for row in rows] == topic.log[0]


@pytest.mark.usefixtures("spark")
def test_the_example_of_a_clean_stop_ends_by_sigterm(tmp_path: Path) -> None:
    source, recorder = ManualSource(), Recorder()
    source.put(b"1", b"2")

    def write(df: DataFrame, batch_id: int) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        recorder(df, batch_id)

    names: dict[str, Any] = {"source": source, "write": write}
    code = STOP_SPARK.replace("s3a://lake", f"file://{tmp_path}")
    exec(code, names)  # noqa: S102 - the page is ours
    assert recorder.sequences == [1, 2]
    assert not names["query"].is_active
    assert names["query"].exception() is None


def run(code: str, directory: Path) -> str:
    """Run an example until it has written a batch; return where its batches are."""
    written = directory / "orders"
    query = defined_by(code.replace("s3a://lake", f"file://{directory}"))["query"]
    try:
        while not list(written.glob("batch=*/_SUCCESS")):
            assert query.is_active
            query.await_termination(0.1)
    finally:
        query.stop()
    return f"file://{written}"
