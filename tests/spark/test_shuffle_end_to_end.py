"""Kinesis, a query, a shuffle, another query, Parquet: by three notions of time, with failures."""

from __future__ import annotations

import asyncio
import math
from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from fanout import EventTime
from fanout.errors import BatchFailedError
from fanout.kafka import Cluster, KafkaSource, ShuffleSource
from fanout.spark import ShuffleSink, create_shuffle_topic
from fanout.spark.query.batch_context import current_batch
from fanout.spark.sinks.kafka import job as sink_job
from fanout.spark.sinks.kafka.shuffle_frames import announce
from fanout.spark.sinks.kafka.transaction import ExactlyOnce
from fanout.testing.kinesis.rules import KinesisRules
from fanout.testing.kinesis.server import KinesisServer
from tests.support.kafka.shuffle_reading import drain
from tests.support.kafka.topics import PLAINTEXT, Topic
from tests.support.spark.harness import PATIENCE, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame

    from fanout.kinesis import KinesisSource
    from fanout.spark import FanOutQuery
    from fanout.spark.query.batch_runner import Handler
    from fanout.testing.kafka.broker import KafkaBroker

    Start: TypeAlias = Callable[..., FanOutQuery]

pytestmark = [pytest.mark.spark, pytest.mark.long]

Time: TypeAlias = Literal["event", "ingestion", "processing"]
TIMES: tuple[Time, ...] = get_args(Time)

PARTITIONS = 3
USERS = 20
ORDERS = 120
LATE = 0.04
SHARD_EVENT = 4


class Order(msgspec.Struct):
    """The records in Kinesis: event times come out of order, by less than LATE."""

    number: int
    user: str
    amount: int
    at: int


def order(number: int) -> Order:
    late = number * 7 % round(LATE * 1000)
    return Order(number, f"user-{number % USERS}", number * number, 1_000_000 + number * 10 - late)


def put(kinesis: KinesisServer, first: int, behind: int) -> None:
    orders = [order(number) for number in range(first, behind)]
    kinesis.put_records("orders", ((one.user, msgspec.json.encode(one)) for one in orders))


def times_of(records: pa.RecordBatch) -> pa.Array:
    orders = (msgspec.json.decode(data, type=Order) for data in records["data"].to_pylist())
    return pa.array([one.at for one in orders], pa.timestamp("ms", "UTC"))


# The watermark of the first two is that of the stream; that of the last follows from the rows.
EVENT_TIME: dict[Time, EventTime | None] = {
    "event": EventTime(times_of, out_of_orderness=LATE),
    "ingestion": EventTime(),
    "processing": None,
}
STAMP: dict[Time, str] = {
    "event": "timestamp_millis(order.at)",
    "ingestion": "approximateArrivalTimestamp",
    "processing": "current_timestamp()",
}
# When the two sides fail in their second batch.
WRITER_FAILS: dict[Time, str] = {"event": "before", "ingestion": "within", "processing": "after"}
READER_FAILS: dict[Time, str] = {"event": "after", "ingestion": "before", "processing": "after"}


class DeadError(Exception):
    """The process is dead."""


def failing(handler: Handler, moment: str) -> Handler:
    """Return a handler that fails before or after its work on the second batch."""

    def handle(df: DataFrame, batch_id: int) -> None:
        if batch_id == 1 and moment == "before":
            raise DeadError
        handler(df, batch_id)
        if batch_id == 1 and moment == "after":
            raise DeadError

    return handle


def announce_or_fail(task: Any, *arguments: Any) -> Any:
    """Fail where the rows of a batch are written, and their transaction is open."""
    if "ingestion" in task.topic and current_batch().batch_id == 1:
        raise DeadError
    return announce(task, *arguments)


class Row(NamedTuple):
    """An order as it was written to Parquet."""

    partition: int
    offset: int
    batch_id: int
    order: Order
    time: int


