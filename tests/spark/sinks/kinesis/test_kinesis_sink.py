"""Batches that Spark writes to the embedded Kinesis, once and again."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import aioboto3
import pyarrow as pa
import pytest

import fanout
from fanout.errors import (
    BatchNotWrittenError,
    OptionError,
    ServiceError,
    StreamStateError,
    UnwritableRecordError,
)
from fanout.kinesis import KinesisSource, read_deduplication_ids
from fanout.spark import KinesisSink
from fanout.spark.sinks.kinesis.task import RowIds
from fanout.testing.faults import CutPut, RefuseCall, RefuseRecords
from tests.spark.sinks.kafka.harness import run
from tests.support.spark.harness import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from fanout.spark import FanOutQuery
    from fanout.testing.kinesis.server import KinesisServer

pytestmark = pytest.mark.spark

COPY = "orders-copy"


@pytest.fixture(autouse=True)
def copy(kinesis: KinesisServer, spark: SparkSession) -> Iterator[None]:
    """A stream to write to, and credentials for Spark's workers."""
    kinesis.create_stream(COPY, 2)
    environment = spark.sparkContext.environment
    before = dict(environment)
    environment |= {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
    yield
    environment.clear()
    environment.update(before)


def sink(kinesis: KinesisServer, **options: Any) -> KinesisSink:
    where = {"endpoint_url": kinesis.endpoint_url, "region": "us-east-1"}
    return KinesisSink(**{"stream": COPY} | where | options)


def numbered(spark: SparkSession, rows: int, parts: int = 3) -> DataFrame:
    """Return rows whose data count, each under one of seven keys."""
    ids = spark.range(0, rows, numPartitions=parts)
    return ids.selectExpr("cast(id % 7 as string) partitionKey", "cast(id as string) data")


def read(kinesis: KinesisServer) -> list[dict[str, Any]]:
    """Return all records, with their ids, in the order of each shard."""
    source = KinesisSource(
        stream=COPY,
        mode="polling",
        start="TRIM_HORIZON",
        endpoint_url=kinesis.endpoint_url,
        region="us-east-1",
        session=aioboto3.Session(aws_access_key_id="testing", aws_secret_access_key="testing"),
        decode=read_deduplication_ids,
    )

    async def drain() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        async with fanout.open(source) as stream:
            while not stream.caught_up:
                for batch in (await stream.drain(max_wait=0.2)).batches:
                    found += batch.records.to_pylist()
        return found

    return asyncio.run(drain())


def of_each_key(rows: list[dict[str, Any]]) -> dict[str, list[int]]:
    found: defaultdict[str, list[int]] = defaultdict(list)
    for row in rows:
        found[row["partitionKey"]].append(int(row["data"]))
    return dict(found)


@pytest.mark.long
@pytest.mark.parametrize("aggregate", [False, True])
def test_each_key_is_there_in_order(
    spark: SparkSession, kinesis: KinesisServer, tmp_path: Path, *, aggregate: bool
) -> None:
    kinesis.inject(RefuseRecords(every=3, times=4))
    handler = sink(kinesis, aggregate=aggregate)
    with run(spark, tmp_path) as here:
        here.call(handler, numbered(spark, 300), 0)
    nbytes = sum(len(f"{n % 7}{n}") for n in range(300))
    assert handler.statistics() == fanout.SinkStatistics(
        1, 300, nbytes, origin=fanout.Origin("aws_kinesis", COPY)
    )
    found = read(kinesis)
    assert of_each_key(found) == {str(key): [*range(key, 300, 7)] for key in range(7)}
    assert {row["deduplicationId"] for row in found} == {None}


@pytest.mark.fault("The answer to a put is lost or never comes")
@pytest.mark.long
def test_a_batch_that_is_written_again_has_the_same_ids(
    spark: SparkSession, kinesis: KinesisServer, tmp_path: Path
) -> None:
    kinesis.inject(CutPut())
    exact = sink(kinesis, deduplicate=True)
    with run(spark, tmp_path) as here:
        here.call(exact, numbered(spark, 200, parts=3), 0)
        here.call(exact, numbered(spark, 200, parts=5), 0)
        here.call(exact, numbered(spark, 200), 1)
        here.call(sink(kinesis, deduplicate=True, sink_name="other"), numbered(spark, 200), 0)
        # As the batch of a copied checkpoint.
        here.call(exact, numbered(spark, 200), 1, content="a" * 32)
    found = read(kinesis)
    assert len(found) > 1000
    data_of = {row["deduplicationId"]: row["data"] for row in found}
    assert len(data_of) == 800, "of two batches, a copy and two sinks"
    assert all(data_of[row["deduplicationId"]] == row["data"] for row in found)
    assert Counter(data_of.values()) == {b"%d" % n: 4 for n in range(200)}


@pytest.mark.parametrize(
    "columns",
    [
        pytest.param(("data",), marks=pytest.mark.long),
        ("nullif(partitionKey, '3') partitionKey", "data"),
    ],
)
def test_rows_without_a_key_are_written_where_the_service_distributes_them(
    spark: SparkSession, kinesis: KinesisServer, tmp_path: Path, columns: tuple[str, ...]
) -> None:
    found = kinesis._stream(COPY)
    found.stream_mode = {"StreamMode": "ON_DEMAND"}
    found.set_strategy("AUTO")
    kinesis.inject(CutPut())
    exact = sink(kinesis, deduplicate=True)
    rows = numbered(spark, 60).unionAll(numbered(spark, 60))
    with run(spark, tmp_path) as here:
        here.call(exact, rows.selectExpr(*columns), 0)
        here.call(exact, rows.repartition(5).selectExpr(*columns), 0)
    put = read(kinesis)
    assert {row["partitionKey"] for row in put if int(row["data"]) % 7 == 3} == {None}
    keyless = [row for row in put if row["partitionKey"] is None]
    data_of = {row["deduplicationId"]: row["data"] for row in keyless}
    assert Counter(data_of.values()) == dict.fromkeys((row["data"] for row in keyless), 2)
    assert len({row["shardId"] for row in keyless}) == 2


def test_ids_do_not_depend_on_how_rows_are_cut() -> None:
    keys = [f"key-{n % 5}" for n in range(50)]
    records = pa.record_batch({"partitionKey": keys, "data": keys})

    def ids(*sizes: int) -> list[bytes]:
        made, found, begin = RowIds("query sink 7"), [], 0
        for size in sizes:
            found += made.add_to(records.slice(begin, size))["deduplicationId"].to_pylist()
            begin += size
        return found

    assert ids(50) == ids(1, 20, 29)
    assert len(set(ids(50))) == 50
    other = RowIds("query sink 8").add_to(records)["deduplicationId"].to_pylist()
    assert not set(other) & set(ids(50))


def test_no_row_of_another_batch_has_the_same_id() -> None:
    # Batch 1 has a row 10, and batch 11 a row 0.
    records = pa.RecordBatch.from_pydict({"partitionKey": ["key"] * 120, "data": ["x"] * 120})
    ids = [
        made
        for batch in range(120)
        for made in RowIds(f"query sink {batch}").add_to(records)["deduplicationId"].to_pylist()
    ]
    assert len(set(ids)) == len(ids)


def test_a_query_writes_what_it_reads(
    kinesis: KinesisServer, orders: KinesisSource, start: Callable[..., FanOutQuery]
) -> None:
    copying = sink(
        kinesis,
        deduplicate=True,
        transform=lambda df: df.selectExpr("partitionKey", "data"),
    )
    query = start(orders, copying)
    kinesis.put_records("orders", [(f"key-{n % 3}", b"%d" % n) for n in range(30)])
    eventually(lambda: len(read(kinesis)) >= 30)
    query.stop()
    assert of_each_key(read(kinesis)) == {f"key-{k}": [*range(k, 30, 3)] for k in range(3)}


@pytest.mark.parametrize(
    ("fault", "failure"),
    [
        (
            RefuseCall(action="PutRecords", code="AccessDeniedException", times=99),
            (ServiceError, "grant kinesis:PutRecords"),
        ),
        pytest.param(
            RefuseRecords(times=999, code="ProvisionedThroughputExceededException"),
            (BatchNotWrittenError, "batch 0: .*within delivery_timeout"),
            marks=pytest.mark.long,
        ),
    ],
)
def test_what_cannot_be_written_is_an_error_of_the_batch(
    spark: SparkSession,
    kinesis: KinesisServer,
    tmp_path: Path,
    fault: Any,
    failure: tuple[type[Exception], str],
) -> None:
    kind, says = failure
    kinesis.inject(fault)
    with run(spark, tmp_path) as here, pytest.raises(kind, match=says):
        here.call(sink(kinesis, delivery_timeout=1.0), numbered(spark, 10), 0)


@pytest.mark.long
def test_rows_that_do_not_fit_are_errors(
    spark: SparkSession, kinesis: KinesisServer, tmp_path: Path
) -> None:
    rows = numbered(spark, 3)
    with run(spark, tmp_path) as here:
        for wrong, says in (
            (rows.withColumnRenamed("data", "value"), "'value' is not part of a record"),
            (rows.select("partitionKey"), "no column 'data'"),
            (rows.selectExpr("partitionKey", "1 as data"), "'data' is int, and must be string or"),
        ):
            with pytest.raises(OptionError, match=says):
                here.call(sink(kinesis), wrong, 0)
        given = rows.selectExpr("partitionKey", "data", "unhex('00') as deduplicationId")
        with pytest.raises(OptionError, match="deduplicate=True makes ids"):
            here.call(sink(kinesis, deduplicate=True), given, 0)
        with pytest.raises(UnwritableRecordError, match="must have 16 bytes"):
            here.call(sink(kinesis), given, 0)
        with pytest.raises(UnwritableRecordError, match="a record has no partitionKey, and the"):
            here.call(sink(kinesis), rows.select("data"), 0)
        large = rows.selectExpr("partitionKey", "repeat('x', 20) as data")
        with pytest.raises(UnwritableRecordError, match="max_record_bytes=10"):
            here.call(sink(kinesis, max_record_bytes=10), large, 0)
    with pytest.raises(StreamStateError, match="no handler is running"):
        sink(kinesis).write(rows, 0)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"sink_name": "no name"}, "sink_name='no name' must be"),
        ({"transform": "upper"}, "must be a function of a DataFrame"),
        ({"stream": ""}, "neither a stream's name nor its ARN"),
    ],
)
def test_malformed_options_are_refused(
    kinesis: KinesisServer, wrong: dict[str, Any], says: str
) -> None:
    with pytest.raises(OptionError, match=says):
        sink(kinesis, **wrong)
