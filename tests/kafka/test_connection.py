from __future__ import annotations

import asyncio
from random import Random

import pytest
from aiokafka.errors import KafkaConnectionError, UnknownTopicOrPartitionError

from fanout.core.events import Split
from fanout.core.policy import Fatal, Phase, Retry
from fanout.core.positions import Cursor
from fanout.kafka import KafkaSource, Partition
from fanout.kafka.cluster import Cluster
from fanout.kafka.reading.kafka_source import open_kafka_connection
from tests.support.kafka.scripted_cluster import Log, ScriptedCluster
from tests.support.kafka.topics import PLAINTEXT
from tests.support.virtual_time import in_virtual_time


@pytest.mark.fault("What is available now grows while it is read")
@in_virtual_time
async def test_a_bounded_read_lists_its_partitions_once() -> None:
    cluster = ScriptedCluster(1)
    source = KafkaSource(
        cluster=Cluster("localhost", security=PLAINTEXT), topics="t", stop="latest"
    )
    async with open_kafka_connection(source, cluster, Random(7)) as connection:
        cluster.logs[Partition("t", 1)] = Log()
        assert await connection.splits() == [Split("t-0")]
        assert connection.pacing.discovery_interval is None
        assert connection.capabilities.bounded


@in_virtual_time
async def test_an_unbounded_read_lists_its_partitions_again() -> None:
    cluster = ScriptedCluster(1)
    source = KafkaSource(cluster=Cluster("localhost", security=PLAINTEXT), topics="t")
    async with open_kafka_connection(source, cluster, Random(7)) as connection:
        assert await connection.splits() == [Split("t-0")]
        cluster.logs[Partition("t", 1)] = Log()
        assert await connection.splits() == [Split("t-0"), Split("t-1")]
        assert connection.pacing.discovery_interval == 60
        assert not connection.capabilities.bounded


@pytest.mark.fault("A broker that has just started does not know a topic or an offset yet")
@in_virtual_time
async def test_a_topic_that_is_not_known_now_and_then_is_not_taken_for_lost() -> None:
    cluster = ScriptedCluster(1)
    source = KafkaSource(cluster=Cluster("localhost", security=PLAINTEXT), topics="t")
    unknown, down = UnknownTopicOrPartitionError(), KafkaConnectionError()
    async with open_kafka_connection(source, cluster, Random(7)) as connection:
        cluster.logs.clear()
        for error in (unknown, unknown, unknown, down, unknown, unknown, unknown):
            verdict = await connection.verdict(error, Phase.STREAM, Split("t-0"), Cursor(4))
            assert isinstance(verdict, Retry)
            await asyncio.sleep(5.0)
        verdict = await connection.verdict(unknown, Phase.STREAM, Split("t-0"), Cursor(4))
        assert isinstance(verdict, Fatal)
