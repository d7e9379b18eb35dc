"""The Spark job of the soak: `python -m benchmarks.soak_job KINESIS KAFKA DIRECTORY SECONDS`.

It runs a query on a stream and one on a topic, and prints what the processes hold every so many
seconds, as a line of JSON, until standard input ends.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from benchmarks.consume_kafka import kafka_source
from benchmarks.consume_kinesis import CREDENTIALS
from benchmarks.paced import STREAM
from benchmarks.spark_contender import session
from fanout.kinesis import KinesisSource
from fanout.spark import foreach_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from fanout.spark import FanOutQuery

__all__ = ("Watch", "file_sizes", "main")


# Spark keeps the files of 100 batches and the status of 1,000 jobs, so what it holds would grow for
# a quarter of an hour.
_KEEPING_LITTLE: Final = {
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "100",
    "spark.driver.memory": "1g",
}


class Watch:
    """Take samples of what this process, its JVM and a directory hold.

    Args:
        spark: The session.
        directory: The directory.
    """

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        assert spark.sparkContext._jvm is not None  # noqa: SLF001 - no public way to it
        self._java = spark.sparkContext._jvm.java.lang  # noqa: SLF001
        self._driver = psutil.Process()
        self._jvm = psutil.Process(self._java.ProcessHandle.current().pid())
        self._directory = directory
        self._began = time.monotonic()

    def sample(self) -> dict[str, float]:
        """Return figures by name; the heaps are collected before they are measured."""
        gc.collect()
        self._java.System.gc()
        heap = self._java.management.ManagementFactory.getMemoryMXBean().getHeapMemoryUsage()
        files = file_sizes(self._directory)
        return {
            "seconds": time.monotonic() - self._began,
            "driver RSS": self._driver.memory_info().rss,
            "JVM RSS": self._jvm.memory_info().rss,
            "JVM heap": heap.getUsed(),
            "checkpoint bytes": sum(files),
            "checkpoint files": len(files),
            "driver threads": self._driver.num_threads(),
            "JVM threads": self._jvm.num_threads(),
            "driver sockets": len(self._driver.net_connections("all")),
            "JVM sockets": len(self._jvm.net_connections("all")),
            "driver open files": self._driver.num_fds(),
            "JVM open files": self._jvm.num_fds(),
        }


def file_sizes(directory: Path) -> list[int]:
    """Return the bytes of each file below a directory; files may be deleted meanwhile.

    Args:
        directory: The directory.
    """
    found = []
    for parent, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):
                found.append(os.stat(os.path.join(parent, name)).st_size)  # noqa: PTH116, PTH118 - as os.walk has it
    return found


class Counter:
    """Count the records of batches."""

    def __init__(self) -> None:
        self.records = 0

    def handle(self, frame: DataFrame, _batch_id: int) -> None:
        """Count those of one batch.

        It shuffles nothing: Spark's threads for that live for a minute, and with the rate of
        batches their number would go up and down.
        """
        self.records += len(frame.select(frame.columns[0]).collect())


def main() -> None:
    """Run until standard input ends, or a query fails."""
    url, servers, directory, seconds = sys.argv[1:]
    for name in ("aws_access_key_id", "aws_secret_access_key"):
        os.environ[name.upper()] = CREDENTIALS[name]
    ended = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    spark = session(settings=_KEEPING_LITTLE)
    counters = {"kinesis": Counter(), "kafka": Counter()}
    queries = _start(spark, url, servers, Path(directory), counters)
    watch = Watch(spark, Path(directory))
    while not ended.wait(float(seconds)):
        for query in queries:
            if not query.is_active:
                query.await_termination()  # raises what ended it
        counts = {name: counter.records for name, counter in counters.items()}
        print(json.dumps(watch.sample() | counts), flush=True)  # noqa: T201 - the caller reads it
    for query in queries:
        query.stop()
    spark.stop()


def _start(
    spark: SparkSession, url: str, servers: str, directory: Path, counters: dict[str, Counter]
) -> list[FanOutQuery]:
    kinesis = KinesisSource(
        stream=STREAM, consumer="soak", start="TRIM_HORIZON", endpoint_url=url, region="us-east-1"
    )
    sources: dict[str, Any] = {"kinesis": kinesis, "kafka": kafka_source(servers)}
    return [
        foreach_batch(
            spark,
            source,
            counters[name].handle,
            checkpoint_location=str(directory / name),
            processing_time="1 second",
        )
        for name, source in sources.items()
    ]


if __name__ == "__main__":
    main()
