"""The examples of docs/examples that use Spark, run once each in this process.

`tests/examples` runs them as they stand, and kills them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.examples.harness import EXAMPLES
from tests.examples.postgres import stored
from tests.examples.waves import committed, produce_wave, put_wave, sent
from tests.readme import defined_by

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from fanout.testing.kafka.broker import KafkaBroker
    from fanout.testing.kinesis.server import KinesisServer

pytestmark = pytest.mark.spark


@pytest.fixture
def broker(
    start_kafka_broker: Callable[..., KafkaBroker],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> KafkaBroker:
    """A broker that the examples find in the environment."""
    broker = start_kafka_broker()
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", broker.bootstrap_servers)
    monkeypatch.setenv("KAFKA_PROTOCOL", "PLAINTEXT")
    monkeypatch.setenv("CHECKPOINT", str(tmp_path / "checkpoint"))
    return broker


def run_until(name: str, done: Callable[[], bool]) -> None:
    query = defined_by((EXAMPLES / name).read_text())["query"]
    try:
        while not done():
            assert not query.await_termination(0.1)
    finally:
        query.stop()


@pytest.mark.usefixtures("spark")
def test_kafka_to_postgres(
    broker: KafkaBroker, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    broker.create_topic("orders", 2)
    produce_wave(broker, 0)
    run_until("kafka_to_postgres.py", lambda: stored(database_url) == sent(1))


def test_kinesis_to_kafka(
    spark: SparkSession,
    broker: KafkaBroker,
    kinesis_server: KinesisServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Python workers have the environment in which Spark was started, and this.
    monkeypatch.setitem(spark.sparkContext.environment, "KAFKA_PROTOCOL", "PLAINTEXT")
    for name, value in kinesis_server.environment.items():
        monkeypatch.setenv(name, value)
    kinesis_server.create_stream("orders", 2)
    put_wave(kinesis_server, 0)
    broker.create_topic("orders-copy", 2)
    run_until("kinesis_to_kafka.py", lambda: committed(broker, "orders-copy") == sent(1))
