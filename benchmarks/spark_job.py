"""One run of the Spark job of the `spark` scenario.

`python -m benchmarks.spark_job NAME PORT SHARDS RECORDS` counts the records of each micro-batch and
sums the lengths of their data. It prints its records per second and the CPU seconds of driver and
JVM for a million records, measured after the first batches, and the driver's peak memory.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import threading
import time
from contextlib import aclosing
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.consume import kinesis_source, read_by_hand
from benchmarks.harness import own_cpu_seconds, own_peak_rss_bytes
from fanout.spark import foreach_batch

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from pyspark.sql import DataFrame

__all__ = ("JOBS", "main")

BATCH_RECORDS = 100_000
WARM_UP = 3


class Meter:
    """Measure batches, the first ones left out; say when there were enough records."""

    def __init__(self, spark: SparkSession, records: int) -> None:
        self.enough = threading.Event()
        self.records_per_second = 0.0
        self.cpu_seconds_per_million = 0.0
        self._spark = spark
        self._wanted = records
        self._counted = 0
        self._batches = 0
        self._since = 0.0
        self._cpu_before = 0.0

    def handle(self, frame: DataFrame, _batch_id: int) -> None:
        """Do the job's work on one batch."""
        row = frame.selectExpr("count(*) AS records", "sum(length(data)) AS bytes").first()
        assert row is not None
        self._batches += 1
        if self._batches == WARM_UP:
            self._since, self._cpu_before = time.perf_counter(), self._cpu_seconds()
        elif self._batches > WARM_UP and not self.enough.is_set():
            self._counted += row.records
            if self._counted >= self._wanted:
                self._read_clocks()
                self.enough.set()

    def _read_clocks(self) -> None:
        self.records_per_second = self._counted / (time.perf_counter() - self._since)
        cpu = self._cpu_seconds() - self._cpu_before
        self.cpu_seconds_per_million = cpu / self._counted * 1e6

    def _cpu_seconds(self) -> float:
        """Return the CPU seconds of this process and of its JVM."""
        assert self._spark.sparkContext._jvm is not None  # noqa: SLF001 - no public way to it
        jvm = self._spark.sparkContext._jvm.java.lang.ProcessHandle.current()  # noqa: SLF001
        milliseconds: int = jvm.info().totalCpuDuration().get().toMillis()
        return own_cpu_seconds() + milliseconds / 1000


def run_fanout(spark: SparkSession, port: int, _shards: int, meter: Meter) -> None:
    """Run the job as a user of fanout writes it."""
    with tempfile.TemporaryDirectory() as checkpoint:
        query = foreach_batch(
            spark,
            kinesis_source(port),
            meter.handle,
            checkpoint_location=checkpoint,
            max_records=BATCH_RECORDS,
        )
        while not meter.enough.wait(1) and query.is_active:
            pass
        query.stop()


def run_by_hand(spark: SparkSession, port: int, shards: int, meter: Meter) -> None:
    """Run the job as it is written today: an aioboto3 loop and createDataFrame.

    It keeps no checkpoint and resubscribes to nothing, to its advantage.
    """
    asyncio.run(_read_by_hand(spark, port, shards, meter))


async def _read_by_hand(spark: SparkSession, port: int, shards: int, meter: Meter) -> None:
    batch_id = 0
    async with aclosing(_tables(port, shards)) as tables:
        async for table in tables:
            # The shards are read on while Spark works, an event each.
            await asyncio.to_thread(meter.handle, spark.createDataFrame(table), batch_id)
            batch_id += 1
            if meter.enough.is_set():
                return


async def _tables(port: int, shards: int) -> AsyncGenerator[pa.Table, None]:
    batches: list[pa.RecordBatch] = []
    rows = 0
    async with aclosing(read_by_hand(port, shards)) as arriving:
        async for batch in arriving:
            batches.append(batch)
            rows += batch.num_rows
            if rows >= BATCH_RECORDS:
                table = pa.Table.from_batches(batches)
                yield table.slice(0, BATCH_RECORDS)
                batches = table.slice(BATCH_RECORDS).to_batches()
                rows -= BATCH_RECORDS


JOBS: dict[str, Callable[[SparkSession, int, int, Meter], None]] = {
    "fanout": run_fanout,
    "aioboto3 + createDataFrame": run_by_hand,
}


def main() -> None:
    """Run one job and print one JSON object."""
    name, (port, shards, records) = sys.argv[1], map(int, sys.argv[2:])
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "3g")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    meter = Meter(spark, records)
    JOBS[name](spark, port, shards, meter)
    spark.stop()
    result = {
        "records_per_second": meter.records_per_second,
        "cpu_seconds_per_million": meter.cpu_seconds_per_million,
        "peak_rss_bytes": own_peak_rss_bytes(),
    }
    print(json.dumps(result))  # noqa: T201 - the caller reads it


if __name__ == "__main__":
    main()
