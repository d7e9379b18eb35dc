"""Three nodes of Kafka: what each fault does, and that nothing is left of them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from fanout.errors import OptionError, StreamStateError
from fanout.testing.kafka.cluster import KafkaCluster
from fanout.testing.ports import free_ports
from tests.support.groups import KAFKA_CLUSTERS
from tests.support.kafka.leaders import move_leaders
from tests.support.patience import PATIENCE, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [KAFKA_CLUSTERS, pytest.mark.long]


@pytest.fixture(scope="module")
def cluster(_kafka_jars: None) -> Iterator[KafkaCluster]:
    # Short, as a dead node is missed after that time; and long enough for a node that is slow.
    settings = {"broker.session.timeout.ms": "6000", "broker.heartbeat.interval.ms": "300"}
    with KafkaCluster(settings=settings) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def whole(cluster: KafkaCluster) -> Iterator[None]:
    yield
    for node in (1, 2, 3):
        cluster.resume(node)
    cluster.start()


def put(cluster: KafkaCluster, topic: str, *values: bytes) -> list[object]:
    """Put each value by a request of its own; return by which answers a broker throttles."""
    failures: list[object] = []
    throttled: list[object] = []
    options = {"acks": "all", "linger.ms": 0, "enable.idempotence": True, "log_level": 0}
    servers = {"bootstrap.servers": cluster.bootstrap_servers, "throttle_cb": throttled.append}
    producer = Producer(options | servers)
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error))
        assert producer.flush(PATIENCE) == 0
    assert failures == [None] * len(values)
    return throttled


def read(cluster: KafkaCluster, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "unused"})
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in cluster.leaders(topic)])
        found = [consumer.consume(1, PATIENCE)[0].value() for _ in range(count)]
    finally:
        consumer.close()
    return sorted(value for value in found if isinstance(value, bytes))


def kill(cluster: KafkaCluster, node: int) -> None:
    cluster.kill(node)


def stop(cluster: KafkaCluster, node: int) -> None:
    cluster.stop(node)


def pause(cluster: KafkaCluster, node: int) -> None:
    cluster.pause(node)


@pytest.mark.parametrize("fault", [kill, stop, pause])
def test_two_nodes_of_three_go_on(
    cluster: KafkaCluster, fault: Callable[[KafkaCluster, int], None]
) -> None:
    topic = fault.__name__
    cluster.create_topic(topic, 6)
    assert set(cluster.leaders(topic).values()) == {1, 2, 3}
    fault(cluster, 2)
    put(cluster, topic, b"a", b"b", b"c")
    eventually(lambda: 2 not in cluster.leaders(topic).values())
    cluster.resume(2)
    cluster.start(2)
    assert read(cluster, topic, 3) == [b"a", b"b", b"c"]


def test_a_node_that_was_started_again_can_take_the_place_of_the_others(
    cluster: KafkaCluster,
) -> None:
    cluster.create_topic("rolling", 3, replicas=3)
    for node in (1, 2, 3):
        put(cluster, "rolling", f"{node}".encode())
        cluster.stop(node)
        cluster.start(node)
    assert read(cluster, "rolling", 3) == [b"1", b"2", b"3"]


def test_leaders_move_to_other_nodes(cluster: KafkaCluster) -> None:
    cluster.create_topic("moved", 6)
    cluster.create_topic("stays", 6)
    before, stays = cluster.leaders("moved"), cluster.leaders("stays")
    move_leaders(cluster, "moved")
    after = cluster.leaders("moved")
    assert all(after[number] != leader for number, leader in before.items())
    assert cluster.leaders("stays") == stays
    coordinators = cluster.leaders("__share_group_state")
    move_leaders(cluster)
    assert all(cluster.leaders("moved")[number] != leader for number, leader in after.items())
    moved = cluster.leaders("__share_group_state")
    assert all(moved[number] != leader for number, leader in coordinators.items())


def test_a_node_that_hangs_can_be_shut_down(cluster: KafkaCluster) -> None:
    cluster.pause(3)
    cluster.stop(3)
    assert cluster.process_id(3) is None


def test_leaders_of_a_topic_that_does_not_exist_are_not_moved(cluster: KafkaCluster) -> None:
    with pytest.raises(OptionError, match="there is no topic no-such-topic"):
        cluster.move_leaders("no-such-topic")


def test_topics_and_internal_ones_have_three_replicas(cluster: KafkaCluster) -> None:
    cluster.create_topic("copied", 2)
    cluster.create_topic("alone", 2, replicas=1)
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "unused"})
    try:
        topics = consumer.list_topics(timeout=PATIENCE).topics
    finally:
        consumer.close()
    counts = {
        name: {len(part.replicas) for part in topics[name].partitions.values()}
        for name in ("copied", "alone", "__share_group_state")
    }
    assert counts == {"copied": {3}, "alone": {1}, "__share_group_state": {3}}
    with pytest.raises(OptionError, match="replication factor"):
        cluster.create_topic("four", replicas=4)


def test_nodes_are_numbered_from_one(cluster: KafkaCluster) -> None:
    ports = {cluster.address("PLAINTEXT", node) for node in (1, 2, 3)}
    assert ports == set(cluster.bootstrap_servers.split(","))
    with pytest.raises(OptionError, match="there is no node 4: the last one is 3"):
        cluster.kill(4)
    with pytest.raises(OptionError, match="from 1 to 9, not 0"):
        KafkaCluster(nodes=0)
    with pytest.raises(StreamStateError, match="the KafkaCluster is not running"):
        _ = KafkaCluster().bootstrap_servers


@pytest.mark.usefixtures("_kafka_jars")
def test_ports_follow_the_first_one_and_nothing_is_left() -> None:
    (port,) = free_ports(1)
    with KafkaCluster(nodes=2, port=port) as two:
        assert two.bootstrap_servers == f"127.0.0.1:{port},127.0.0.1:{port + 1}"
        pids = [two.process_id(node) for node in (1, 2)]
        two.pause(2)
    for pid in pids:
        assert pid is not None
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_clients_are_throttled_by_a_quota_until_it_is_removed(cluster: KafkaCluster) -> None:
    cluster.create_topic("slow")
    with pytest.raises(OptionError, match="Kafka refused"):
        cluster.set_quotas(no_such_quota=1.0)
    cluster.set_quotas(producer_byte_rate=1000.0)
    eventually(lambda: put(cluster, "slow", *[b"x" * 10_000] * 3) != [])
    cluster.set_quotas(producer_byte_rate=None)
    eventually(lambda: put(cluster, "slow", *[b"x" * 10_000] * 3) == [])
