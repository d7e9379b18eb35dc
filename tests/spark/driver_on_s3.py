"""A driver with its checkpoint on s3a: it copies a stream of the embedded Kinesis into Parquet.

Its arguments: the address of Kinesis, the endpoint of S3, the name of the stream and checkpoint,
the output, whether it ends when it has read everything ("once") or goes on ("on"), and settings of
s3a, as NAME=VALUE. It prints the error that it ends with, if any, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import fanout.spark.query.query
from fanout.errors import FanOutError
from fanout.spark import foreach_batch, stop_on_signal
from fanout.testing.s3_clients import BUCKET, s3a_settings
from fanout.testing.spark.session import small_settings
from tests.jars.fetch import s3a_set, spark_jars
from tests.spark.doomed_driver import from_kinesis

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from fanout.spark.query.batch_runner import Handler

MAX_RECORDS = 20


def checkpoint(name: str) -> str:
    """Return where the checkpoint is."""
    return f"s3a://{BUCKET}/{name}"


def into_file(output: Path) -> Handler:
    """Return a handler that replaces the file of a batch in one step."""

    def handle(df: DataFrame, batch_id: int) -> None:
        # Two drivers may handle a batch at once: the older one does not know yet that it is old.
        half_done = output / f"_{os.getpid()}"
        pq.write_table(df.toArrow(), half_done)
        half_done.replace(output / f"{batch_id:06}.parquet")

    return handle


def session(s3a: dict[str, str], master: str = "local[2]") -> SparkSession:
    """Start a session with s3a."""
    settings = small_settings()
    # Users have Spark's own way to write a checkpoint.
    del settings["spark.sql.streaming.checkpointFileManagerClass"]
    on_s3 = {f"spark.hadoop.{name}": value for name, value in s3a.items()}
    return (
        SparkSession.builder.master(master)
        .config(map=settings | on_s3)
        .config("spark.jars", spark_jars(s3a_set()))
        .config("spark.driver.memory", "512m")
        .getOrCreate()
    )


def main(kinesis: str, s3: str, name: str, output: str, until: str, *settings: str) -> None:
    spark = session(s3a_settings(s3) | dict(setting.split("=") for setting in settings))
    # Between two looks a driver does not know that it was overtaken.
    fanout.spark.query.query._CLAIM_LOOK = 3600.0
    try:
        with stop_on_signal():
            foreach_batch(
                spark,
                from_kinesis(kinesis, name),
                into_file(Path(output)),
                checkpoint_location=checkpoint(name),
                max_records=MAX_RECORDS,
                available_now=until == "once",
            ).await_termination()
    except FanOutError as error:
        sys.stdout.write(json.dumps([type(error).__name__, str(error)]) + "\n")


if __name__ == "__main__":
    os.environ["PYSPARK_PYTHON"] = sys.executable
    main(*sys.argv[1:])
