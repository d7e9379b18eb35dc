"""A job that reads, and writes exactly once, on three nodes while they fail."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

import fanout
from fanout.kafka import Cluster, KafkaSource, Security, open_writer
from fanout.testing.kafka.cluster import KafkaCluster
from tests.support.groups import KAFKA_CLUSTERS
from tests.support.kafka.leaders import move_leaders
from tests.support.kafka.transacting import reported

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

pytestmark = [KAFKA_CLUSTERS, pytest.mark.long, pytest.mark.timeout(300)]

PARTITIONS, KEYS = 6, 12
# A dead node is missed after this many seconds.
SESSION = 3.0
# Longer than a request may take (`request.timeout.ms`).
HANGS = 35.0


@pytest.fixture(scope="module")
def cluster(_kafka_jars: None) -> Iterator[KafkaCluster]:
    settings = {
        "broker.session.timeout.ms": f"{SESSION * 1000:.0f}",
        "broker.heartbeat.interval.ms": "500",
        "replica.lag.time.max.ms": "10000",
        # One node coordinates all transactions.
        "transaction.state.log.num.partitions": "1",
        # A leader asks the coordinator whether a transaction is open before it takes the records
        # (KIP-890). While that node hangs, it keeps the writer waiting for this long.
        "request.timeout.ms": "10000",
    }
    with KafkaCluster(settings=settings) as cluster:
        yield cluster


class Load:
    """Records that a producer of confluent-kafka puts, numbered by key, until it is told to end."""

    def __init__(self, cluster: KafkaCluster, topic: str) -> None:
        self.confirmed: dict[str, int] = defaultdict(int)
        self._topic = topic
        options = {"acks": "all", "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        servers = {"bootstrap.servers": cluster.bootstrap_servers, "error_cb": lambda _: None}
        self._producer = Producer(options | servers)
        self._ends = False

    async def run(self) -> None:
        number = 0
        while not self._ends:
            for key in range(KEYS):
                body = json.dumps({"key": f"{key}", "number": number})
                self._producer.produce(self._topic, body, f"{key}", on_delivery=self._confirm)
            self._producer.poll(0)
            number += 1
            await asyncio.sleep(0.05)
        assert await asyncio.to_thread(self._producer.flush, 60) == 0

    def end(self) -> None:
        self._ends = True

    def _confirm(self, error: KafkaError | None, message: object) -> None:
        assert error is None
        self.confirmed[message.key().decode()] += 1  # type: ignore[attr-defined]


async def copy(cluster: KafkaCluster, source: str, target: str, load: Load) -> float:
    """Copy all records of a topic exactly once; return the longest time without a commit."""
    kafka = Cluster(cluster.bootstrap_servers, security=Security(protocol="PLAINTEXT"))
    reads = KafkaSource(cluster=kafka, topics=source)
    clock, copied, longest = asyncio.get_running_loop().time, 0, 0.0
    put: int | None = None
    loading = asyncio.create_task(load.run())
    async with open_writer(kafka, target, transactional_id=target) as writer:
        resume = await writer.positions(reads)
        async with fanout.open(reads, resume=resume) as stream:
            last = clock()
            while put is None or copied < put:
                if loading.done() and put is None:
                    put = await asyncio.to_thread(count, cluster, source)
                drained = await stream.drain(max_wait=0.2, first_wait=1.0)
                for batch in drained.batches:
                    await writer.write(batch.records.select(["key", "value"]))
                await writer.commit(drained)
                copied += drained.num_records
                longest, last = max(longest, clock() - last), clock()
    await loading
    return longest


def consumer_of(cluster: KafkaCluster) -> Consumer:
    """Return another client than ours, which reads what is committed."""
    options = {"group.id": "count", "isolation.level": "read_committed", "log_level": 0}
    servers = {"bootstrap.servers": cluster.bootstrap_servers, "enable.partition.eof": True}
    return Consumer(options | servers)


def count(cluster: KafkaCluster, topic: str) -> int:
    """Count the records of a topic that nobody has written to in transactions."""
    consumer = consumer_of(cluster)
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    found = sum(consumer.get_watermark_offsets(each, 30.0)[1] for each in partitions)
    consumer.close()
    return found


def read(cluster: KafkaCluster, topic: str) -> dict[str, list[int]]:
    """Read what is committed: the numbers of each key in order."""
    consumer = consumer_of(cluster)
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    found: dict[str, list[int]] = defaultdict(list)
    ended: set[int | None] = set()
    while len(ended) < PARTITIONS:
        for message in consumer.consume(1000, 1.0):
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF
                ended.add(message.partition())
                continue
            record = json.loads(message.value() or b"")
            found[record["key"]].append(record["number"])
    consumer.close()
    return found


async def kill(cluster: KafkaCluster) -> None:
    await asyncio.to_thread(cluster.kill, 1)
    await asyncio.to_thread(cluster.start, 1)


async def hang(cluster: KafkaCluster) -> None:
    leaders = await asyncio.to_thread(cluster.leaders, "__transaction_state")
    await asyncio.to_thread(cluster.pause, leaders[0])
    await asyncio.sleep(HANGS)
    await asyncio.to_thread(cluster.resume, leaders[0])


async def roll(cluster: KafkaCluster) -> None:
    for node in (1, 2, 3):
        await asyncio.to_thread(cluster.stop, node)
        await asyncio.to_thread(cluster.start, node)


async def move(cluster: KafkaCluster) -> None:
    for _ in range(3):
        await asyncio.to_thread(move_leaders, cluster)
        await asyncio.sleep(1)


async def throttle(cluster: KafkaCluster) -> None:
    quotas = {"consumer_byte_rate": 3000.0, "producer_byte_rate": 3000.0}
    await asyncio.to_thread(cluster.set_quotas, **quotas)
    await asyncio.sleep(5)
    await asyncio.to_thread(cluster.set_quotas, **dict.fromkeys(quotas))


async def lose_two(cluster: KafkaCluster) -> None:
    """Two of three nodes die: nothing can be written until they are back."""
    for node in (2, 3):
        await asyncio.to_thread(cluster.kill, node)
    await asyncio.sleep(2 * SESSION)
    await asyncio.to_thread(cluster.start)


@pytest.mark.parametrize("fault", [kill, hang, roll, move, throttle, lose_two])
async def test_nothing_is_lost_repeated_or_out_of_order(
    cluster: KafkaCluster, fault: Callable[[KafkaCluster], Awaitable[None]]
) -> None:
    topic = fault.__name__
    for name in (topic, f"{topic}-copy"):
        await asyncio.to_thread(cluster.create_topic, name, PARTITIONS)
    load = Load(cluster, topic)
    copying = asyncio.create_task(copy(cluster, topic, f"{topic}-copy", load))
    await asyncio.sleep(3)
    began = asyncio.get_running_loop().time()
    await fault(cluster)
    lasted = asyncio.get_running_loop().time() - began
    await asyncio.sleep(3)
    load.end()
    longest = await copying
    # A commit is answered before all partitions have its marker.
    await reported(cluster, f"{topic}-copy")
    # The job goes on while a node hangs that coordinated its transactions. Where too few nodes run,
    # it waits until they are back.
    assert longest < (HANGS + lasted if fault is lose_two else HANGS)
    put = await asyncio.to_thread(read, cluster, topic)
    for key, confirmed in load.confirmed.items():
        # librdkafka may put a record twice when leaders change
        # (https://github.com/confluentinc/librdkafka/issues/4953).
        assert [*dict.fromkeys(put[key])] == [*range(confirmed)], f"put of key {key}"
    copied = await asyncio.to_thread(read, cluster, f"{topic}-copy")
    assert set(copied) == set(put)
    for key, numbers in put.items():
        assert copied[key] == numbers, f"copied of key {key}"
    assert sum(load.confirmed.values()) > 500
