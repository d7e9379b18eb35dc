"""Orders through a shuffle by three notions of time, in a driver that waits to be killed.

Its arguments: the addresses of Kinesis and of Kafka, and a directory for everything it writes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args
from unittest.mock import patch

import aioboto3
import msgspec
import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from fanout import EventTime
from fanout.kafka import Security
from fanout.kinesis import KinesisSource
from fanout.spark import PersistentKeyBy, foreach_batch, persistent_key_by
from fanout.spark.handling import current_batch
from fanout.spark.sink import batch
from fanout.spark.sink.framing import say
from fanout.testing.driver_session import short_lived_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from fanout.spark.batches import Handler

ROOT = Path(__file__).parents[2]
PARTITIONS = 3
WRITES, READS = 20, 15  # of a batch
LATE = 0.04

Time: TypeAlias = Literal["event", "ingestion", "processing"]
TIMES: tuple[Time, ...] = get_args(Time)


class Order(msgspec.Struct):
    """What Kinesis has: event times come out of order, by less than LATE."""

    number: int
    user: str
    amount: int
    at: int


def times_of(records: pa.RecordBatch) -> pa.Array:
    orders = (msgspec.json.decode(data, type=Order) for data in records["data"].to_pylist())
    return pa.array([order.at for order in orders], pa.timestamp("ms", "UTC"))


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


@dataclass(frozen=True, slots=True)
class Job:
    """The two queries of one notion of time."""

    time: Time
    kinesis: str
    kafka: str
    directory: Path

    @property
    def topic(self) -> str:
        return f"orders-by-user-in-{self.time}-time"

    @property
    def orders(self) -> KinesisSource:
        return KinesisSource(
            stream="orders",
            consumer=self.time,
            start="TRIM_HORIZON",
            endpoint_url=self.kinesis,
            region="us-east-1",
            session=aioboto3.Session(aws_access_key_id="testing", aws_secret_access_key="testing"),
            event_time=EVENT_TIME[self.time],
        )

    def shuffle(self) -> PersistentKeyBy:
        order = F.from_json(F.col("data").cast("string"), "user string, amount int, at long")
        return persistent_key_by(
            bootstrap_servers=self.kafka,
            security=Security(protocol="PLAINTEXT"),
            topic=self.topic,
            partition_count=PARTITIONS,
            retention=None,
            replication_factor=1,
            transform=lambda df: df.withColumn("order", order),
            key="order.user",
            value="data",
            timestamp=F.expr(STAMP[self.time]),
            out_of_orderness=None if EVENT_TIME[self.time] else 0,
        )

    def checkpoint(self, side: str) -> str:
        return str(self.directory / "checkpoints" / f"{side}-{self.time}")

    def write(self, df: DataFrame, batch_id: int) -> None:
        """Tell the watermark behind a batch that was read, and write the batch."""
        with self.reports.open("ab") as file:
            file.write(msgspec.json.encode((batch_id, current_batch().watermark)) + b"\n")
        df.write.mode("overwrite").parquet(str(self.output / f"batch={batch_id}"))

    @property
    def output(self) -> Path:
        return self.directory / "output" / self.time

    @property
    def reports(self) -> Path:
        return self.directory / f"watermarks-{self.time}.jsonl"


def run_and_kill(kinesis: str, kafka: str, directory: Path) -> None:
    """Run both sides of each job until all of them are held inside a batch, and kill them."""
    driver = subprocess.Popen(  # noqa: S603 - our own interpreter and module
        [sys.executable, "-m", "tests.spark.shuffle_driver", kinesis, kafka, str(directory)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "held\n"
        os.kill(driver.pid, signal.SIGKILL)


def main(kinesis: str, kafka: str, directory: Path) -> None:
    held = threading.Semaphore(0)

    def hold() -> None:
        held.release()
        threading.Event().wait()

    def doomed(handler: Handler, in_batch: int, moment: str) -> Handler:
        def handle(df: DataFrame, batch_id: int) -> None:
            if batch_id == in_batch and moment == "before":
                hold()
            handler(df, batch_id)
            if batch_id == in_batch and moment == "after":
                hold()

        return handle

    def say_late(delivery: Any, *arguments: Any) -> Any:
        if "ingestion" in delivery.topic and current_batch().batch_id == 2:
            hold()  # the rows are written, and their transaction is open
        return say(delivery, *arguments)

    writes: dict[Time, str] = {"event": "before", "ingestion": "within", "processing": "after"}
    reads: dict[Time, str] = {"event": "after", "ingestion": "before", "processing": "after"}
    scratch = directory / "scratch"
    scratch.mkdir()
    with patch.object(batch, "say", say_late), short_lived_session("shuffle", scratch) as spark:
        for time in TIMES:
            job = Job(time, kinesis, kafka, directory)
            shuffle = job.shuffle()
            foreach_batch(
                spark,
                job.orders,
                doomed(shuffle.handler, 2, writes[time]),
                checkpoint_location=job.checkpoint("writing"),
                max_records=WRITES,
            )
            foreach_batch(
                spark,
                shuffle.source,
                doomed(job.write, 1, reads[time]),
                checkpoint_location=job.checkpoint("reading"),
                max_records=READS,
            )
        for _ in range(2 * len(TIMES)):
            held.acquire()
        sys.stdout.write("held\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
