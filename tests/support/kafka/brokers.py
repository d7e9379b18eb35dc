"""Connections to the real broker, and records on it, for tests."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from threading import Thread
from typing import TYPE_CHECKING, Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from confluent_kafka import Producer

from fanout.kafka.cluster import Cluster
from fanout.kafka.partitions import Partition
from fanout.kafka.protocol.connections import open_connections
from fanout.kafka.reading.client import start_client
from fanout.kafka.reading.consumer_options import ConsumerOptions
from fanout.kafka.reading.transport import Fetched, OffsetSpec, PartitionFetch
from fanout.kafka.security import Security

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from confluent_kafka import ShareConsumer

    from fanout.kafka.reading.transport import KafkaTransport
    from fanout.testing.kafka.broker import KafkaBroker

HERE = Security(protocol="PLAINTEXT")


@asynccontextmanager
async def open_client(
    cluster: Cluster, *, options: ConsumerOptions | None = None, **more: Any
) -> AsyncIterator[KafkaTransport]:
    """Connect to a cluster in one attempt."""
    options = options or ConsumerOptions()
    async with open_connections(cluster, options) as connections:
        yield await start_client(connections, options, **more)


@asynccontextmanager
async def connect(broker: KafkaBroker, **options: Any) -> AsyncIterator[KafkaTransport]:
    """Connect to a broker; consumer options go by their fields."""
    consumer = ConsumerOptions(
        **{name: options.pop(name) for name in list(options) if hasattr(ConsumerOptions, name)}
    )
    async with open_client(
        Cluster(broker.bootstrap_servers, security=HERE), options=consumer, **options
    ) as transport:
        yield transport


async def persist(call: Callable[[], Awaitable[Any]]) -> Any:
    """Make a call until it fails by nothing that is tried again; the broker may still begin."""
    while True:
        try:
            return await call()
        except KafkaError as error:
            if not error.retriable:
                raise
        await asyncio.sleep(0.05)


def leave(consumer: ShareConsumer) -> None:
    """Close a client of librdkafka; once in thousands of times that never returns."""
    closing = Thread(target=consumer.close, daemon=True)
    closing.start()
    closing.join(10)


async def create(broker: KafkaBroker, topic: str, partitions: int = 1) -> Partition:
    """Create a topic that can be read, and return its first partition."""
    await asyncio.to_thread(broker.create_topic, topic, partitions)
    every = {Partition(topic, number): OffsetSpec.LATEST for number in range(partitions)}
    async with connect(broker) as transport:
        await persist(lambda: transport.offsets(every))
    return Partition(topic, 0)


async def produce(
    broker: KafkaBroker, partition: Partition, *values: bytes, stamp: int = 0
) -> None:
    """Write values, with a timestamp in milliseconds where there is one."""

    def write() -> None:
        servers = broker.bootstrap_servers
        producer = Producer({"bootstrap.servers": servers})
        for value in values:
            producer.produce(partition.topic, value, partition=partition.number, timestamp=stamp)
        assert producer.flush(30) == 0

    await asyncio.to_thread(write)


async def produce_batch(
    broker: KafkaBroker, partition: Partition, *values: bytes, codec: str
) -> None:
    """Write values as one batch."""
    # librdkafka may cut what it is given into several batches; this producer takes a whole one.
    producer = AIOKafkaProducer(
        bootstrap_servers=broker.bootstrap_servers,
        compression_type=None if codec == "none" else codec,
    )
    await producer.start()
    try:
        batch = producer.create_batch()
        for value in values:
            batch.append(key=None, value=value, timestamp=None)
        written = await producer.send_batch(batch, partition.topic, partition=partition.number)
        await written
    finally:
        await producer.stop()


async def fetch(
    transport: KafkaTransport,
    partition: Partition,
    offset: int,
    *,
    max_wait: float = 0.01,
    max_bytes: int = 1 << 20,
) -> Fetched:
    """Fetch one partition from its leader, and expect records or none."""
    leader = transport.leader(partition)
    assert leader is not None
    wanted = {partition: PartitionFetch(offset, max_bytes)}
    (answer,) = (await transport.fetch(leader, wanted, max_wait=max_wait)).values()
    assert isinstance(answer, Fetched), answer
    return answer
