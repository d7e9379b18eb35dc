"""A topic of the real broker on this machine, filled once and read from the page cache."""

from __future__ import annotations

from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, Final

from confluent_kafka import Producer

from fanout.testing.kafka.broker import KafkaBroker

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ("PARTITIONS", "TOPIC", "filled_broker")

TOPIC: Final = "orders"
PARTITIONS: Final = 4

# The default batch size of Java's producer.
_BATCH_BYTES = 16 * 1024
_VALUES = 1000
# Records that wait for the broker at a time.
_IN_FLIGHT = 50_000


@contextmanager
def filled_broker(
    record_bytes: int, records: int, values: Sequence[bytes] | None = None
) -> Iterator[str]:
    """Run a broker that holds a topic.

    Args:
        record_bytes: Bytes of the value of a record on average, some more or less; its key has
            up to nine.
        records: How many there are, over all partitions alike.
        values: Those of the records, one after the other; random bytes if left out.

    Yields:
        The broker's address.
    """
    with KafkaBroker(fast=True) as broker:
        broker.create_topic(TOPIC, PARTITIONS)
        _produce(broker.bootstrap_servers, record_bytes, records, values)
        yield broker.bootstrap_servers


def _produce(servers: str, record_bytes: int, records: int, values: Sequence[bytes] | None) -> None:
    random = Random(record_bytes)  # noqa: S311 - reproducible, not secret
    # No two records of a topic need have the same length.
    values = values or [
        random.randbytes(record_bytes + number % 17 - 8) for number in range(_VALUES)
    ]
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "batch.size": _BATCH_BYTES,
            "linger.ms": 50,
            "queue.buffering.max.messages": 2 * _IN_FLIGHT,
        }
    )
    for number in range(records):
        key = b"user-%d" % random.randrange(10_000)
        producer.produce(TOPIC, values[number % len(values)], key, number % PARTITIONS)
        if number % _IN_FLIGHT == 0:
            producer.flush()
    producer.flush()
