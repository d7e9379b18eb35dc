"""The Spark job of the `spark` scenario: `python -m benchmarks.spark_job NAME ADDRESS SHARDS`.

The job counts the records of each micro-batch and sums the lengths of their data. It prints a line
when it is warm; then it runs once for each number of records that it reads from standard input, and
prints the records per second and the CPU seconds of driver and JVM for a million of them, the first
batches left out, and the driver's peak memory so far.

Before the first run it does the same with many small batches, and then with large ones. The JVM
spends minutes of a stream that runs for months on compiling itself, more than on the batches:
without the large ones the first run reached half the rate of the fifth.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import threading
import time
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyspark

import fanout
from benchmarks.consume_kafka import kafka_source
from benchmarks.consume_kinesis import CREDENTIALS, kinesis_source, read_by_hand
from benchmarks.harness import Measurement, own_peak_rss_bytes
from benchmarks.kafka_topic import TOPIC
from benchmarks.spark_contender import answer, cpu_seconds, session, warm_up_batches
from fanout.spark import foreach_batch, read_stream
from fanout.spark.workers.loop_thread import LoopThread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from pyspark.sql import DataFrame, SparkSession

    from fanout.kafka import KafkaSource
    from fanout.kinesis import KinesisSource

__all__ = ("CONTENDERS", "KAFKA_PACKAGE", "main", "run_query")

_SCALA = "2.12" if pyspark.__version__ < "4" else "2.13"
KAFKA_PACKAGE = f"org.apache.spark:spark-sql-kafka-0-10_{_SCALA}:{pyspark.__version__}"
BATCH_RECORDS = 100_000
SKIPPED_BATCHES = 3
_FILES_AHEAD = 4
# The same in bytes, of records of 1 KB: a run is charged for what it lands and does not count.
_BYTES_AHEAD = _FILES_AHEAD * 100_000_000
WARM_UP_BATCHES = 300
WARM_UP_BATCH_RECORDS = 1000
WARM_UP_LARGE_BATCHES = 12


class Handler(Protocol):
    """Handles batches until it has enough."""

    enough: threading.Event

    def handle(self, frame: DataFrame, batch_id: int, /) -> None:
        """Handle a batch."""


class Meter:
    """Measure batches, the first ones left out; say when there were enough records."""

    def __init__(self, spark: SparkSession, records: int, column: str) -> None:
        self.enough = threading.Event()
        self.records_per_second = 0.0
        self.cpu_seconds_per_million = 0.0
        self._spark = spark
        self._lengths = f"sum(length({column})) AS bytes"
        self._wanted = records
        self._counted = 0
        self.batches = 0
        self._since = 0.0
        self._cpu_before = 0.0

    def handle(self, frame: DataFrame, _batch_id: int) -> None:
        """Do the job's work on one batch."""
        row = frame.selectExpr("count(*) AS records", self._lengths).first()
        assert row is not None
        self.batches += 1
        if self.batches == SKIPPED_BATCHES:
            self._since, self._cpu_before = time.perf_counter(), cpu_seconds(self._spark)
        elif self.batches > SKIPPED_BATCHES and not self.enough.is_set():
            self._counted += row.records
            if self._counted >= self._wanted:
                self._read_clocks()
                self.enough.set()

    def _read_clocks(self) -> None:
        self.records_per_second = self._counted / (time.perf_counter() - self._since)
        cpu = cpu_seconds(self._spark) - self._cpu_before
        self.cpu_seconds_per_million = cpu / self._counted * 1e6


@dataclass(frozen=True, slots=True)
class Job:
    """Say what is read, and in how large batches."""

    spark: SparkSession
    address: str
    shards: int
    batch_records: int = BATCH_RECORDS


def run_fanout(job: Job, meter: Meter, source: KinesisSource | KafkaSource) -> None:
    """Run the job as a user of fanout writes it."""
    with tempfile.TemporaryDirectory() as checkpoint:
        query = foreach_batch(
            job.spark,
            source,
            meter.handle,
            checkpoint_location=checkpoint,
            max_records=job.batch_records,
        )
        while not meter.enough.wait(1) and query.is_active:
            pass
        query.stop()


def run_data_frame(job: Job, meter: Meter, source: KinesisSource | KafkaSource) -> None:
    """Run the job on a streaming DataFrame, whose query lands the source by itself."""
    with tempfile.TemporaryDirectory() as place:
        options = {"maxRecordsPerTrigger": job.batch_records, "maxBytesAhead": _BYTES_AHEAD}
        frame = read_stream(job.spark, source, landing=f"{place}/landing", options=options)
        run_query(frame, meter, f"{place}/checkpoint")


def run_file_source(job: Job, meter: Meter, source: KinesisSource) -> None:
    """Run the job on Spark's own file source, over a landing that this process fills."""
    with tempfile.TemporaryDirectory() as place, LoopThread() as loop:
        landing = f"{place}/landing"
        begun = threading.Event()
        landed = loop.start(_land(source, landing, job, meter, begun.set))
        while not begun.wait(0.1):
            if landed.done():
                landed.result()  # raises why no file came
        files = f"{landing}/segments"
        reader = job.spark.readStream.schema(job.spark.read.parquet(files).schema)
        frame = reader.option("maxFilesPerTrigger", 1).parquet(files)
        run_query(frame, meter, f"{place}/checkpoint")