class Job:
    """The two queries of one notion of time.

    `reports` has the batches that were read and the reported watermarks behind them.
    """

    def __init__(self, time: Time, orders: KinesisSource, kafka: str, directory: Path) -> None:
        self.time = time
        self.topic = f"orders-by-user-in-{time}-time"
        self.reports: list[tuple[int, int | None]] = []
        self._directory = directory / time
        self._orders = replace(orders, consumer=time, event_time=EVENT_TIME[time])
        order_of = F.from_json(F.col("data").cast("string"), "user string, at long")
        cluster = Cluster(kafka, security=PLAINTEXT)
        self._sink = ShuffleSink(
            cluster=cluster,
            topic=self.topic,
            partition_count=PARTITIONS,
            transform=lambda df: df.withColumn("order", order_of),
            key="order.user",
            value="data",
            timestamp=F.expr(STAMP[time]),
            out_of_orderness=None if EVENT_TIME[time] else 0,
        )
        create_shuffle_topic(self._sink, retention=None, replication_factor=1)
        read = KafkaSource(cluster=cluster, topics=self.topic)
        self._source = ShuffleSource(read, partition_count=PARTITIONS)

    def write(self, start: Start, *, fail: bool) -> FanOutQuery:
        """Start the query that writes; it ends, by a failure in its second batch if it is to."""
        handler = self._sink
        return start(
            self._orders,
            failing(handler, WRITER_FAILS[self.time]) if fail else handler,
            checkpoint_location=str(self._directory / "writing"),
            max_records=25 if fail else 60,
            available_now=True,
        )

    def read(self, start: Start, *, fail: bool) -> FanOutQuery:
        """Start the query that reads; it fails in its second batch if it is to."""
        return start(
            self._source,
            failing(self._write, READER_FAILS[self.time]) if fail else self._write,
            checkpoint_location=str(self._directory / "reading"),
            # The first batch that was written may hold one event alone; two batches need fewer.
            max_records=SHARD_EVENT // 2 if fail else ORDERS // 2,
        )

    def _write(self, df: DataFrame, batch_id: int) -> None:
        self.reports.append((batch_id, current_batch().watermark))
        df.write.mode("overwrite").parquet(str(self._output / f"batch={batch_id}"))

    @property
    def _output(self) -> Path:
        return self._directory / "output"

    @property
    def count(self) -> int:
        """The number of orders in batches that are written."""
        done = (path.parent for path in self._output.glob("batch=*/_SUCCESS"))
        files = (path for directory in done for path in directory.glob("*.parquet"))
        return sum(pq.read_metadata(path).num_rows for path in files)

    def rows(self) -> list[Row]:
        """Return what was written, in the order in which the shuffle has it."""
        rows = []
        for path in self._output.glob("batch=*/*.parquet"):
            table = pq.read_table(path, coerce_int96_timestamp_unit="ms", partitioning=None)
            batch_id = int(path.parent.name.removeprefix("batch="))
            times = table["eventTime"].cast(pa.int64())
            columns = (table["partition"], table["offset"], table["value"], times)
            for partition, offset, value, time in zip(
                *(column.to_pylist() for column in columns), strict=True
            ):
                decoded = msgspec.json.decode(value, type=Order)
                rows.append(Row(partition, offset, batch_id, decoded, time))
        return sorted(rows, key=lambda row: row[:2])


@pytest.fixture
def kinesis() -> Iterator[KinesisServer]:
    """Events are smaller than batches: what is cut off an event has no watermark."""
    with KinesisServer(replace(KinesisRules.fast(), max_event_records=SHARD_EVENT)) as server:
        server.create_stream("orders", 2)
        yield server


def test_sums_by_user_are_those_of_kinesis_although_both_sides_fail(
    kinesis: KinesisServer,
    orders: KinesisSource,
    kafka_broker: KafkaBroker,
    start: Start,
    tmp_path: Path,
) -> None:
    jobs = [Job(time, orders, kafka_broker.bootstrap_servers, tmp_path) for time in TIMES]
    put(kinesis, 0, ORDERS // 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sink_job, "announce", announce_or_fail)
        patch.setattr(ExactlyOnce, "_abort", lambda *_: None)  # the dead do not clean up
        for side in (Job.write, Job.read):
            for query in [side(job, start, fail=True) for job in jobs]:
                with pytest.raises(BatchFailedError, match="DeadError"):
                    query.await_termination(PATIENCE)
    kinesis.split_shard("orders", "shardId-000000000000")
    put(kinesis, ORDERS // 2, ORDERS)
    for query in [job.write(start, fail=False) for job in jobs]:
        assert query.await_termination(PATIENCE)
    for job in jobs:
        job.read(start, fail=False)
    eventually(lambda: all(job.count >= ORDERS for job in jobs), "all orders")
    for job in jobs:
        check(job, kafka_broker)


def check(job: Job, broker: KafkaBroker) -> None:
    rows = job.rows()
    assert sorted(row.order.number for row in rows) == list(range(ORDERS)), "each of them once"
    sums: Counter[str] = Counter()
    expected: Counter[str] = Counter()
    numbers: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for one in map(order, range(ORDERS)):
        expected[one.user] += one.amount
    for row in rows:
        sums[row.order.user] += row.order.amount
        numbers[row.order.user, row.partition].append(row.order.number)
    assert sums == expected
    assert len(numbers) == USERS, "each user is in one partition"
    assert all(each == sorted(each) for each in numbers.values()), "in the order of Kinesis"
    if job.time == "event":
        assert all(row.time == row.order.at for row in rows)
    check_watermarks(job.reports, rows)
    topic = Topic.__new__(Topic)
    topic.broker, topic.name = broker, job.topic
    found = asyncio.run(drain(topic, partition_count=PARTITIONS))
    assert (len(found.values), found.late) == (ORDERS, [])


def check_watermarks(reports: list[tuple[int, int | None]], rows: list[Row]) -> None:
    heights = [-math.inf if watermark is None else watermark for _, watermark in reports]
    assert heights == sorted(heights), "none goes back"
    assert heights[-1] > min(row.time for row in rows), "and they go on"
    for batch_id, watermark in reports:
        coming = [row.time for row in rows if row.batch_id > batch_id]
        assert watermark is None or min(coming, default=math.inf) > watermark, "they keep behind"
