"""The Spark job of the `latency` scenario: `python -m benchmarks.latency_job NAME SERVERS SHARDS`.

It runs a query that begins at the end of a topic for each number of records that it reads from
standard input, and prints the latencies of so many records; `benchmarks.spark_contender` has the
other end. Batches follow each other without a pause.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from benchmarks.consume_kafka import kafka_source
from benchmarks.kafka_topic import TOPIC
from benchmarks.latency import DATA_FRAME, FOREACH_BATCH, SPARK, latencies, measured
from benchmarks.paced import STAMP_BYTES
from benchmarks.spark_contender import answer, cpu_seconds, session, warm_up_batches
from benchmarks.spark_job import KAFKA_PACKAGE, run_query
from fanout.spark import foreach_batch, read_stream

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from pyspark.sql import DataFrame, SparkSession

    from benchmarks.harness import Measurement

__all__ = ("Job", "Meter", "main", "run_data_frame", "run_foreach_batch")

# A JVM spends minutes of a stream that runs for months on compiling itself.
WARM_UP_BATCHES = 300
SKIPPED_BATCHES = 5


class Meter:
    """Take the latencies of a number of records, after the first batches.

    Args:
        spark: The session.
        records: How many.
    """

    def __init__(self, spark: SparkSession, records: int) -> None:
        self.enough = threading.Event()
        self.batches = 0
        self._spark = spark
        self._wanted = records
        self._parts: list[np.ndarray[Any, np.dtype[np.float64]]] = []
        self._since = 0.0
        self._cpu_before = 0.0
        self.measurement: Measurement | None = None

    def handle(self, frame: DataFrame, _batch_id: int) -> None:
        """Take the latencies of a batch."""
        stamps = frame.selectExpr(f"substring(value, 1, {STAMP_BYTES}) AS stamp").toArrow()
        if not stamps.num_rows:
            return
        taken = latencies(stamps.column("stamp").cast(pa.binary()))
        self.batches += 1
        if self.batches == SKIPPED_BATCHES:
            self._since, self._cpu_before = time.perf_counter(), cpu_seconds(self._spark)
        elif self.batches > SKIPPED_BATCHES and not self.enough.is_set():
            self._parts.append(taken)
            if sum(map(len, self._parts)) >= self._wanted:
                seconds = time.perf_counter() - self._since
                cpu = cpu_seconds(self._spark) - self._cpu_before
                self.measurement = measured(self._parts, seconds, cpu)
                self.enough.set()


class WarmUp(Meter):
    """Take nothing until so many batches were handled."""

    def handle(self, frame: DataFrame, batch_id: int) -> None:
        """Handle a batch as a meter does."""
        super().handle(frame, batch_id)
        if self.batches >= warm_up_batches(WARM_UP_BATCHES):
            self.enough.set()


@dataclass(frozen=True, slots=True)
class Job:
    """Say what is read."""

    spark: SparkSession
    servers: str


def run_foreach_batch(job: Job, meter: Meter) -> None:
    """Run `foreach_batch`, whose batches take what is there."""
    with tempfile.TemporaryDirectory() as checkpoint:
        query = foreach_batch(
            job.spark,
            replace(kafka_source(job.servers), start="latest"),
            meter.handle,
            checkpoint_location=checkpoint,
            max_wait=0.0,
        )
        while not meter.enough.wait(0.1) and query.is_active:
            pass
        query.stop()


def run_data_frame(job: Job, meter: Meter) -> None:
    """Run a query of `read_stream`, which lands what is there."""
    with tempfile.TemporaryDirectory() as place:
        source = replace(kafka_source(job.servers), start="latest")
        options = {"maxWait": "0"}
        frame = read_stream(job.spark, source, landing=f"{place}/landing", options=options)
        run_query(frame, meter, f"{place}/checkpoint")


def run_spark_source(job: Job, meter: Meter) -> None:
    """Run a query on Spark's own Kafka source."""
    frame = (
        job.spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", job.servers)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "latest")
        .option("kafka.isolation.level", "read_committed")
        .load()
    )
    with tempfile.TemporaryDirectory() as checkpoint:
        run_query(frame, meter, checkpoint)


CONTENDERS: dict[str, tuple[Callable[[Job, Meter], None], str]] = {
    f"kafka/{FOREACH_BATCH}": (run_foreach_batch, ""),
    f"kafka/{DATA_FRAME}": (run_data_frame, ""),
    f"kafka/{SPARK}": (run_spark_source, KAFKA_PACKAGE),
}


def main() -> None:
    """Run one job as often as it is asked to, and print one JSON object each time."""
    contend, packages = CONTENDERS[sys.argv[1]]
    spark = session(packages)
    job = Job(spark, sys.argv[2])
    contend(job, WarmUp(spark, sys.maxsize))

    def run(wanted: int) -> Measurement:
        meter = Meter(spark, wanted)
        contend(job, meter)
        assert meter.measurement is not None
        return meter.measurement

    answer(run)
    spark.stop()


if __name__ == "__main__":
    main()
