"""The Spark job of the `sink` scenario: `python -m benchmarks.sink_job NAME ADDRESS PARTITIONS`.

The address is that of the broker and the path of the Parquet file that is the batch. The job prints
a line when it is warm; then it runs once for each number of records that it reads from standard
input, and prints the records per second and the CPU seconds of driver, JVM and Python workers for a
million of them, the first batches left out, and the driver's peak memory so far.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from benchmarks.harness import Measurement, own_peak_rss_bytes
from benchmarks.sink import AT_LEAST_ONCE, EXACTLY_ONCE, PEER, TOPICS, TRANSFORMED
from benchmarks.spark_contender import answer, cpu_seconds, session, warm_up_batches
from fanout.kafka import Security
from fanout.kafka.cluster import Cluster
from fanout.landing.claims import claim
from fanout.landing.storage.local_storage import LocalStorage
from fanout.spark import KafkaSink
from fanout.spark.hadoop.jvm_lock import JvmProcess
from fanout.spark.query.batch_context import BatchContext, handling
from fanout.spark.workers.loop_thread import LoopThread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from fanout.kafka.writing.write_options import DeliveryGuarantee

__all__ = ("main", "writing")

_SCALA = "2.12" if pyspark.__version__ < "4" else "2.13"
_KAFKA_PACKAGE = f"org.apache.spark:spark-sql-kafka-0-10_{_SCALA}:{pyspark.__version__}"
WARM_UP_BATCHES = 30
SKIPPED_BATCHES = 3


@contextmanager
def writing(
    name: str, spark: SparkSession, servers: str, batch: str
) -> Iterator[Callable[[DataFrame], None]]:
    """Let a contender write batches, one after the other, while the block runs.

    Args:
        name: The contender.
        spark: The session.
        servers: The broker.
        batch: The file whose rows each batch has.
    """
    topic = TOPICS[name]
    if name == PEER:
        yield lambda df: _write_by_spark(df, servers, topic)
        return
    guarantees: dict[str, DeliveryGuarantee] = {
        EXACTLY_ONCE: "exactly_once",
        AT_LEAST_ONCE: "at_least_once",
        TRANSFORMED: "exactly_once",
    }
    sink = KafkaSink(
        cluster=Cluster(servers, security=Security(protocol="PLAINTEXT")),
        topic=topic,
        delivery_guarantee=guarantees[name],
        transform=_select if name == TRANSFORMED else None,
    )
    batch_ids, query_id = itertools.count(), str(uuid.uuid4())
    with tempfile.TemporaryDirectory() as checkpoint:
        storage = LocalStorage(Path(checkpoint))
        with claim(storage, JvmProcess(spark)) as ownership, LoopThread() as loop:

            def write(df: DataFrame) -> None:
                batch_id = next(batch_ids)
                context = BatchContext(
                    batch_id, query_id, storage, ownership, loop, frame=df, files=(batch,)
                )
                with handling(context):
                    sink(df, batch_id)

            yield write


def _select(df: DataFrame) -> DataFrame:
    return df.select("key", "value")


def _write_by_spark(df: DataFrame, servers: str, topic: str) -> None:
    writer = df.write.format("kafka").option("kafka.bootstrap.servers", servers)
    writer.option("topic", topic).save()


def measure(
    spark: SparkSession, batch: str, write: Callable[[DataFrame], None], wanted: int
) -> Measurement:
    """Write batches until there were `wanted` records; the clock starts after the first ones."""
    frame = spark.read.parquet(batch)
    rows = frame.count()
    for _ in range(SKIPPED_BATCHES):
        write(frame)
    counted, started, cpu = 0, time.perf_counter(), cpu_seconds(spark)
    while counted < wanted:
        write(frame)
        counted += rows
    seconds, cpu = time.perf_counter() - started, cpu_seconds(spark) - cpu
    return Measurement(counted / seconds, cpu / counted * 1e6, own_peak_rss_bytes())


def main() -> None:
    """Run one job for each line of standard input, and print one JSON object each time."""
    name = sys.argv[1].removeprefix("sink/")
    servers, batch = sys.argv[2].split(" ", 1)
    spark = session(_KAFKA_PACKAGE if name == PEER else "")
    with writing(name, spark, servers, batch) as write:
        frame = spark.read.parquet(batch)
        for _ in range(warm_up_batches(WARM_UP_BATCHES)):
            write(frame)
        answer(lambda wanted: measure(spark, batch, write, wanted))
    spark.stop()


if __name__ == "__main__":
    main()
