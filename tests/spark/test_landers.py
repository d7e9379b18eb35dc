"""Queries whose records are read by landers, in a session on this machine."""

from __future__ import annotations

import errno
import os
import signal
import threading
from concurrent.futures import Future
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from pyspark import TaskContext

from fanout.core.remote_error import ForeignError
from fanout.decoding import Avro, Json, SchemaRegistry
from fanout.errors import (
    CheckpointError,
    LanderCancelledError,
    OptionError,
    SetupError,
    SplitFailedError,
)
from fanout.kafka import Cluster, KafkaSource, Security
from fanout.kinesis import KinesisSource
from fanout.landers.task import LanderTask
from fanout.landing.log.reading import BatchLimits
from fanout.spark import OnExecutors
from fanout.spark.landers.jobs import LanderFailedError
from fanout.spark.landers.stream import LandersStream, _addresses, _check_travels
from fanout.testing.faults import CutConnection
from tests.support.avro_records import ORDER, ORDERS, framed, written
from tests.support.pages import defined_by, python_blocks
from tests.support.schema_registry import embedded_registry
from tests.support.spark.harness import PATIENCE, Recorder, eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from fanout.core.events import Split
    from fanout.spark import FanOutQuery
    from fanout.testing.kinesis.server import KinesisServer

    Start = Callable[..., FanOutQuery]

pytestmark = pytest.mark.spark

# One of the two cores is left for the batches.
LANDING = OnExecutors(landers=1)


