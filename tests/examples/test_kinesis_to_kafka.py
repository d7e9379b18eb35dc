"""docs/examples/kinesis_to_kafka.py: run as it stands, and killed at each step of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.examples.doomed import Kill
from tests.examples.harness import AFTER_HANDLER, IN_HANDLER, Example
from tests.examples.waves import committed, put_wave, sent

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fanout.testing.kafka.broker import KafkaBroker
    from fanout.testing.kinesis.server import KinesisServer

pytestmark = [pytest.mark.prove, pytest.mark.timeout(600)]

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
    kinesis_server.create_stream("orders", 2)
    broker = start_kafka_broker()
    broker.create_topic("orders-copy", 2)
    environment = {
        "KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap_servers,
        "KAFKA_PROTOCOL": "PLAINTEXT",
        **kinesis_server.environment,
    }
    example = Example("kinesis_to_kafka.py", tmp_path, environment)
    for number, kill in enumerate(KILLS):
        put_wave(kinesis_server, number)
        example.run_and_kill(kill)
    put_wave(kinesis_server, len(KILLS))
    last = sent(len(KILLS) + 1)[-1]
    example.run_until(lambda: last in committed(broker, "orders-copy"))
    assert committed(broker, "orders-copy") == sent(len(KILLS) + 1)
