from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from fanout.errors import OptionError, ServiceError
from fanout.kafka.cluster import Cluster
from fanout.kafka.shuffle.topic import ShuffleTopic, ensure_topic
from tests.support.kafka.brokers import HERE

if TYPE_CHECKING:
    from fanout.testing.kafka.broker import KafkaBroker

DAY = timedelta(days=1)


def wanted(name: str, **options: Any) -> ShuffleTopic:
    named: dict[str, Any] = {"partition_count": 3, "retention": DAY, "replication_factor": 1}
    return ShuffleTopic(name=name, **named | options)


async def ensure(broker: KafkaBroker, topic: ShuffleTopic) -> None:
    await ensure_topic(Cluster(broker.bootstrap_servers, security=HERE), topic)


async def test_a_topic_is_created_once_and_fits_then(kafka_broker: KafkaBroker) -> None:
    for topic in (wanted("created"), wanted("created", retention=DAY / 2)):
        await ensure(kafka_broker, topic)
    for option, other, message in (
        ("partition_count", 4, "has 3 partitions, and by partition_count it has 4"),
        ("retention", 2 * DAY, r"keeps records for 86400000 ms \(retention.ms\), less than"),
        ("retention", None, "less than retention=None"),
        ("replication_factor", 2, "has 1 replicas, fewer than replication_factor=2"),
    ):
        with pytest.raises(ServiceError, match=message):
            await ensure(kafka_broker, wanted("created", **{option: other}))


async def test_a_topic_may_keep_its_records_for_ever(kafka_broker: KafkaBroker) -> None:
    await ensure(kafka_broker, wanted("for-ever", retention=None))
    await ensure(kafka_broker, wanted("for-ever", retention=365 * DAY))


async def test_a_compacted_topic_is_refused(kafka_broker: KafkaBroker) -> None:
    configs = {"cleanup.policy": "compact,delete"}
    await asyncio.to_thread(kafka_broker.create_topic, "shuffle-compacted", 3, configs)
    with pytest.raises(ServiceError, match="'shuffle-compacted' is compacted"):
        await ensure(kafka_broker, wanted("shuffle-compacted"))


async def test_a_topic_that_deletes_records_by_its_size_is_refused(
    kafka_broker: KafkaBroker,
) -> None:
    configs = {"retention.ms": "-1", "retention.bytes": "1000"}
    await asyncio.to_thread(kafka_broker.create_topic, "shuffle-bounded", 3, configs)
    with pytest.raises(ServiceError, match=r"keeps 1000 bytes of a partition \(retention.bytes\)"):
        await ensure(kafka_broker, wanted("shuffle-bounded"))


async def test_what_the_cluster_refuses_is_said(kafka_broker: KafkaBroker) -> None:
    with pytest.raises(ServiceError, match=r"can be neither found nor created: .*replication"):
        await ensure(kafka_broker, wanted("three", replication_factor=3))


@pytest.mark.parametrize(
    ("option", "value"),
    [("partition_count", 0), ("replication_factor", 0), ("retention", timedelta(0))],
)
def test_numbers_that_make_no_topic_are_refused(option: str, value: object) -> None:
    with pytest.raises(OptionError, match=option):
        wanted("t", **{option: value})
