"""Records that brokers lose by an unclean leader election are reported, on three nodes."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

import fanout
from fanout.kafka import Cluster, ConsumerGroup, KafkaSource, Security, open_writer
from fanout.testing.kafka.cluster import KafkaCluster
from tests.support.groups import KAFKA_CLUSTERS
from tests.support.patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [KAFKA_CLUSTERS, pytest.mark.long, pytest.mark.timeout(240)]

CONFIGS = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
KEPT, LOST, NEW = ([f"{kind}{number}" for number in range(10)] for kind in ("kept", "lost", "new"))
# So many that the log ends beyond its reader again.
NEW = [*NEW, *(f"more{number}" for number in range(10))]


@pytest.fixture(scope="module")
def cluster(_kafka_jars: None) -> Iterator[KafkaCluster]:
    settings = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "300"}
    with KafkaCluster(settings=settings | {"replica.lag.time.max.ms": "3000"}) as cluster:
        yield cluster


class Case:
    """A topic on two of three nodes."""

    def __init__(self, cluster: KafkaCluster, topic: str) -> None:
        self.cluster = cluster
        self.topic = topic
        self.lost_on = 0
        self.source = self.reading()

    def reading(self, **options: Any) -> KafkaSource:
        kafka = Cluster(self.cluster.bootstrap_servers, security=Security(protocol="PLAINTEXT"))
        return KafkaSource(cluster=kafka, topics=self.topic, **options)

    def begin(self) -> None:
        self.cluster.create_topic(self.topic, 1, CONFIGS, replicas=2)
        self.put(KEPT)

    def put_on_one_node(self) -> None:
        """Put records when one of the two nodes is dead."""
        replicas = set(self._partition().replicas)
        self.lost_on = self._partition().leader
        (self._other,) = replicas - {self.lost_on}
        self.cluster.kill(self._other)
        self._wait_for({self.lost_on})
        self.put(LOST)

    def lose(self) -> None:
        """Let the node lead that does not have those records, and put others."""
        self.cluster.kill(self.lost_on)
        self.cluster.start(self._other)
        self._wait_for({self._other})
        self.put(NEW)

    def end(self) -> None:
        self.cluster.start()

    def put(self, values: list[str]) -> None:
        producer = Producer(self._client)
        for value in values:
            producer.produce(self.topic, value, partition=0)
        assert producer.flush(PATIENCE) == 0

    @property
    def _client(self) -> dict[str, Any]:
        servers = self.cluster.bootstrap_servers
        return {"bootstrap.servers": servers, "log_level": 0, "error_cb": lambda _: None}

    def _partition(self) -> Any:
        admin = AdminClient(self._client)
        return admin.list_topics(self.topic, timeout=PATIENCE).topics[self.topic].partitions[0]

    def _wait_for(self, in_sync: set[int]) -> None:
        while set((found := self._partition()).isrs) != in_sync or found.leader not in in_sync:
            time.sleep(0.1)


@pytest.fixture
def case(cluster: KafkaCluster, request: pytest.FixtureRequest) -> Iterator[Case]:
    case = Case(cluster, f"t{abs(hash(request.node.name))}")
    case.begin()
    yield case
    case.end()


async def read(stream: fanout.FanOut, count: int) -> list[str]:
    """Read so many records, and acknowledge them."""
    values: list[str] = []
    async for batch in stream:
        if batch.num_records:
            values += [value.decode() for value in batch.records["value"].to_pylist()]
        await stream.acknowledge(batch)
        if len(values) >= count:
            break
    return values


async def test_a_source_says_where_the_log_was_cut_off(case: Case) -> None:
    async with fanout.open(case.source) as stream:
        assert await read(stream, 10) == KEPT
        await asyncio.to_thread(case.put_on_one_node)
        assert await read(stream, 10) == LOST
        await asyncio.to_thread(case.lose)
        with pytest.raises(
            fanout.SplitFailedError, match=r"cut off at offset 10 by .* up to offset 19,"
        ):
            await read(stream, 1)


async def test_with_earliest_a_source_reads_all_that_is_left_once_more(case: Case) -> None:
    async with fanout.open(case.reading(on_data_loss="earliest")) as stream:
        await read(stream, 10)
        await asyncio.to_thread(case.put_on_one_node)
        await read(stream, 10)
        await asyncio.to_thread(case.lose)
        assert await read(stream, 30) == KEPT + NEW
        assert stream.statistics().splits[f"{case.topic}-0"].gaps == 1


async def test_a_member_of_a_group_that_comes_later_says_so(case: Case) -> None:
    group = ConsumerGroup(group_id=case.topic)
    async with fanout.open(case.source, group=group) as stream:
        await read(stream, 10)
        await asyncio.to_thread(case.put_on_one_node)
        await read(stream, 10)
        # A new coordinator of the group has to load it if the one before was on the dead node.
        async with asyncio.timeout(PATIENCE):
            while _committed(stream) != 19:  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.01)
    await asyncio.to_thread(case.lose)
    async with fanout.open(case.source, group=group) as stream:
        with pytest.raises(
            fanout.SplitFailedError, match=r"was cut off at offset 10 by an unclean"
        ):
            await read(stream, 1)


def _committed(stream: fanout.FanOut) -> int | None:
    """Return the last offset that is committed for the one partition."""
    (split,) = stream.statistics().splits.values()
    return split.committed.sequence if isinstance(split.committed, fanout.Cursor) else None


async def test_the_committed_offsets_of_a_source_say_so(case: Case) -> None:
    async with fanout.open(case.reading(group_id=case.topic)) as stream:
        await read(stream, 10)
        await asyncio.to_thread(case.put_on_one_node)
        await read(stream, 10)
        async with asyncio.timeout(PATIENCE):
            while _committed(stream) != 19:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)
    await asyncio.to_thread(case.lose)
    async with fanout.open(case.reading(group_id=case.topic, start="committed")) as stream:
        with pytest.raises(
            fanout.SplitFailedError, match=r"was cut off at offset 10 by an unclean"
        ):
            await read(stream, 1)


async def land(case: Case, directory: Path) -> int:
    """Land what is there now; return how many records that were."""
    landing = fanout.land(case.source, str(directory), max_wait=0.0, available_now=True)
    async with landing as entries:
        return sum([entry.rows async for entry in entries])


async def test_a_landing_that_goes_on_says_so(case: Case, tmp_path: Path) -> None:
    await asyncio.to_thread(case.put_on_one_node)
    assert await land(case, tmp_path) == 20
    await asyncio.to_thread(case.lose)
    with pytest.raises(fanout.SplitFailedError, match=r"was cut off at offset 10 by an unclean"):
        await land(case, tmp_path)


async def test_the_positions_of_a_transaction_say_so(case: Case) -> None:
    await asyncio.to_thread(case.cluster.create_topic, f"{case.topic}-copy", 1, {}, replicas=3)
    options: dict[str, Any] = {"topic": f"{case.topic}-copy", "transactional_id": case.topic}
    async with open_writer(case.source.cluster, **options) as writer:
        first = await writer.positions(case.source)
        async with fanout.open(case.source, resume=first) as stream:
            await read(stream, 10)
            await asyncio.to_thread(case.put_on_one_node)
            await read(stream, 10)
            await writer.commit(stream.delivered)
    await asyncio.to_thread(case.lose)
    async with open_writer(case.source.cluster, **options) as writer:
        stored = await writer.positions(case.source)
    async with fanout.open(case.source, resume=stored) as stream:
        with pytest.raises(
            fanout.SplitFailedError, match=r"was cut off at offset 10 by an unclean"
        ):
            await read(stream, 1)
