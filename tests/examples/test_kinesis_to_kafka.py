"""docs/examples/kinesis_to_kafka.py: run as it stands, and killed at each step of a batch.

Once its checkpoint is on the local disk, and once on S3: moto's server, with Hadoop's own S3A.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fanout.testing.s3_clients import BUCKET
from fanout.testing.s3_server import serve_s3
from tests.examples.harness import AFTER_HANDLER, IN_HANDLER, Example
from tests.examples.waves import committed, last_of_each_key, put_wave, sent
from tests.jars.fetch import s3a_set, spark_jars
from tests.support.doomed import Kill

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from fanout.testing.kafka.broker import KafkaBroker
    from fanout.testing.kinesis.server import KinesisServer

pytestmark = [pytest.mark.prove, pytest.mark.timeout(1200)]

TRANSACTIONS = "fanout.kafka.transactions.transactions:Transactions"
# Each run but the first repeats a batch, and is killed in the one after it.
KILLS = (
    Kill(IN_HANDLER, "in job"),
    Kill(f"{TRANSACTIONS}.mark", "before", call=2),  # all is written in an open transaction
    Kill(f"{TRANSACTIONS}.commit", "before", call=2),  # that the checkpoint has as written
    Kill(AFTER_HANDLER, "after", call=2),
)


def test_kills_lose_and_repeat_nothing(
    kinesis_server: KinesisServer, start_kafka_broker: Callable[..., KafkaBroker], tmp_path: Path
) -> None:
    kill_and_compare(kinesis_server, start_kafka_broker(), tmp_path)


def test_kills_lose_and_repeat_nothing_with_a_checkpoint_on_s3(
    kinesis_server: KinesisServer, start_kafka_broker: Callable[..., KafkaBroker], tmp_path: Path
) -> None:
    with serve_s3() as endpoint:
        settings = {
            "spark.jars": spark_jars(s3a_set()),
            "spark.hadoop.fs.s3a.endpoint": endpoint,
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            "spark.hadoop.fs.s3a.path.style.access": "true",
        }
        checkpoint = {"CHECKPOINT": f"s3a://{BUCKET}/_chk/orders"}
        kill_and_compare(kinesis_server, start_kafka_broker(), tmp_path, checkpoint, settings)
    assert not (tmp_path / "checkpoint").exists()


def kill_and_compare(
    kinesis: KinesisServer,
    broker: KafkaBroker,
    directory: Path,
    checkpoint: Mapping[str, str] | None = None,
    settings: Mapping[str, str] | None = None,
) -> None:
    kinesis.create_stream("orders", 2)
    broker.create_topic("orders-copy", 2)
    environment = {
        "KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap_servers,
        "KAFKA_PROTOCOL": "PLAINTEXT",
        **kinesis.environment,
        **(checkpoint or {}),
    }
    example = Example("kinesis_to_kafka.py", directory, environment, settings)
    for number, kill in enumerate(KILLS):
        put_wave(kinesis, number)
        example.run_and_kill(kill)
    put_wave(kinesis, len(KILLS))
    newest = last_of_each_key(len(KILLS) + 1)
    example.run_until(lambda: newest.issubset(committed(broker, "orders-copy")))
    assert committed(broker, "orders-copy") == sent(len(KILLS) + 1)
