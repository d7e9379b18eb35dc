"""Writers to a broker of tests, and what is read of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fanout.kafka import Cluster, open_writer
from tests.support.kafka.brokers import HERE
from tests.support.kafka.writing import read

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from fanout.kafka import TopicWriter
    from fanout.testing.kafka.broker import KafkaBroker


def writing(
    broker: KafkaBroker, topic: str | None = None, **options: Any
) -> AbstractAsyncContextManager[TopicWriter]:
    """Open a writer; options of the producer go by their names with underscores."""
    named = {"transactional_id", "transaction_timeout", "partitioner"}
    producer = {
        name.replace("_", "."): options.pop(name) for name in [*options] if name not in named
    }
    cluster = Cluster(broker.bootstrap_servers, security=HERE)
    return open_writer(cluster, topic, producer_options=producer, **options)


def rows(*values: bytes | str | None, **columns: Any) -> list[dict[str, Any]]:
    """Return a row for each value; other columns are the same in each."""
    return [{"value": value, **columns} for value in values]


async def values(
    broker: KafkaBroker, topic: str, partitions: int = 1, *, committed: bool = True
) -> list[bytes | None]:
    """Return all values of a topic, in the order of partitions and offsets."""
    found = await read(broker, topic, partitions, committed=committed)
    return [record.value for number in sorted(found) for record in found[number]]
