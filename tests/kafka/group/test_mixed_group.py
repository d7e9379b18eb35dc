"""A group on three nodes with members of fanout, of Java's client and of librdkafka."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaException

import fanout
from fanout.kafka import Cluster, ConsumerGroup, KafkaSource
from fanout.spark.hadoop.session_checks import require_java
from fanout.testing.kafka.cluster import KafkaCluster
from fanout.testing.kafka.jars import kafka_jars
from tests.kafka.group.processes import Process, running, until
from tests.support.groups import KAFKA_CLUSTERS
from tests.support.kafka.brokers import HERE
from tests.support.kafka.topics import Topic, seeded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = [KAFKA_CLUSTERS, pytest.mark.long, pytest.mark.timeout(300)]

PARTITIONS = 12
READER = Path(__file__).parent / "GroupReader.java"
Got = list[tuple[str, int]]


@pytest.fixture(scope="module")
def cluster(_kafka_jars: None) -> Iterator[KafkaCluster]:
    settings = {
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        # One node coordinates all groups.
        "offsets.topic.num.partitions": "1",
    }
    with KafkaCluster(settings=settings) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def java(_kafka_jars: None) -> tuple[str, ...]:
    """The command of a reader in Java, without its arguments."""
    return str(require_java()), "-cp", f"{kafka_jars()}/libs/*", str(READER)


class Log:
    """What the members of a group have got, in the order in which each of them got it."""

    def __init__(self, cluster: KafkaCluster, topic: str) -> None:
        self.topic = Topic(cluster, partitions=PARTITIONS, name=topic)  # type: ignore[arg-type]
        self.group = f"{topic}-group"
        self.ours: dict[str, Got] = {}
        self.theirs: Got = []
        self.java: Process | None = None

    @property
    def members(self) -> list[Got]:
        return [*self.ours.values(), self.theirs, [] if self.java is None else self.java.got]

    @property
    def count(self) -> int:
        return sum(map(len, self.members))

    async def put(self, count: int = 10) -> None:
        for partition in range(PARTITIONS):
            await asyncio.to_thread(self.topic.put, count, partition=partition)

    async def is_read(self) -> None:
        await until(lambda: self.count >= self.topic.written)

    def check(self) -> None:
        """Each record came once, and to each member in the order of its partition."""
        written = {
            (f"{self.topic.name}-{number}", offset)
            for number, rows in self.topic.log.items()
            for offset, _ in rows
        }
        assert sorted(itertools.chain.from_iterable(self.members)) == sorted(written)
        for got in self.members:
            for split in {split for split, _ in got}:
                offsets = [offset for of, offset in got if of == split]
                assert offsets == sorted(offsets)


@asynccontextmanager
async def fanout_member(log: Log, name: str) -> AsyncIterator[fanout.FanOut]:
    cluster = Cluster(log.topic.broker.bootstrap_servers, security=HERE)
    source = KafkaSource(cluster=cluster, topics=log.topic.name)
    got = log.ours.setdefault(name, [])
    group = ConsumerGroup(group_id=log.group)
    async with fanout.open(source, group=group, random=seeded()) as stream:

        async def run() -> None:
            async for batch in stream:
                got.extend((batch.split.id, at) for at in batch.records["offset"].to_pylist())
                await stream.acknowledge(batch)

        task = asyncio.create_task(run())
        try:
            yield stream
        finally:
            stream.stop()
            await task


@asynccontextmanager
async def librdkafka_member(log: Log) -> AsyncIterator[Consumer]:
    options = {
        "bootstrap.servers": log.topic.broker.bootstrap_servers,
        "group.id": log.group,
        "group.protocol": "consumer",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "log_level": 0,
        "error_cb": lambda _: None,
    }
    consumer, ends = Consumer(options), asyncio.Event()
    consumer.subscribe([log.topic.name])

    async def commit(message: Any) -> None:
        while not ends.is_set():  # the coordinator may be on its way
            with suppress(KafkaException):
                await asyncio.to_thread(consumer.commit, message=message, asynchronous=False)
                return
            await asyncio.sleep(0.2)

    async def run() -> None:
        while not ends.is_set():
            message: Any = await asyncio.to_thread(consumer.poll, 0.1)
            if message is not None and message.error() is None:
                log.theirs.append((f"{log.topic.name}-{message.partition()}", message.offset()))
                await commit(message)
        await asyncio.to_thread(consumer.close)

    task = asyncio.create_task(run())
    try:
        yield consumer
    finally:
        ends.set()
        await task


async def test_members_of_three_clients_read_each_record_once_while_their_coordinator_moves(
    cluster: KafkaCluster, java: tuple[str, ...]
) -> None:
    log = await asyncio.to_thread(Log, cluster, "mixed")
    reader = running(*java, cluster.bootstrap_servers, log.topic.name, log.group)
    await log.put()
    async with fanout_member(log, "first") as first, librdkafka_member(log) as theirs:
        await until(lambda: len(first.statistics().splits) == len(theirs.assignment()) == 6)
        async with reader as log.java, fanout_member(log, "second") as second:
            ours = (first, second)
            await until(lambda: all(len(one.statistics().splits) == 3 for one in ours))
            await log.put()
            await log.is_read()
            had = [{*one.statistics().splits} for one in ours]
            coordinator = (await asyncio.to_thread(cluster.leaders, "__consumer_offsets"))[0]
            await asyncio.to_thread(cluster.kill, coordinator)
            await log.put()
            await log.is_read()
            await asyncio.to_thread(cluster.start, coordinator)
            # Nobody has lost a partition.
            assert [{*one.statistics().splits} for one in ours] == had
            assert len(log.java.got) > 2 * PARTITIONS
            await log.java.end()
            await until(lambda: len(theirs.assignment()) == 4)
            await log.put()
            await log.is_read()
        await until(lambda: len(first.statistics().splits) == PARTITIONS // 2)
        await log.put()
        await log.is_read()
        lost = [one.statistics().membership for one in ours]
        assert [each.lost for each in lost if each is not None] == [0, 0]
    log.check()
