"""A driver whose query reads by two landers, and does what it reads from its input, line by line.

Its arguments: Spark's master, the cores of an executor, the service and its address, and the
directory of the checkpoint and the output. What landers have connected is in its log. More settings
of its session are in its environment, and its host's address.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from pyspark.sql import SparkSession

from fanout.kafka import KafkaSource, Security
from fanout.kafka.cluster import Cluster
from fanout.kinesis import KinesisSource
from fanout.spark import OnExecutors, foreach_batch
from fanout.spark.landers import jobs
from fanout.testing.spark.class_archive import java_options
from fanout.testing.spark.session import small_settings
from tests.support.patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from fanout.core.source import Source

NAME = "orders"
"""The stream, or the topic."""

SETTINGS = "FANOUT_TEST_SETTINGS"

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}

# Of each record: its split, its place there, what its order is kept by, and its number.
_COLUMNS = {
    "kinesis": ("shardId", "sequenceNumber", "partitionKey", "data"),
    "kafka": ("partition", "offset", "partition", "value"),
}


def from_kinesis(address: str) -> KinesisSource:
    return KinesisSource(
        stream=NAME,
        consumer="etl",
        start="TRIM_HORIZON",
        endpoint_url=address,
        region="us-east-1",
        discovery_interval=1.0,
    )


def from_kafka(address: str) -> KafkaSource:
    here = Security(protocol="PLAINTEXT")
    return KafkaSource(cluster=Cluster(address, security=here), topics=NAME, discovery_interval=1.0)


SOURCES: dict[str, Callable[[str], Source]] = {"kinesis": from_kinesis, "kafka": from_kafka}


class Driver:
    """The commands."""

    def __init__(self, spark: SparkSession, service: str, address: str, directory: str) -> None:
        self._spark = spark
        self._columns = _COLUMNS[service]
        self._source = SOURCES[service](address)
        self._directory = Path(directory)

    def start(self) -> None:
        """Start the query."""
        self._query = foreach_batch(
            self._spark,
            self._source,
            self._handle,
            checkpoint_location=str(self._directory / "checkpoint"),
            landing=OnExecutors(landers=2),
        )

    def stop(self) -> tuple[float, str]:
        """Stop the query; return how many seconds it took, and its error."""
        began = time.monotonic()
        self._query.stop()
        return time.monotonic() - began, str(self._query.exception())

    def speculate(self) -> None:
        """Let Spark start a twin of each task that begins from now on and runs for two seconds."""
        java: Any = self._spark.sparkContext._jsc
        java.sc().conf().set("spark.speculation.task.duration.threshold", "2s")

    def _handle(self, df: DataFrame, batch_id: int) -> None:
        """Write a batch to a directory of its own, which replaces that of another try."""
        names = ("split", "position", "key", "number")
        columns = [
            f"CAST({column} AS STRING) AS {name}"
            for column, name in zip(self._columns, names, strict=True)
        ]
        rows = df.selectExpr(*columns, "input_file_name() AS segment")
        rows.write.mode("overwrite").parquet(str(self._directory / "output" / str(batch_id)))


def main(output: TextIO, master: str, cores: str, *job: str) -> None:
    # To wait for jobs in vain takes longer than a test allows; the tasks of a host that is cut off
    # are always waited for in vain.
    jobs._JOBS_END = 1.5 * PATIENCE  # type: ignore[misc]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    os.environ.update(CREDENTIALS)
    spark = (
        SparkSession.builder.master(master)
        .config(map=small_settings())
        .config("spark.driver.host", os.environ["SPARK_LOCAL_IP"])
        .config("spark.driver.bindAddress", os.environ["SPARK_LOCAL_IP"])
        .config(map=json.loads(os.environ[SETTINGS]))
        .config(map={f"spark.executorEnv.{name}": value for name, value in CREDENTIALS.items()})
        .config("spark.driver.memory", "512m")
        .config("spark.executor.memory", "512m")
        .config("spark.executor.cores", cores)
        .config("spark.executor.extraJavaOptions", java_options())
        .getOrCreate()
    )
    driver = Driver(spark, *job)
    driver.start()
    print(json.dumps("started"), file=output, flush=True)
    for line in sys.stdin:
        command: Callable[[], Any] = getattr(driver, line.strip())
        print(json.dumps(command()), file=output, flush=True)
    spark.stop()


if __name__ == "__main__":
    # Spark's JVM prints to the same output.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    main(answers, *sys.argv[1:])
