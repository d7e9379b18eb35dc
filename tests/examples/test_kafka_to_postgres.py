"""docs/examples/kafka_to_postgres.py: run as it stands, and killed at each step of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.examples.doomed import Kill
from tests.examples.harness import AFTER_HANDLER, IN_HANDLER, Example
from tests.examples.waves import last_of_each_key, produce_wave, sent

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fanout.testing.kafka.broker import KafkaBroker

pytestmark = [pytest.mark.prove, pytest.mark.timeout(1200)]

COMMIT = "psycopg:Connection.commit"
# Each run but the first repeats a batch, and is killed in the one after it. The first commit of a
# run is that of its tables.
KILLS = (
    Kill(IN_HANDLER, "in job"),  # in a transaction with the id and some rows of the batch
    Kill(COMMIT, "before", call=3),  # in one with all of its rows
    Kill(COMMIT, "after", call=3),
    Kill(AFTER_HANDLER, "after", call=2),
)


def stored(url: str) -> list[bytes]:
    """Return the data of all orders in the database, in order."""
    with psycopg.connect(url) as database:
        try:
            rows = database.execute("SELECT data FROM orders").fetchall()
        except psycopg.errors.UndefinedTable:
            return []
    return sorted(data.encode() for (data,) in rows)


def test_kills_lose_and_repeat_nothing(
    start_kafka_broker: Callable[..., KafkaBroker], database_url: str, tmp_path: Path
) -> None:
    broker = start_kafka_broker()
    broker.create_topic("orders", 2)
    environment = {
        "KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap_servers,
        "KAFKA_PROTOCOL": "PLAINTEXT",
        "DATABASE_URL": database_url,
    }
    example = Example("kafka_to_postgres.py", tmp_path, environment)
    for number, kill in enumerate(KILLS):
        produce_wave(broker, number)
        example.run_and_kill(kill)
    produce_wave(broker, len(KILLS))
    newest = last_of_each_key(len(KILLS) + 1)
    example.run_until(lambda: newest.issubset(stored(database_url)))
    assert stored(database_url) == sent(len(KILLS) + 1)
