"""Kinesis, a query, a shuffle, another query, Parquet: both queries are killed on the way."""

from __future__ import annotations

import asyncio
import math
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.kafka.reading import Topic
from tests.kafka.shuffle.reading import drain
from tests.spark.harness import eventually
from tests.spark.shuffle_driver import (
    LATE,
    PARTITIONS,
    READS,
    TIMES,
    WRITES,
    Job,
    Order,
    run_and_kill,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame

    from fanout.spark import FanOutQuery
    from fanout.testing.kafka_broker import KafkaBroker
    from fanout.testing.kinesis_server import KinesisServer

pytestmark = pytest.mark.spark

USERS = 20
ORDERS = 120


def order(number: int) -> Order:
    late = number * 7 % round(LATE * 1000)
    return Order(number, f"user-{number % USERS}", number * number, 1_000_000 + number * 10 - late)


def put(kinesis: KinesisServer, first: int, behind: int) -> None:
    orders = [order(number) for number in range(first, behind)]
    kinesis.put_records("orders", ((one.user, msgspec.json.encode(one)) for one in orders))


class Row(NamedTuple):
    """An order as it was written to Parquet."""

    partition: int
    offset: int
    batch_id: int
    order: Order
    time: int


def written(job: Job) -> list[Row]:
    """Return what was written, in the order in which the shuffle has it."""
    rows = []
    for path in job.output.glob("batch=*/*.parquet"):
        table = pq.read_table(path, coerce_int96_timestamp_unit="ms", partitioning=None)
        batch_id = int(path.parent.name.removeprefix("batch="))
        columns = (
            table["partition"],
            table["offset"],
            table["value"],
            table["eventTime"].cast(pa.int64()),
        )
        for partition, offset, value, time in zip(
            *(column.to_pylist() for column in columns), strict=True
        ):
            decoded = msgspec.json.decode(value, type=Order)
            rows.append(Row(partition, offset, batch_id, decoded, time))
    return sorted(rows, key=lambda row: row[:2])


@pytest.mark.timeout(120)  # six queries are started, and started again
def test_sums_by_user_are_those_of_kinesis_although_both_sides_are_killed(
    kinesis: KinesisServer,
    kafka_broker: KafkaBroker,
    start: Callable[..., FanOutQuery],
    tmp_path: Path,
) -> None:
    put(kinesis, 0, ORDERS // 2)
    run_and_kill(kinesis.endpoint_url, kafka_broker.bootstrap_servers, tmp_path)
    kinesis.split_shard("orders", "shardId-000000000000")
    put(kinesis, ORDERS // 2, ORDERS)
    counts: Counter[str] = Counter()
    jobs = [
        Job(time, kinesis.endpoint_url, kafka_broker.bootstrap_servers, tmp_path) for time in TIMES
    ]

    def run(job: Job) -> list[FanOutQuery]:
        def read(df: DataFrame, batch_id: int) -> None:
            job.write(df, batch_id)
            counts[job.time] = len(written(job))

        shuffle = job.shuffle()
        writing, reading = job.checkpoint("writing"), job.checkpoint("reading")
        return [
            start(job.orders, shuffle.handler, checkpoint_location=writing, max_records=WRITES),
            start(shuffle.source, read, checkpoint_location=reading, max_records=READS),
        ]

    queries = [query for job in jobs for query in run(job)]
    eventually(lambda: counts.total() >= ORDERS * len(jobs), "all orders")
    for query in queries:
        query.stop()
    for job in jobs:
        check(job, kafka_broker)


def check(job: Job, broker: KafkaBroker) -> None:
    rows = written(job)
    assert sorted(row.order.number for row in rows) == list(range(ORDERS)), "each of them once"
    sums: Counter[str] = Counter()
    for row in rows:
        sums[row.order.user] += row.order.amount
    expected: Counter[str] = Counter()
    for one in map(order, range(ORDERS)):
        expected[one.user] += one.amount
    assert sums == expected
    numbers: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for row in rows:
        numbers[row.order.user, row.partition].append(row.order.number)
    assert len(numbers) == USERS, "each user is in one partition"
    assert all(each == sorted(each) for each in numbers.values()), "in the order of Kinesis"
    check_watermarks(job, rows)
    topic = Topic.__new__(Topic)
    topic.broker, topic.name = broker, job.topic
    found = asyncio.run(drain(topic, partition_count=PARTITIONS))
    assert (len(found.values), found.late) == (ORDERS, [])


def check_watermarks(job: Job, rows: list[Row]) -> None:
    if job.time == "event":
        assert [row.time for row in rows] == [row.order.at for row in rows]
    lines = job.reports.read_bytes().splitlines()
    reports = [msgspec.json.decode(line, type=tuple[int, int | None]) for line in lines]
    heights = [-math.inf if watermark is None else watermark for _, watermark in reports]
    assert heights == sorted(heights), "none goes back"
    assert heights[-1] > min(row.time for row in rows), "and they go on"
    for batch_id, watermark in reports:
        if watermark is not None:
            coming = (row.time for row in rows if row.batch_id > batch_id)
            assert min(coming, default=math.inf) > watermark, "what comes is later"
