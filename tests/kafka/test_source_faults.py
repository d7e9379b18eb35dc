from __future__ import annotations

import asyncio
import struct
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

import fanout
from fanout.errors import ServiceError
from fanout.kafka import KafkaSource
from fanout.kafka.cluster import Cluster
from fanout.kafka.partitions import Partition
from tests.support.kafka.brokers import connect, fetch
from tests.support.kafka.topics import PLAINTEXT, eventually, new_topic

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fanout.testing.kafka.broker import KafkaBroker
    from tests.support.kafka.topics import Topic


@pytest.mark.long
@pytest.mark.fault("A broker is killed in the middle of a fetch, and comes back")
@pytest.mark.fault("A leader is elected anew, here or on another broker")
async def test_a_broker_that_is_killed_and_leads_again_loses_and_repeats_nothing(
    mortal_broker: KafkaBroker,
) -> None:
    topic = await new_topic(mortal_broker, partitions=3)
    for partition in range(3):
        topic.put(2_000, partition=partition)
    small = {"max.partition.fetch.bytes": 1024}
    async with topic.reading(group_id="etl", consumer_options=small) as reader:
        await reader.has(1)
        try:
            await asyncio.to_thread(mortal_broker.kill)
            await reader.until(lambda: reader.causes)
        finally:
            await asyncio.to_thread(mortal_broker.restart)
        await reader.has(6_000)
        topic.put(10)
        await reader.has(6_010)
    assert reader.log == topic.log
    # It was elected anew, so what it has taken since is of a later leader epoch.
    assert await epoch(topic, 2_000) > await epoch(topic, 1_999)


@pytest.mark.fault("A broker hangs with its connections open")
async def test_a_broker_that_hangs_is_waited_for(kafka_broker: KafkaBroker) -> None:
    topic = await new_topic(kafka_broker)
    topic.put(10)
    async with topic.reading(consumer_options={"request.timeout.ms": 1000}) as reader:
        await reader.has(10)
        try:
            await asyncio.to_thread(kafka_broker.pause)
            await reader.until(lambda: reader.causes)
        finally:
            await asyncio.to_thread(kafka_broker.resume)
        topic.put(10)
        await reader.has(20)
    assert reader.log == topic.log


@pytest.mark.fault("No broker answers when the stream opens")
async def test_no_broker_is_one_clear_sentence(unused_tcp_port: int) -> None:
    servers = f"127.0.0.1:{unused_tcp_port}"
    cluster = Cluster(servers, security=PLAINTEXT, connect_timeout=0.1)
    source = KafkaSource(cluster=cluster, topics="orders")
    with pytest.raises(ServiceError, match=r"^the cluster cannot be reached: .*127\.0\.0\.1"):
        async with fanout.open(source):
            pass


@pytest.mark.fault("A stream is cancelled or closed anywhere")
async def test_closing_leaves_nothing_behind(kafka_broker: KafkaBroker) -> None:
    topic = await new_topic(kafka_broker, partitions=4)
    topic.put(10)
    async with nothing_left(), topic.open(group_id="etl") as stream:
        await stream.acknowledge(await anext(stream))


@pytest.mark.fault("A stream is cancelled or closed anywhere")
@pytest.mark.long
async def test_cancelling_leaves_nothing_behind_wherever_it_strikes(
    kafka_broker: KafkaBroker,
) -> None:
    topic = await new_topic(kafka_broker, partitions=4)
    topic.put(10)

    async def read() -> None:
        async with topic.open(group_id="etl") as stream:
            async for batch in stream:
                await stream.acknowledge(batch)

    for turns in range(0, 60, 3):
        async with nothing_left():
            task = asyncio.create_task(read())
            for _ in range(turns):
                await asyncio.sleep(0.001)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()


async def epoch(topic: Topic, offset: int) -> int:
    """Return the leader epoch in which the batch with an offset of partition 0 was written."""
    partition = Partition(topic.name, 0)
    async with connect(topic.broker) as transport:
        assert not isinstance((await transport.describe([topic.name]))[topic.name], Exception)
        batches = (await fetch(transport, partition, offset)).batches
    _, _, found = struct.unpack_from(">qii", batches)
    return int(found)


@asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    """Check that the block leaves no task or socket behind."""
    loop: Any = asyncio.get_running_loop()
    sockets = loop._selector.get_map()
    tasks, before = asyncio.all_tasks(), len(sockets)
    yield
    assert not asyncio.all_tasks() - tasks
    # asyncio closes a socket in the next turn of the loop.
    await eventually(lambda: len(sockets) <= before)
