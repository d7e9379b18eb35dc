"""`diagnose_cluster` on the real broker, one finding at a time."""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka.admin import AclOperation, ResourceType

from fanout.core.checkpoint import Checkpoint, SplitPosition
from fanout.core.positions import Cursor, Horizon
from fanout.kafka.cluster import Cluster, Server
from fanout.kafka.doctor.diagnose import KafkaNeeds, diagnose_cluster, read_lag
from fanout.kafka.doctor.resources import examine_share_group
from fanout.kafka.partitions import Partition
from fanout.kafka.protocol.cluster_metadata import Metadata, fetch_metadata
from fanout.kafka.security import Security
from tests.support.kafka.brokers import HERE, connect, create, leave, persist, produce
from tests.support.kafka.permissions import grant, permission

if TYPE_CHECKING:
    from pathlib import Path

    from fanout.core.findings import Finding
    from fanout.testing.kafka.broker import KafkaBroker
    from tests.kafka.secured import Secured

HOUR = 3_600_000


def name(what: str) -> str:
    return f"{what}-{uuid.uuid4().hex[:8]}"


def reach(broker: KafkaBroker) -> Cluster:
    return Cluster(broker.bootstrap_servers, security=HERE)


async def examine(
    cluster: Cluster, checkpoint: Checkpoint | None = None, **needs: Any
) -> dict[str, Finding]:
    found = await diagnose_cluster(cluster, KafkaNeeds(**needs), checkpoint=checkpoint)
    return {finding.check: finding for finding in reversed(found)}


async def cluster_id(broker: KafkaBroker) -> str:
    async with connect(broker) as transport:
        return transport.cluster_id


async def test_a_cluster_that_has_everything_has_no_problem(kafka_broker: KafkaBroker) -> None:
    topic = (await create(kafka_broker, name("orders"), 3)).topic
    found = await diagnose_cluster(
        reach(kafka_broker),
        KafkaNeeds(topics=[topic], group="g", share_group=name("queue"), sink_topics=[topic]),
    )
    assert [each for each in found if each.status not in {"ok", "unknown"}] == []
    assert [each.check for each in found if each.status == "unknown"] == ["lag"]
    details = {each.check: each.detail for each in found}
    assert details[f"topic {topic}"] == "3 partitions"
    assert "share.version=1" in details["features"]
    assert details["clock"] == "within 1 s of the controller's"


async def allow(cluster: Secured, kind: ResourceType, id_: str, operation: AclOperation) -> None:
    wanted = permission("examiner", kind, id_, operation)
    await asyncio.to_thread(grant, cluster.broker, wanted)


# Brokers


async def test_a_server_without_a_listener_is_the_only_finding(unused_tcp_port: int) -> None:
    dead = Cluster(f"127.0.0.1:{unused_tcp_port}", security=HERE)
    (found,) = await diagnose_cluster(dead, KafkaNeeds(topics=["orders"]))
    assert (found.check, found.status) == (f"server 127.0.0.1:{unused_tcp_port}", "problem")
    assert found.detail == "no server listens; check that the broker runs, and the port"


async def test_each_server_is_tried_and_one_is_enough(
    kafka_broker: KafkaBroker, unused_tcp_port: int
) -> None:
    servers = f"127.0.0.1:{unused_tcp_port},{kafka_broker.bootstrap_servers}"
    found = await examine(Cluster(servers, security=HERE))
    assert found[f"server 127.0.0.1:{unused_tcp_port}"].status == "problem"
    assert found[f"server {kafka_broker.bootstrap_servers}"].status == "ok"
    assert found["cluster"].status == "ok"


async def test_another_protocol_than_the_listeners_is_a_problem(
    kafka_broker: KafkaBroker, authority: Path
) -> None:
    tls = Security(protocol="SSL", ca_file=authority)
    cluster = Cluster(kafka_broker.bootstrap_servers, security=tls, connect_timeout=5)
    (found,) = await diagnose_cluster(cluster, KafkaNeeds())
    assert found.status == "problem"
    assert found.detail.startswith("a Kafka listener of the protocol PLAINTEXT answers")