@pytest.fixture
def source(
    kinesis: KinesisServer, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> KinesisSource:
    """A source that finds its credentials where it is used, as those of `spark.executorEnv` are."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
        monkeypatch.setitem(spark.sparkContext.environment, name, "testing")
    return KinesisSource(
        stream="orders",
        consumer="etl",
        start="TRIM_HORIZON",
        endpoint_url=kinesis.endpoint_url,
        region="us-east-1",
    )


def numbered(first: int, count: int) -> list[tuple[str, bytes]]:
    return [(str(n), str(n).encode()) for n in range(first, first + count)]


def numbers(recorder: Recorder) -> list[int]:
    return sorted(int(bytes(row.data)) for row in recorder.rows)


@pytest.mark.long
def test_landers_read_several_streams(
    start: Start, kinesis: KinesisServer, source: KinesisSource
) -> None:
    kinesis.create_stream("payments", 2)
    streams = ("orders", "payments")
    recorder = Recorder()
    start(replace(source, stream=streams), recorder, landing=LANDING)
    for stream in streams:
        kinesis.put_records(stream, numbered(0, 100))
    recorder.wait_for_rows(200)
    kinesis.split_shard("payments", "shardId-000000000000")
    for stream in streams:
        kinesis.put_records(stream, numbered(100, 100))
    recorder.wait_for_rows(400)
    for stream in streams:
        found = sorted(int(bytes(row.data)) for row in recorder.rows if row.stream == stream)
        assert found == list(range(200))


@pytest.mark.long
def test_a_batch_of_landers_waits_for_min_records(
    start: Start, kinesis: KinesisServer, source: KinesisSource
) -> None:
    kinesis.put_records("orders", numbered(0, 3))
    recorder = Recorder()
    query = start(source, recorder, landing=LANDING, min_records=5, max_wait=600.0)
    eventually(lambda: sum(split.bytes for split in query.statistics().splits.values()))
    kinesis.put_records("orders", numbered(3, 2))
    recorder.wait_for_rows(5)
    assert len(recorder.calls) == 1


def test_a_query_goes_on_where_the_one_before_has_stopped(
    start: Start,
    kinesis: KinesisServer,
    source: KinesisSource,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "fanout.lifecycle")
    kinesis.inject(CutConnection(shard="shardId-000000000000", event=1))
    kinesis.put_records("orders", numbered(0, 1000))
    first, second = Recorder(), Recorder()
    told: list[tuple[Split, Exception, float]] = []
    query = start(source, first, landing=LANDING, on_resubscribe=lambda *call: told.append(call))
    first.wait_for_rows(1000)
    kinesis.put_records("orders", numbered(1000, 500))
    first.wait_for_rows(1500)
    statistics = query.statistics()
    assert statistics.records == 1500
    eventually(lambda: told)
    ((split, cause, delay),) = told
    assert split.id == "shardId-000000000000"
    assert isinstance(cause, ForeignError)
    assert delay >= 1.0
    query.stop()
    assert query.exception() is None
    kinesis.put_records("orders", numbered(1500, 500))
    start(source, second, landing=LANDING).progress()
    second.wait_for_rows(500)
    assert numbers(first) + numbers(second) == list(range(2000))
    # Every segment belongs to a batch: nothing is left of the landers.
    segments = tmp_path / "checkpoint" / "fanout" / "segments"
    assert all(file.name.startswith("run-") for file in segments.iterdir())
    resumed = [
        vars(each)["fanout.stream.resumed"]
        for each in caplog.records
        if vars(each).get("event.name") == "fanout.stream.started"
    ]
    assert resumed == [False, True]


@pytest.mark.prove
def test_what_a_killed_lander_left_is_deleted_while_the_query_runs(
    start: Start,
    kinesis: KinesisServer,
    source: KinesisSource,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fanout.spark.landers.stream._SWEEP_SECONDS", 0.1)
    kinesis.put_records("orders", numbered(0, 100))
    recorder = Recorder()
    query = start(source, recorder, landing=LANDING)
    recorder.wait_for_rows(100)
    # As if it were killed after it has published, and while it writes the next segment.
    checkpoint = tmp_path / "checkpoint" / "fanout"
    left = [
        checkpoint / "segments" / "run-000001-000001-00000099.parquet",
        checkpoint / "_scratch" / "run-000001-000001-00000100.parquet",
    ]
    for path in left:
        path.touch()
    (lander,) = query.progress().landers
    os.kill(lander.pid, signal.SIGKILL)
    eventually(lambda: not any(path.exists() for path in left))
    kinesis.put_records("orders", numbered(100, 100))
    recorder.wait_for_rows(200)
    query.stop()
    assert numbers(recorder) == list(range(200))


@pytest.mark.prove
@pytest.mark.usefixtures("source")
def test_the_example_of_the_page(
    kinesis: KinesisServer, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (
        ("AWS_ENDPOINT_URL", kinesis.endpoint_url),
        ("AWS_DEFAULT_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, value)
        monkeypatch.setitem(spark.sparkContext.environment, name, value)
    kinesis.put_records("orders", numbered(0, 100))
    example, sizes = python_blocks("scaling.md")
    assert example.count("landers=2") == 1
    example = example.replace("landers=2", "landers=1").replace("s3a://lake", f"file://{tmp_path}")
    query = defined_by(example)["query"]
    try:
        eventually(lambda: query.progress().total_rows == 100)
    finally:
        query.stop()
    assert spark.read.parquet(str(tmp_path / "orders-by-batch")).count() == 100
    exec(sizes)  # noqa: S102 - the page is ours


def test_more_landers_than_cores_are_refused(start: Start, source: KinesisSource) -> None:
    with pytest.raises(OptionError, match=r"landers=2 need 3 cores, .* use 1 at most"):
        start(source, Recorder(), landing=OnExecutors(landers=2))


@pytest.mark.prove
def test_a_lander_that_cannot_begin_ends_the_query(
    start: Start, source: KinesisSource, spark: SparkSession
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        del spark.sparkContext.environment[name]
    query = start(source, Recorder(), landing=LANDING)
    with pytest.raises(SetupError, match=r"a lander on .* cannot begin: no AWS credentials"):
        query.await_termination(PATIENCE)


@pytest.mark.prove
def test_the_failure_of_a_split_is_the_querys(
    start: Start, kinesis: KinesisServer, source: KinesisSource
) -> None:
    kinesis.put_records("orders", numbered(0, 10))
    recorder = Recorder()
    start(source, recorder, landing=LANDING, available_now=True).await_termination(PATIENCE)
    assert numbers(recorder) == list(range(10))
    kinesis.put_records("orders", numbered(10, 10))
    kinesis.expire("orders")
    kinesis.put_records("orders", numbered(20, 10))
    query = start(source, recorder, landing=LANDING)
    with pytest.raises(SplitFailedError, match=r"past the stream's retention, .*; on_data_loss="):
        query.await_termination(PATIENCE)


class FullDisk(KinesisSource):  # type: ignore[misc]
    """A source with which no lander can open a segment."""

    @property
    def schema(self) -> pa.Schema:
        if TaskContext.get() is not None:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().schema


@pytest.mark.prove
def test_a_lander_that_always_fails_ends_the_query(start: Start, source: KinesisSource) -> None:
    options = {one.name: getattr(source, one.name) for one in fields(source) if one.init}
    query = start(FullDisk(**options), Recorder(), landing=LANDING)
    with pytest.raises(SetupError, match="lander 0 has failed 4 times in a row") as caught:
        query.await_termination(PATIENCE)
    assert "lander 0 failed: OSError: [Errno 28] No space left on device; " in str(caught.value)
    assert isinstance(caught.value.__cause__, LanderFailedError)


def test_a_defect_of_the_coordinator_is_the_error_itself() -> None:
    serving: Future[None] = Future()
    serving.set_exception(ExceptionGroup("tasks", [ExceptionGroup("", [KeyError("split")])]))
    stream = object.__new__(LandersStream)
    stream.__dict__.update(_serving=serving, _coordinator=SimpleNamespace(failure=None))
    assert isinstance(stream.failure, KeyError)


@pytest.mark.prove
@pytest.mark.parametrize("what", ["stage", "job group"])
def test_a_lander_that_is_cancelled_in_spark_ends_the_query(
    start: Start, kinesis: KinesisServer, source: KinesisSource, spark: SparkSession, what: str
) -> None:
    kinesis.put_records("orders", numbered(0, 100))
    recorder = Recorder()
    query = start(source, recorder, landing=LANDING)
    recorder.wait_for_rows(100)
    job, stage = job_of_lander(spark)
    # As the button of Spark's user interface does, and a notebook's.
    if what == "stage":
        spark._jsc.sc().cancelStage(stage)
    else:
        group = spark._jsc.sc().statusStore().job(job).jobGroup().get()
        spark.sparkContext.cancelJobGroup(group)
    cancelled = (
        rf"lander 0 was cancelled in Spark \(Job {job} cancelled .*\), and nothing else reads"
    )
    with pytest.raises(LanderCancelledError, match=cancelled):
        query.await_termination(PATIENCE)
    kinesis.put_records("orders", numbered(100, 100))
    start(source, recorder, landing=LANDING)
    recorder.wait_for_rows(200)
    assert numbers(recorder) == list(range(200))


@pytest.mark.prove
def test_a_landers_task_that_is_killed_in_spark_runs_again(
    start: Start, kinesis: KinesisServer, source: KinesisSource, spark: SparkSession
) -> None:
    kinesis.put_records("orders", numbered(0, 100))
    recorder = Recorder()
    query = start(source, recorder, landing=LANDING)
    recorder.wait_for_rows(100)
    _, stage = job_of_lander(spark)
    (first,) = query.statistics().landers
    task = spark._jsc.sc().statusStore().taskList(stage, 0, 1).head().taskId()
    assert spark._jsc.sc().killTaskAttempt(task, True, "by a user")  # noqa: FBT003 - interruptThread
    kinesis.put_records("orders", numbered(100, 100))
    eventually(lambda: {one.pid for one in query.statistics().landers} - {first.pid}, "a process")
    kinesis.put_records("orders", numbered(200, 100))
    recorder.wait_for_rows(300)
    assert numbers(recorder) == list(range(300))


def job_of_lander(spark: SparkSession) -> tuple[int, int]:
    """Return the ids of the job of a lander that runs, and of its stage."""
    tracker = spark.sparkContext.statusTracker()
    (stage,) = tracker.getActiveStageIds()
    (job,) = tracker.getActiveJobsIds()
    return job, stage


def test_an_address_of_ipv6_is_without_the_brackets_that_spark_gives_it() -> None:
    settings = {"spark.driver.host": "[fd00::7]"}
    assert _addresses(settings) == ("fd00::7", "fd00::7")
    settings["spark.driver.bindAddress"] = "[::]"
    assert _addresses(settings) == ("fd00::7", "::")
    assert _addresses({"spark.driver.host": "driver"}) == ("driver", "driver")


@pytest.mark.long
def test_a_source_that_cannot_travel_is_refused(start: Start, orders: KinesisSource) -> None:
    orders.session.lock = threading.Lock()
    with pytest.raises(OptionError, match="cannot be sent to executors"):
        start(orders, Recorder(), landing=LANDING)


def test_a_secret_does_not_travel_but_a_function_that_returns_it_does() -> None:
    def task(security: Security | Callable[[], Security]) -> LanderTask:
        return LanderTask(
            source=KafkaSource(cluster=Cluster("broker", security=security), topics="orders"),
            location="",
            storage_options=None,
            run=1,
            limits=BatchLimits(1, 1, 1.0),
            available_now=False,
            address=("127.0.0.1", 1),
            secret=b"",
        )

    _check_travels(task(lambda: Security(username="user", password=os.environ["KAFKA_PASSWORD"])))
    _check_travels(task(Security(protocol="SSL", ca_file="ca.pem")))
    with pytest.raises(
        OptionError, match=r"^security holds password, which is not sent to other processes"
    ):
        _check_travels(task(Security(username="user", password="canary")))


def test_a_checkpoint_that_needs_a_jvm_is_refused(
    start: Start, source: KinesisSource, remote_checkpoint: str
) -> None:
    with pytest.raises(CheckpointError, match="landers have no JVM and cannot write"):
        start(source, Recorder(), landing=LANDING, checkpoint_location=remote_checkpoint)


@pytest.mark.long
def test_landers_fetch_schemas_from_a_registry(
    start: Start, kinesis: KinesisServer, source: KinesisSource
) -> None:
    with embedded_registry() as embedded:
        number = embedded.register("orders-value", ORDER)
        registry = SchemaRegistry(embedded.url, username="key", password=lambda: "canary")
        decode = Avro(registry.latest("orders-value"), registry=registry)
        recorder = Recorder()
        start(replace(source, decode=decode), recorder, landing=LANDING)
        payloads = framed(number, written(ORDER, ORDERS))
        kinesis.put_records("orders", [(str(n), each) for n, each in enumerate(payloads)])
        recorder.wait_for_rows(len(ORDERS))
        names = [*ORDERS[0]]
        found = sorted((row.asDict() for row in recorder.rows), key=lambda row: row["id"])
        assert [{name: row[name] for name in names} for row in found] == sorted(
            ORDERS, key=lambda row: row["id"]
        )
        assert f"/schemas/ids/{number}" in embedded.calls
        assert embedded.authorization == "Basic a2V5OmNhbmFyeQ=="


@pytest.mark.long
def test_landers_read_with_the_schema_of_the_start(
    start: Start, kinesis: KinesisServer, source: KinesisSource
) -> None:
    with embedded_registry() as embedded:
        registry = SchemaRegistry(embedded.url)
        for name in ("one", "two"):  # of the second schema, the record has a field more
            fields = [{"name": each, "type": "long"} for each in ("one", name)][
                : 1 + (name != "one")
            ]
            schema = {"type": "record", "name": "Order", "fields": fields}
            number = embedded.register("orders-value", schema)
            decode = Avro(registry.latest("orders-value"), registry=registry)
            recorder = Recorder()
            query = start(replace(source, decode=decode), recorder, landing=LANDING)
            row = {"one": 1, "two": 2}
            [record] = framed(number, written(schema, [row]))
            kinesis.put_records("orders", [("key", record)])
            recorder.wait_for_rows(1)
            query.stop()
            assert [[*each.asDict()][3:] for each in recorder.rows] == [["one"]]


@pytest.mark.long
def test_landers_read_typed_records(
    start: Start, kinesis: KinesisServer, source: KinesisSource
) -> None:
    decode = Json("id BIGINT, at TIMESTAMP, tags MAP<STRING, INT>", columns=["partitionKey"])
    recorder = Recorder()
    start(replace(source, decode=decode, on_bad_record="gap"), recorder, landing=LANDING)
    documents = [
        b'{"id": %d, "at": "2026-01-31T12:00:00Z", "tags": {"a": 1}}' % n for n in range(20)
    ]
    documents[7] = b'{"id": "7"}'
    kinesis.put_records("orders", [(str(n), document) for n, document in enumerate(documents)])
    recorder.wait_for_rows(19)
    assert sorted(row.id for row in recorder.rows) == [n for n in range(20) if n != 7]
    assert all(row.partitionKey == str(row.id) and row.tags == {"a": 1} for row in recorder.rows)
