"""A driver that is signalled: it copies a topic of Kafka, in the way that its scenario says.

Its arguments: the scenario, the broker, the topic to read, where to write and the checkpoint.
Where it writes is a file, to which the handler appends without looking at batch ids, or a topic.
It prints a line where the signal is to come.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

import fanout.spark.query.signals
import fanout.spark.query.start_query
from fanout.kafka import Cluster, KafkaSource, Security
from fanout.spark import KafkaSink, foreach_batch, stop_on_signal
from fanout.spark.sinks.kafka.job import SinkJob
from fanout.testing.spark.session import jvm_pid, small_settings
from tests.spark.doomed_share_driver import share

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from fanout.spark.query.batch_runner import Handler


def ready(spark: SparkSession | None = None) -> None:
    """Say that the signal may come."""
    pid = None if spark is None else jvm_pid(spark)
    sys.stdout.write(json.dumps({"jvm": pid}) + "\n")
    sys.stdout.flush()


def await_stop() -> None:
    """Wait until the signal has come."""
    while (watch := fanout.spark.query.signals._current) is not None and not watch._stopping:
        time.sleep(0.01)


def append(target: str, df: DataFrame) -> None:
    """Append the offsets of a batch."""
    rows = sorted((row.partition, row.offset) for row in df.select("partition", "offset").collect())
    with Path(target).open("a", encoding="utf-8") as file:
        file.writelines(f"{partition}:{offset}\n" for partition, offset in rows)


def hold(kind: Any, name: str) -> None:
    """Let a function say that the signal may come, and wait for it."""
    original = getattr(kind, name)

    def held(*arguments: Any) -> Any:
        ready()
        await_stop()
        return original(*arguments)

    setattr(kind, name, held)


def handler(scenario: str, target: str) -> Handler:
    """Return what handles a batch."""

    def handle(df: DataFrame, _: int) -> None:
        if scenario in {"in-handler", "stuck", "twice"}:
            ready(df.sparkSession)
            await_stop()
        if scenario in {"stuck", "twice"}:
            threading.Event().wait()
        append(target, df)

    return handle


def sink(broker: str, topic: str) -> KafkaSink:
    remote = Cluster(broker, security=lambda: Security(protocol="PLAINTEXT"))
    return KafkaSink(cluster=remote, topic=topic, transform=lambda df: df.select("key", "value"))


def session() -> SparkSession:
    return (
        SparkSession.builder.master("local[2]")
        .config(map=small_settings())
        .config("spark.driver.memory", "512m")
        .getOrCreate()
    )


def main(scenario: str, broker: str, topic: str, target: str, checkpoint: str) -> None:
    cluster = Cluster(broker, security=Security(protocol="PLAINTEXT"))
    source = share if scenario == "share" else lambda *_: KafkaSource(cluster=cluster, topics=topic)
    to_topic = scenario in {"in-transaction", "to-topic"}
    if scenario == "in-transaction":
        hold(SinkJob, "run")
    if scenario == "starting":
        hold(fanout.spark.query.start_query, "claim")
    with stop_on_signal(timeout=2.0 if scenario == "stuck" else 60.0):
        if scenario == "before-session":
            ready()
        spark = session()
        query = foreach_batch(
            spark,
            source(broker, topic),
            sink(broker, target) if to_topic else handler(scenario, target),
            checkpoint_location=checkpoint,
            available_now=scenario in {"to-file", "to-topic"},
        )
        if scenario in {"between-batches", "share"}:
            while query.progress().batches == 0:
                time.sleep(0.01)
            ready(spark)
        query.await_termination()
    spark.stop()


if __name__ == "__main__":
    logging.basicConfig(format="%(name)s: %(message)s", level=logging.WARNING)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    main(*sys.argv[1:])
