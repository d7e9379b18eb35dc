"""One run of the Spark job of the `spark` scenario: `python -m benchmarks.spark_job NAME PORT N`.

The job counts the records of each micro-batch and sums the lengths of their data. It prints its
records per second, measured after the first batches, and its peak memory.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Any

import aioboto3
import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.decode import columns
from benchmarks.replay import CONSUMER_ARN, SHARD_ID
from fanout.kinesis import KinesisSource
from fanout.spark import foreach_batch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from pyspark.sql import DataFrame

__all__ = ("JOBS", "main")

BATCH_RECORDS = 100_000
WARM_UP = 3
CREDENTIALS = {
    "aws_access_key_id": "benchmark",
    "aws_secret_access_key": "benchmark",
    "region_name": "us-east-1",
}


class Meter:
    """Measure batches, the first ones left out; say when there were enough records."""

    def __init__(self, records: int) -> None:
        self.enough = threading.Event()
        self.records_per_second = 0.0
        self._wanted = records
        self._counted = 0
        self._batches = 0
        self._since = 0.0

    def handle(self, frame: DataFrame, _batch_id: int) -> None:
        """Do the job's work on one batch."""
        row = frame.selectExpr("count(*) AS records", "sum(length(data)) AS bytes").first()
        assert row is not None
        self._batches += 1
        if self._batches == WARM_UP:
            self._since = time.perf_counter()
        elif self._batches > WARM_UP:
            self._counted += row.records
            self.records_per_second = self._counted / (time.perf_counter() - self._since)
        if self._counted >= self._wanted:
            self.enough.set()


def run_fanout(spark: SparkSession, port: int, meter: Meter) -> None:
    """Run the job as a user of fanout writes it."""
    source = KinesisSource(
        stream="orders",
        consumer=CONSUMER_ARN,
        start="TRIM_HORIZON",
        endpoint_url=f"http://127.0.0.1:{port}",
        session=aioboto3.Session(**CREDENTIALS),
    )
    with tempfile.TemporaryDirectory() as checkpoint:
        query = foreach_batch(
            spark,
            source,
            meter.handle,
            checkpoint_location=checkpoint,
            max_records=BATCH_RECORDS,
        )
        while not meter.enough.wait(1) and query.is_active:
            pass
        query.stop()


def run_by_hand(spark: SparkSession, port: int, meter: Meter) -> None:
    """Run the job as it is written today: an aioboto3 loop and createDataFrame.

    It keeps no checkpoint, resubscribes to nothing and holds what comes, all to its advantage.
    """
    asyncio.run(_read_by_hand(spark, port, meter))


async def _read_by_hand(spark: SparkSession, port: int, meter: Meter) -> None:
    session = aioboto3.Session(**CREDENTIALS)
    async with session.client("kinesis", endpoint_url=f"http://127.0.0.1:{port}") as client:
        response = await client.subscribe_to_shard(
            ConsumerARN=CONSUMER_ARN, ShardId=SHARD_ID, StartingPosition={"Type": "TRIM_HORIZON"}
        )
        batch_id = 0
        async for table in _tables(response["EventStream"]):
            # The socket is read on while Spark works, as far as its buffers go.
            await asyncio.to_thread(meter.handle, spark.createDataFrame(table), batch_id)
            batch_id += 1
            if meter.enough.is_set():
                break
        response["EventStream"].close()


async def _tables(events: Any) -> AsyncIterator[pa.Table]:
    records: list[dict[str, Any]] = []
    async for event in events:
        records += event["SubscribeToShardEvent"]["Records"]
        if len(records) >= BATCH_RECORDS:
            yield pa.Table.from_batches([columns(records[:BATCH_RECORDS])])
            records = records[BATCH_RECORDS:]


JOBS: dict[str, Callable[[SparkSession, int, Meter], None]] = {
    "fanout": run_fanout,
    "aioboto3 + createDataFrame": run_by_hand,
}


def main() -> None:
    """Run one job and print one JSON object."""
    name, port, records = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "3g")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    meter = Meter(records)
    JOBS[name](spark, port, meter)
    spark.stop()
    result = {
        "records_per_second": meter.records_per_second,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    print(json.dumps(result))  # noqa: T201 - the caller reads it


if __name__ == "__main__":
    main()
