from __future__ import annotations

import logging
import traceback
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aioboto3
import boto3
import pytest
from pyspark.sql.types import (
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from fanout.errors import BatchFailedError, FanOutError, SplitFailedError
from fanout.kinesis import KinesisSource
from fanout.testing.faults import CutConnection
from tests.support.spark.harness import PATIENCE, Recorder, eventually, fail

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from fanout.spark import FanOutQuery
    from fanout.testing.kinesis.server import KinesisServer

    Start = Callable[..., FanOutQuery]

pytestmark = pytest.mark.spark

CANARY = "canary-7Zq1-secret"
RECORD = "canary-8Xw2-record"


def text(name: str) -> StructField:
    return StructField(name, StringType())


def test_columns_are_those_that_people_know(
    start: Start, kinesis: KinesisServer, orders: KinesisSource
) -> None:
    schemas: list[StructType] = []
    recorder = Recorder()

    def handler(df: DataFrame, batch_id: int) -> None:
        schemas.append(df.schema)
        recorder(df, batch_id)

    before = datetime.now(UTC)
    [(shard, number)] = kinesis.put_records("orders", [("customer-7", b"\x00\xff")])
    start(orders, handler)
    recorder.wait_for_rows(1)
    assert schemas[0] == StructType(
        [
            text("partitionKey"),
            StructField("data", BinaryType()),
            text("stream"),
            text("shardId"),
            text("sequenceNumber"),
            StructField("approximateArrivalTimestamp", TimestampType()),
            StructField("subSequenceNumber", LongType()),
        ]
    )
    [row] = recorder.rows
    assert row.partitionKey == "customer-7"
    assert bytes(row.data) == b"\x00\xff"
    assert row.stream == "orders"
    assert (row.shardId, row.sequenceNumber, row.subSequenceNumber) == (shard, number, 0)
    arrived = row.approximateArrivalTimestamp.astimezone(UTC)
    assert abs(arrived - before) < timedelta(seconds=30)


def test_a_key_that_the_producer_left_out_is_null(
    start: Start, kinesis: KinesisServer, orders: KinesisSource
) -> None:
    found: dict[bytes, str | None] = {}

    def handler(df: DataFrame, _: int) -> None:
        found.update((bytes(row.data), row.partitionKey) for row in df.collect())

    kinesis.put_records("orders", [(None, b"1"), ("ann", b"2"), (None, b"3")])
    assert start(orders, handler, available_now=True).await_termination(PATIENCE)
    assert found == {b"1": None, b"2": "ann", b"3": None}


@pytest.mark.long
def test_two_tasks_share_a_large_batch(
    start: Start, kinesis: KinesisServer, orders: KinesisSource
) -> None:
    shares: list[int] = []

    def handler(df: DataFrame, _: int) -> None:
        shares.extend(df.rdd.mapPartitions(lambda rows: [sum(1 for _ in rows)]).collect())

    kinesis.put_records("orders", ((str(n), b"x" * 10_000) for n in range(1200)))
    query = start(orders, handler, available_now=True, max_wait=10.0, max_bytes=16_000_000)
    assert query.await_termination(PATIENCE)
    assert sum(shares) == 1200
    assert len([rows for rows in shares if rows > 100]) >= 2


def test_resubscriptions_are_counted_and_lose_nothing(
    start: Start, kinesis: KinesisServer, orders: KinesisSource
) -> None:
    kinesis.inject(CutConnection(shard="shardId-000000000000", event=1))
    causes: list[tuple[str, str]] = []
    kinesis.put_records("orders", ((str(n), b"x") for n in range(100)))
    recorder = Recorder()
    query = start(
        orders,
        recorder,
        on_resubscribe=lambda split, cause, _: causes.append((split.id, type(cause).__name__)),
    )
    recorder.wait_for_rows(100)
    assert len(recorder.rows) == 100
    assert query.progress().resubscriptions == len(causes) == 1
    assert causes[0][0] == "shardId-000000000000"
    eventually(lambda: set(query.progress().lag.values()) == {0.0})


@pytest.mark.long
def test_a_query_goes_on_by_polls_where_its_consumer_stopped(
    start: Start, kinesis: KinesisServer, orders: KinesisSource
) -> None:
    recorder = Recorder()
    for mode in ("efo", "polling", "efo"):
        kinesis.put_records("orders", ((str(n), b"x") for n in range(100)))
        before = len(recorder.rows)
        query = start(replace(orders, mode=mode), recorder)
        recorder.wait_for_rows(before + 100)
        query.stop()
    numbers = [(row.shardId, row.sequenceNumber) for row in recorder.rows]
    assert len(numbers) == len(set(numbers)) == 300
    assert kinesis.statistics().poll_calls.keys() == {
        "shardId-000000000000",
        "shardId-000000000001",
    }


@pytest.mark.long
def test_a_query_reads_another_stream_from_its_next_run_on(
    start: Start, kinesis: KinesisServer, orders: KinesisSource
) -> None:
    kinesis.create_stream("payments", 2)
    recorder = Recorder()
    # What was put into a stream while it was not read is read when it is again.
    runs = (
        ("orders", 50),
        (["orders", "payments"], 200),
        (["payments"], 250),
        (["orders", "payments"], 400),
    )
    for streams, count in runs:
        for stream in ("orders", "payments"):
            kinesis.put_records(stream, ((str(n), b"x") for n in range(50)))
        query = start(replace(orders, stream=streams), recorder)
        recorder.wait_for_rows(count)
        query.stop()
    numbers = [(row.stream, row.shardId, row.sequenceNumber) for row in recorder.rows]
    assert len(numbers) == len(set(numbers)) == 400


@pytest.mark.long
def test_the_last_batch_is_repeated_by_a_run_that_reads_another_stream_too(
    start: Start, kinesis: KinesisServer, orders: KinesisSource, checkpoint: str
) -> None:
    kinesis.create_stream("payments", 2)
    recorder = Recorder()
    for stream in ("orders", "payments"):
        kinesis.put_records(stream, ((str(n), b"x") for n in range(50)))
    query = start(orders, recorder)
    recorder.wait_for_rows(50)
    query.stop()
    _forget_newest_commit(checkpoint)
    query = start(replace(orders, stream=["orders", "payments"]), recorder)
    recorder.wait_for_rows(100)
    query.stop()
    numbers = {(row.stream, row.shardId, row.sequenceNumber) for row in recorder.rows}
    assert len(numbers) == 100


def _forget_newest_commit(checkpoint: str) -> None:
    """Leave the checkpoint as a driver does that ends before Spark commits its last batch."""
    commits = Path(checkpoint, "commits")
    newest = max((path for path in commits.iterdir() if path.name.isdigit()), key=_number)
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)


