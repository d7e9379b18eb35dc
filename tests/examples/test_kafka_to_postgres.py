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

SINK = "fanout.spark.tables.postgres_sink:PostgresSink"
# Each run but the first repeats a batch, and is killed in the one after it.
KILLS = (
    Kill(IN_HANDLER, "in job"),  # in a task that copies rows
    Kill(f"{SINK}._copy", "after", call=2),  # all rows are in tables of the tasks
    Kill("adbc_driver_manager.dbapi:Cursor.fetchone", "after", call=4),  # in the transaction
    Kill(f"{SINK}._take_over", "after", call=2),  # it is committed
    Kill(AFTER_HANDLER, "after", call=2),
)


def stored(url: str) -> list[bytes]:
    """Return the data of all orders in the database, in order."""
    with psycopg.connect(url) as database:
        rows = database.execute("SELECT data FROM orders").fetchall()
    return sorted(data.encode() for (data,) in rows)


def test_kills_lose_and_repeat_nothing(
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
    for number, kill in enumerate(KILLS):
        produce_wave(broker, number)
        example.run_and_kill(kill)
    produce_wave(broker, len(KILLS))
    newest = last_of_each_key(len(KILLS) + 1)
    example.run_until(lambda: newest.issubset(stored(database_url)))
    assert stored(database_url) == sent(len(KILLS) + 1)
    with psycopg.connect(database_url) as database:
        tables = database.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        assert {name for (name,) in tables} == {"orders", "fanout_batches"}