def advertising(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    """Let the broker advertise another address than its own."""
    fetch = fetch_metadata

    async def fetched(*args: Any, **options: Any) -> Any:
        answer = await fetch(*args, **options)
        return answer._replace(brokers={1: server})

    monkeypatch.setattr("fanout.kafka.doctor.diagnose.fetch_metadata", fetched)


async def test_an_advertised_address_that_cannot_be_reached_is_a_problem(
    kafka_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int
) -> None:
    advertising(monkeypatch, Server("127.0.0.1", unused_tcp_port))
    found = (await examine(reach(kafka_broker)))["broker 1"]
    assert found.status == "problem"
    what = f"advertises 127.0.0.1:{unused_tcp_port}, which this machine cannot use: "
    assert found.detail.startswith(what)
    assert "advertised.listeners" in found.advice


async def test_a_cluster_that_lists_no_brokers_is_a_problem(
    kafka_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fetched(*_: object) -> Any:
        return Metadata("empty", -1, {}, [])

    monkeypatch.setattr("fanout.kafka.doctor.diagnose.fetch_metadata", fetched)
    found = (await examine(reach(kafka_broker), sink_topics=["bills"]))["cluster"]
    assert (found.status, found.detail) == ("problem", "it lists no brokers")


@pytest.mark.long
async def test_an_advertised_address_of_another_cluster_is_a_problem(
    kafka_broker: KafkaBroker, mortal_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    (other,) = reach(mortal_broker).addresses
    advertising(monkeypatch, other)
    found = (await examine(reach(kafka_broker)))["broker 1"]
    assert found.status == "problem"
    assert f"belong to the cluster {await cluster_id(mortal_broker)}" in found.detail


@pytest.mark.parametrize(("shift", "word"), [(120_000, "ahead of"), (-120_000, "behind")])
async def test_a_clock_that_is_minutes_off_is_a_warning(
    kafka_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch, shift: int, word: str
) -> None:
    from fanout.kafka.doctor import brokers  # noqa: PLC0415 - it is patched

    now = brokers._now
    monkeypatch.setattr(brokers, "_now", lambda: now() + shift)
    found = (await examine(reach(kafka_broker)))["clock"]
    assert found.status == "warning"
    assert found.detail == f"120 s {word} the controller's clock"


# Topics


async def test_a_topic_that_does_not_exist_is_a_problem(kafka_broker: KafkaBroker) -> None:
    found = await examine(reach(kafka_broker), topics=["missing-topic"])
    assert found["topic missing-topic"].detail == "it does not exist"
    assert found["topic missing-topic"].status == "problem"


async def test_the_retention_of_a_topic_is_read(kafka_broker: KafkaBroker) -> None:
    topic = name("kept")
    configs = {"retention.ms": str(6 * HOUR), "retention.bytes": "1000000"}
    await asyncio.to_thread(kafka_broker.create_topic, topic, 1, configs)
    compacted = name("compacted")
    await asyncio.to_thread(kafka_broker.create_topic, compacted, 1, {"cleanup.policy": "compact"})
    found = await examine(reach(kafka_broker), topics=[topic, compacted])
    kept = "records are kept for 6 h, and 1,000,000 bytes of a partition at most"
    assert found[f"retention of {topic}"].detail == f"{kept} (cleanup.policy=delete)"
    assert found[f"retention of {compacted}"].detail.startswith("records are kept for ever")


# Permissions


@pytest.mark.long
async def test_every_missing_permission_is_named(cluster: Secured) -> None:
    topic, sink = name("orders"), name("sink")
    for one in (topic, sink):
        await create(cluster.broker, one)
    guarded = Cluster(cluster.guarded, security=cluster.guarded_login("examiner"))
    needs: dict[str, Any] = {"topics": [topic], "group": "g-writer", "sink_topics": [sink]}
    found = await examine(guarded, **needs)
    assert found[f"topic {topic}"].detail == "it does not exist, or DESCRIBE is not granted"
    assert found["group g-writer"].status == "problem"
    assert "READ" in found["group g-writer"].advice
    assert found["transactional ids fanout-*"].status == "problem"
    assert "WRITE on the transactional id" in found["transactional ids fanout-*"].detail
    assert found["idempotent writes"].status == "problem"
    assert found["transaction limits"].status == "unknown"
    assert found["clock"].status == "unknown"
    assert "DESCRIBE" in found["clock"].detail

    await allow(cluster, ResourceType.TOPIC, topic, AclOperation.DESCRIBE)
    await allow(cluster, ResourceType.TOPIC, sink, AclOperation.READ)
    found = await examine(guarded, **needs)
    missing = found[f"permissions on topic {topic}"]
    assert (missing.status, missing.detail) == ("problem", "READ is not granted")
    assert missing.advice == f"grant the principal READ on the topic {topic}"
    assert found[f"permissions on topic {sink}"].detail == "WRITE is not granted"
    assert found[f"retention of {topic}"].status == "unknown"
    assert "DESCRIBE_CONFIGS" in found[f"retention of {topic}"].advice

    await allow(cluster, ResourceType.TOPIC, topic, AclOperation.READ)
    await allow(cluster, ResourceType.TOPIC, sink, AclOperation.WRITE)
    await allow(cluster, ResourceType.GROUP, "g-writer", AclOperation.READ)
    id_ = "fanout-doctor"
    await allow(cluster, ResourceType.TRANSACTIONAL_ID, id_, AclOperation.WRITE)
    found = await examine(guarded, **needs)
    assert found[f"permissions on topic {topic}"].status == "ok"
    assert found[f"permissions on topic {sink}"].status == "ok"
    assert found["permissions on group g-writer"].status == "ok"
    assert found["idempotent writes"].status == "ok"
    marker = found["transactional ids fanout-*"]
    assert marker.detail == "READ is not granted on the group fanout-doctor-marker"
    await allow(cluster, ResourceType.GROUP, f"{id_}-marker", AclOperation.READ)
    found = await examine(guarded, **needs)
    assert found["transactional ids fanout-*"].status == "ok"


# Groups


async def test_a_group_with_members_is_a_problem(kafka_broker: KafkaBroker) -> None:
    topic, group = (await create(kafka_broker, name("orders"))).topic, name("busy")
    servers = kafka_broker.bootstrap_servers
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=servers, group_id=group)
    await consumer.start()
    try:
        found = (await examine(reach(kafka_broker), group=group))[f"group {group}"]
    finally:
        await consumer.stop()
    assert found.status == "problem"
    assert found.detail == "a classic group with 1 members that is stable"
    found = (await examine(reach(kafka_broker), group=group))[f"group {group}"]
    assert (found.status, found.detail) == ("ok", "a classic group that is empty")


async def test_a_share_group_is_none_whose_offsets_are_committed(
    kafka_broker: KafkaBroker,
) -> None:
    topic, group = (await create(kafka_broker, name("orders"))).topic, name("queue")
    from confluent_kafka import ShareConsumer  # noqa: PLC0415 - see the extra share

    consumer = ShareConsumer(
        {"bootstrap.servers": kafka_broker.bootstrap_servers, "group.id": group}
    )
    try:
        consumer.subscribe([topic])
        found: dict[str, Finding] = {}
        while "stable" not in str(found.get(f"share group {group}")):
            await asyncio.to_thread(consumer.poll, 0.1)
            found = await examine(reach(kafka_broker), group=group, share_group=group)
    finally:
        await asyncio.to_thread(leave, consumer)
    assert found[f"group {group}"].status == "problem"
    assert found[f"group {group}"].detail == f"{group} is a share group"
    assert found[f"share group {group}"].detail.startswith("stable, with 1 members")


async def test_landers_that_are_to_read_a_share_group_are_a_problem(
    kafka_broker: KafkaBroker,
) -> None:
    found = await examine(reach(kafka_broker), share_group=name("queue"), landers=2)
    assert found["landers"].status == "problem"
    assert found["landers"].advice == "leave --landers out, or start more queries on the group"
    topic = (await create(kafka_broker, name("orders"), 3)).topic
    found = await examine(reach(kafka_broker), topics=[topic], landers=2)
    assert found["landers"].detail.startswith("2 for 3 partitions: 2 at most for each lander")
    assert found["cores for landers"].status == "ok"


async def test_brokers_without_share_groups_are_a_problem() -> None:
    not_called: Any = None
    (found,) = await examine_share_group(not_called, "queue", {"metadata.version": 20})
    assert found.status == "problem"
    assert "Kafka 4.2 or later" in found.detail


# The limits of transactions


@pytest.mark.parametrize(("seconds", "status"), [(None, "ok"), (900, "ok"), (901, "problem")])
async def test_the_timeout_of_a_sink_is_compared_with_the_limit(
    kafka_broker: KafkaBroker, seconds: float | None, status: str
) -> None:
    topic = (await create(kafka_broker, name("sink"))).topic
    found = await examine(reach(kafka_broker), sink_topics=[topic], transaction_timeout=seconds)
    limits = found["transaction limits"]
    assert limits.status == status
    assert "transaction.max.timeout.ms=900000" in limits.detail
    assert "transactional.id.expiration.ms=604800000" in limits.detail


# The lag


async def checkpoint_of(broker: KafkaBroker, **offsets: int | None) -> Checkpoint:
    return Checkpoint(
        f"kafka:{await cluster_id(broker)}",
        {
            id_: SplitPosition(
                Partition.of(id_).split, Horizon() if offset is None else Cursor(offset - 1)
            )
            for id_, offset in offsets.items()
        },
    )


async def test_the_lag_of_a_checkpoint_is_counted_and_aged(kafka_broker: KafkaBroker) -> None:
    partition = await create(kafka_broker, name("orders"), 2)
    written = time.time_ns() // 1_000_000 - 2 * HOUR
    await produce(kafka_broker, partition, b"a", b"b", b"c", stamp=written)
    at = {str(partition): 1, f"{partition.topic}-1": 0}
    checkpoint = await checkpoint_of(kafka_broker, **at)
    found = await examine(reach(kafka_broker), topics=[partition.topic], checkpoint=checkpoint)
    assert found["lag"].status == "ok"
    assert found["lag"].detail.startswith("2 records; the oldest unread record is 7,20")
    assert found["lag"].detail.endswith(f"s old, in {partition}")
    assert found["backlog"].status == "ok"
    assert "kept for 166.0 h or more" in found["backlog"].detail
    lags = await read_lag(reach(kafka_broker), checkpoint)
    assert [lags[id_].records for id_ in at] == [2, 0]
    assert lags[f"{partition.topic}-1"].millis == 0


async def test_a_partition_that_is_not_begun_lags_by_all_of_its_records(
    kafka_broker: KafkaBroker,
) -> None:
    partition = await create(kafka_broker, name("orders"))
    await produce(kafka_broker, partition, b"a", b"b")
    checkpoint = await checkpoint_of(kafka_broker, **{str(partition): None})
    assert (await read_lag(reach(kafka_broker), checkpoint))[str(partition)].records == 2


async def test_a_group_has_a_lag_too(kafka_broker: KafkaBroker) -> None:
    partition, group = await create(kafka_broker, name("orders")), name("etl")
    await produce(kafka_broker, partition, b"a", b"b", b"c")
    async with connect(kafka_broker) as transport:
        assert not await persist(lambda: transport.commit(group, {partition: Cursor(0)}))
    found = await examine(reach(kafka_broker), topics=[partition.topic], group=group)
    assert found["lag"].detail.startswith("2 records; the oldest unread record is ")
    assert found[f"group {group}"].detail == "a classic group that is empty"


async def test_unread_records_that_soon_expire_are_a_warning(kafka_broker: KafkaBroker) -> None:
    topic = name("short")
    await asyncio.to_thread(kafka_broker.create_topic, topic, 1, {"retention.ms": str(10 * HOUR)})
    partition = Partition(topic, 0)
    await create(kafka_broker, name("other"))
    written = time.time_ns() // 1_000_000 - 9 * HOUR
    await produce(kafka_broker, partition, b"a", stamp=written)
    checkpoint = await checkpoint_of(kafka_broker, **{str(partition): 0})
    found = await examine(reach(kafka_broker), topics=[topic], checkpoint=checkpoint)
    assert found["backlog"].status == "warning"
    assert found["backlog"].detail == f"unread records of {partition} expire in 1.0 of 10 h"


async def test_a_position_whose_records_were_deleted_is_a_problem(
    kafka_broker: KafkaBroker,
) -> None:
    partition = await create(kafka_broker, name("orders"))
    await produce(kafka_broker, partition, b"a", b"b", b"c")
    await asyncio.to_thread(kafka_broker.delete_records, partition.topic, 0, 2)
    checkpoint = await checkpoint_of(kafka_broker, **{str(partition): 1})
    found = await examine(reach(kafka_broker), checkpoint=checkpoint)
    assert found["backlog"].status == "problem"
    assert found["backlog"].detail == f"the records that follow in {partition} have expired"


async def test_a_checkpoint_of_another_cluster_is_a_problem(kafka_broker: KafkaBroker) -> None:
    checkpoint = await checkpoint_of(kafka_broker, **{"orders-0": 1})
    other = replace(checkpoint, source="kafka:another")
    found = (await examine(reach(kafka_broker), checkpoint=other))["checkpoint"]
    assert found.status == "problem"
    assert found.detail.startswith("it belongs to kafka:another, not to kafka:")