def _number(path: Path) -> int:
    return int(path.name)


@pytest.mark.long
def test_a_query_outlives_its_consumer_but_not_its_stream(
    start: Start, kinesis: KinesisServer, orders: KinesisSource
) -> None:
    recorder = Recorder()
    kinesis.put_records("orders", [("a", b"x")])
    query = start(orders, recorder)
    recorder.wait_for_rows(1)
    with closing(boto3.client("kinesis", **kinesis.client_options)) as client:
        arn = client.describe_stream_summary(StreamName="orders")["StreamDescriptionSummary"]
        client.deregister_stream_consumer(StreamARN=arn["StreamARN"], ConsumerName="etl")
        kinesis.put_records("orders", [("a", b"x")])
        recorder.wait_for_rows(2)
        client.delete_stream(StreamName="orders", EnforceConsumerDeletion=True)
    with pytest.raises(FanOutError, match=r"it was deleted|may have been deleted"):
        query.await_termination(PATIENCE)
    assert query.exception() is not None


@pytest.mark.long
def test_records_that_expired_while_a_query_was_down_end_it_or_are_a_gap(
    start: Start, kinesis: KinesisServer, orders: KinesisSource
) -> None:
    recorder = Recorder()
    shards = ("shardId-000000000000", "shardId-000000000001")

    def put() -> list[str]:
        placed = [kinesis.put_records("orders", [("a", b"x")] * 3, shard=shard) for shard in shards]
        return [number for each in placed for _, number in each]

    first = put()
    query = start(orders, recorder)
    recorder.wait_for_rows(6)
    query.stop()
    put()
    kinesis.expire("orders")
    last = put()
    with pytest.raises(SplitFailedError, match=r"past the stream's retention, .*; on_data_loss="):
        start(orders, recorder).await_termination(PATIENCE)
    query = start(replace(orders, on_data_loss="earliest"), recorder)
    recorder.wait_for_rows(12)
    assert sorted(row.sequenceNumber for row in recorder.rows) == sorted(first + last)
    assert query.statistics().gaps == 2


def test_a_secret_is_nowhere(
    start: Start,
    kinesis: KinesisServer,
    orders: KinesisSource,
    checkpoint: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "fanout")
    source = KinesisSource(
        stream="orders",
        consumer="etl",
        start="TRIM_HORIZON",
        endpoint_url=orders.endpoint_url,
        region="us-east-1",
        session=aioboto3.Session(
            aws_access_key_id=CANARY, aws_secret_access_key=CANARY, aws_session_token=CANARY
        ),
    )
    plans: list[Any] = []

    def handler(df: DataFrame, batch_id: int) -> None:
        java: Any = df._jdf
        plans.append(java.queryExecution().toString())
        fail(df, batch_id)

    kinesis.put_records("orders", [(f"key-{RECORD}", RECORD.encode())])
    query = start(source, handler)
    with pytest.raises(BatchFailedError) as caught:
        query.await_termination(PATIENCE)
    lines = [repr(source), repr(query), str(query.statistics()), *plans, *caplog.messages]
    lines += traceback.format_exception(caught.value)
    assert "Scan parquet" in plans[0] or "FileScan parquet" in plans[0]
    assert not [line for line in lines if CANARY in line or RECORD in line]
    files = [path for path in Path(checkpoint).rglob("*") if path.is_file()]
    assert not [path for path in files if CANARY.encode() in path.read_bytes()]
    holders = {path.suffix for path in files if RECORD.encode() in path.read_bytes()}
    assert holders == {".parquet"}
    assert not [path for path in files if RECORD in str(path)]
