"""A driver that waits to be killed: three queries, each held at another moment of a batch.

Its arguments: what it reads from, the address of that, and the directory of the checkpoints.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import aioboto3
from pyspark.sql import SparkSession

from fanout.kafka import KafkaSource, Security
from fanout.kafka.cluster import Cluster
from fanout.kinesis import KinesisSource
from fanout.landing.log.ledger import BatchLedger
from fanout.spark import foreach_batch
from fanout.spark.query.batch_runner import BatchRunner
from fanout.testing.spark.class_archive import java_options

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pyspark.sql import DataFrame

    from fanout.core.source import Source

ROOT = Path(__file__).parents[2]
MOMENTS = ("before-entry", "after-entry", "in-handler")


def from_kafka(address: str, moment: str) -> KafkaSource:
    here = Security(protocol="PLAINTEXT")
    return KafkaSource(cluster=Cluster(address, security=here), topics=moment)


def from_kinesis(address: str, moment: str) -> KinesisSource:
    return KinesisSource(
        stream=moment,
        consumer="etl",
        start="TRIM_HORIZON",
        endpoint_url=address,
        region="us-east-1",
        session=aioboto3.Session(aws_access_key_id="testing", aws_secret_access_key="testing"),
    )


SOURCES: dict[str, Callable[[str, str], Source]] = {"kafka": from_kafka, "kinesis": from_kinesis}


def run_and_kill(*arguments: str, module: str = "tests.spark.doomed_driver") -> None:
    """Run a driver until each of its queries is held, and kill it."""
    driver = subprocess.Popen(  # noqa: S603 - our own interpreter and module
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with driver:
        try:
            assert driver.stdout is not None
            assert driver.stdout.readline() == "held\n"
        finally:
            driver.kill()  # also where the test is over its time: leaving the block waits for it


def small_session() -> SparkSession:
    """Start a session of a driver that does little."""
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.extraJavaOptions", java_options())
        .getOrCreate()
    )


def main(service: str, address: str, directory: Path) -> None:
    held = threading.Semaphore(0)

    def hold() -> None:
        held.release()
        threading.Event().wait()

    def hold_before(kind: type, method: str, moment: str) -> None:
        original: Callable[..., Any] = getattr(kind, method)

        def wrapper(self: Any, *arguments: Any) -> Any:
            if Path(self._storage.location).parent.name == moment:
                hold()
            return original(self, *arguments)

        setattr(kind, method, wrapper)

    def handler(df: DataFrame, _: int) -> None:
        # Some of the work is done when the end comes.
        df.write.mode("overwrite").parquet(str(directory / "half-done"))
        hold()

    hold_before(BatchLedger, "write", "before-entry")
    hold_before(BatchRunner, "_handle", "after-entry")
    spark = small_session()
    for moment in MOMENTS:
        foreach_batch(
            spark,
            SOURCES[service](address, moment),
            handler,
            checkpoint_location=str(directory / moment),
            max_records=20,
        )
    for _ in MOMENTS:
        held.acquire()
    sys.stdout.write("held\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
