"""docs/examples/kafka_to_postgres.py: run as it stands, and killed once.

The crash campaign kills jobs with this sink at each step of a batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.examples.harness import Example
from tests.examples.waves import last_of_each_key, produce_wave, sent
from tests.support.doomed import Kill

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fanout.testing.kafka.broker import KafkaBroker

pytestmark = [pytest.mark.prove, pytest.mark.timeout(1200)]

# The rows are committed, and Spark does not know it.
KILL = Kill("fanout.spark.sinks.tables.postgres_sink:PostgresSink._take_over", "after")


def stored(url: str) -> list[bytes]:
    """Return the data of all orders in the database, in order."""
    with psycopg.connect(url) as database:
        rows = database.execute("SELECT data FROM orders").fetchall()
    return sorted(data.encode() for (data,) in rows)


@pytest.mark.fault("A job that writes to a table is killed at each step of a batch")
def test_a_kill_loses_and_repeats_nothing(
    start_kafka_broker: Callable[..., KafkaBroker], database_url: str, tmp_path: Path
) -> None:
    broker = start_kafka_broker()
    broker.create_topic("orders", 2)
    with psycopg.connect(database_url) as database:
        database.execute("CREATE TABLE orders (customer text, data text)")
    environment = {
        "KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap_servers,
        "KAFKA_PROTOCOL": "PLAINTEXT",
        "DATABASE_URL": database_url,
    }
    example = Example("kafka_to_postgres.py", tmp_path, environment)
    produce_wave(broker, 0)
    example.run_and_kill(KILL)
    produce_wave(broker, 1)
    newest = last_of_each_key(2)
    example.run_until(lambda: newest.issubset(stored(database_url)))
    assert stored(database_url) == sent(2)
    with psycopg.connect(database_url) as database:
        tables = database.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        assert {name for (name,) in tables} == {"orders", "fanout_batches"}