async def _land(
    source: KinesisSource, location: str, job: Job, meter: Meter, begun: Callable[[], None]
) -> None:
    """Land files of a batch each, no further ahead of the query than some of them."""
    files = 0
    async with fanout.land(source, location, max_records=job.batch_records) as landing:
        async for _ in landing:
            begun()
            files += 1
            while files - meter.batches > _FILES_AHEAD:  # noqa: ASYNC110 - another thread counts
                await asyncio.sleep(0.001)


def run_by_hand(job: Job, meter: Meter) -> None:
    """Run the job as it is written today: an aioboto3 loop and createDataFrame.

    It keeps no checkpoint and resubscribes to nothing, to its advantage.
    """
    asyncio.run(_read_by_hand(job, meter))


async def _read_by_hand(job: Job, meter: Meter) -> None:
    batch_id = 0
    async with aclosing(_tables(job)) as tables:
        async for table in tables:
            # The shards are read on while Spark works, an event each.
            await asyncio.to_thread(meter.handle, job.spark.createDataFrame(table), batch_id)
            batch_id += 1
            if meter.enough.is_set():
                return


async def _tables(job: Job) -> AsyncGenerator[pa.Table, None]:
    async with aclosing(read_by_hand(int(job.address), job.shards)) as arriving:
        batches: list[pa.RecordBatch] = []
        async for batch in arriving:
            batches.append(batch)
            while sum(batch.num_rows for batch in batches) >= job.batch_records:
                table = pa.Table.from_batches(batches)
                yield table.slice(0, job.batch_records)
                batches = table.slice(job.batch_records).to_batches()


def run_spark_source(job: Job, meter: Meter) -> None:
    """Run the job on Spark's own Kafka source."""
    frame = (
        job.spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", job.address)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .option("kafka.isolation.level", "read_committed")
        .option("maxOffsetsPerTrigger", job.batch_records)
        .load()
    )
    with tempfile.TemporaryDirectory() as checkpoint:
        run_query(frame, meter, checkpoint)


def sent_source(port: int) -> KinesisSource:
    """Return the source that a server on this port replays, with credentials of the environment."""
    return replace(kinesis_source(port), session=None, region=CREDENTIALS["region_name"])


def run_query(frame: DataFrame, meter: Handler, checkpoint: str) -> None:
    """Run the job on a streaming DataFrame, until the meter has enough."""
    writer = frame.writeStream.foreachBatch(meter.handle)
    query = writer.option("checkpointLocation", checkpoint).start()
    while not meter.enough.wait(1) and query.isActive:
        pass
    failed = not meter.enough.is_set()
    query.stop()  # interrupts Spark, which may then report its own last write as an error
    if failed and (error := query.exception()) is not None:
        raise error


@dataclass(frozen=True, slots=True)
class Contender:
    """Say how a job runs.

    Args:
        run: Runs it until the meter has enough.
        column: The data of a record.
        packages: Jars that Spark needs for it, by their Maven coordinates.
    """

    run: Callable[[Job, Meter], None]
    column: str
    packages: str = ""


CONTENDERS = {
    "kinesis/fanout": Contender(
        lambda job, meter: run_fanout(job, meter, kinesis_source(int(job.address))), "data"
    ),
    "kinesis/fanout, DataFrame": Contender(
        lambda job, meter: run_data_frame(job, meter, sent_source(int(job.address))), "data"
    ),
    "kinesis/fanout.land + Spark's files": Contender(
        lambda job, meter: run_file_source(job, meter, kinesis_source(int(job.address))), "data"
    ),
    "kinesis/aioboto3 + createDataFrame": Contender(run_by_hand, "data"),
    "kafka/fanout": Contender(
        lambda job, meter: run_fanout(job, meter, kafka_source(job.address)), "value"
    ),
    "kafka/fanout, DataFrame": Contender(
        lambda job, meter: run_data_frame(job, meter, kafka_source(job.address)), "value"
    ),
    "kafka/Spark's own source": Contender(run_spark_source, "value", KAFKA_PACKAGE),
}


def main() -> None:
    """Run one job as often as it is asked to, and print one JSON object each time."""
    contender, address, shards = CONTENDERS[sys.argv[1]], sys.argv[2], int(sys.argv[3])
    for name in ("aws_access_key_id", "aws_secret_access_key"):
        os.environ[name.upper()] = CREDENTIALS[name]
    spark = session(contender.packages)
    batches = warm_up_batches(WARM_UP_BATCHES)
    warm_up = Meter(spark, batches * WARM_UP_BATCH_RECORDS, contender.column)
    contender.run(Job(spark, address, shards, WARM_UP_BATCH_RECORDS), warm_up)
    records = warm_up_batches(WARM_UP_LARGE_BATCHES) * BATCH_RECORDS
    contender.run(Job(spark, address, shards), Meter(spark, records, contender.column))

    def run(wanted: int) -> Measurement:
        meter = Meter(spark, wanted, contender.column)
        contender.run(Job(spark, address, shards), meter)
        return Measurement(
            meter.records_per_second, meter.cpu_seconds_per_million, own_peak_rss_bytes()
        )

    answer(run)
    spark.stop()


if __name__ == "__main__":
    main()
