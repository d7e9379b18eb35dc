"""Rows for tests of writing, and readers of what was written."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from fanout.kafka.cluster import Cluster
from fanout.kafka.writing.producer_id import Idempotent
from fanout.kafka.writing.write_options import ProducerOptions
from fanout.kafka.writing.writer import open_writer
from tests.support.kafka.brokers import HERE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    from fanout.kafka.writing.writer import KafkaWriter
    from fanout.testing.kafka.broker import KafkaBroker

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
STAMP = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True)
class Found:
    """A record as a reader sees it; its timestamp is in milliseconds."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...]


def records(
    topic: str, values: Iterable[bytes | None], partition: int | Iterable[int] = 0, **columns: Any
) -> pa.RecordBatch:
    """Return rows with these values; other columns as lists, or arrays."""
    value = pa.array(list(values), pa.binary())
    numbers = [partition] * len(value) if isinstance(partition, int) else list(partition)
    kinds = {"key": pa.binary(), "headers": HEADERS, "timestamp": STAMP}
    arrays = {
        "topic": pa.array([topic] * len(value), pa.string()),
        "partition": pa.array(numbers, pa.int32()),
        "value": value,
        **{
            name: column if isinstance(column, pa.Array) else pa.array(column, kinds[name])
            for name, column in columns.items()
        },
    }
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


@asynccontextmanager
async def writing(
    broker: KafkaBroker, mode: Any = None, **options: Any
) -> AsyncIterator[KafkaWriter]:
    """Open a writer; producer options go by their fields."""
    async with open_writer(
        Cluster(broker.bootstrap_servers, security=HERE),
        mode=mode or Idempotent(),
        options=ProducerOptions(**options),
    ) as writer:
        yield writer


async def read(
    broker: KafkaBroker, topic: str, partitions: int = 1, *, committed: bool = True
) -> Mapping[int, list[Found]]:
    """Return all records of a topic, by partition, in the order of their offsets."""

    def consume() -> Mapping[int, list[Found]]:
        consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": "reader",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.message.max.bytes": 64 << 20,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
            }
        )
        consumer.assign([TopicPartition(topic, n, OFFSET_BEGINNING) for n in range(partitions)])
        found: defaultdict[int, list[Found]] = defaultdict(list)
        ended: set[int | None] = set()
        while len(ended) < partitions:
            message = consumer.poll(30.0)
            assert message is not None, "the broker does not answer"
            number, error = message.partition(), message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended.add(number)
                continue
            headers: Any = tuple(message.headers() or ())
            assert number is not None
            found[number].append(
                Found(message.key(), message.value(), message.timestamp()[1], headers)
            )
        consumer.close()
        return found

    return await asyncio.to_thread(consume)


async def values(broker: KafkaBroker, topic: str, **how: Any) -> list[bytes | None]:
    """Return the values in the first partition of a topic."""
    return [found.value for found in (await read(broker, topic, **how))[0]]
