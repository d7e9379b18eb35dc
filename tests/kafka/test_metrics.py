"""The metrics of a stream and a writer of Kafka while a broker dies, against what came."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from fanout.kafka import open_writer
from tests.support.collected_metrics import Collected, attributes
from tests.support.kafka.topics import eventually, new_topic

if TYPE_CHECKING:
    from fanout.testing.kafka.broker import KafkaBroker

CANARY = "canary-record"


@pytest.mark.long
async def test_each_number_is_that_of_the_oracle_while_a_broker_dies(
    mortal_broker: KafkaBroker,
) -> None:
    topic = await new_topic(mortal_broker, partitions=2)
    for partition in range(2):
        topic.put(500, partition=partition)
    collected = Collected()
    small = {"max.partition.fetch.bytes": 1024}
    with closing(collected):
        async with topic.reading(group_id="etl", consumer_options=small) as reader:
            await reader.has(1)
            with collected.metrics.watch(reader.stream):
                try:
                    await asyncio.to_thread(mortal_broker.kill)
                    await reader.until(lambda: reader.causes)
                finally:
                    await asyncio.to_thread(mortal_broker.restart)
                await reader.has(1_000)
                topic.put(10)
                await reader.has(1_010)
                await eventually(lambda: reader.stream.statistics().lag == 0.0)
                now, found = collected.now(), collected.all()
                assert now["messaging.client.consumed.messages"] == {"": reader.count}
                assert reader.count == topic.written == 1_010
                nbytes = sum(batch.nbytes for batch in reader.batches)
                assert now["fanout.consumed.bytes"] == {"": nbytes}
                causes = Counter(type(cause).__name__ for cause in reader.causes)
                assert now["fanout.resubscriptions"] == dict(causes)
                assert now["fanout.gaps"] == now["fanout.bad_records"] == {"": 0}
                assert now["fanout.splits"] == {"live": 2}
                assert now["fanout.lag.records"] == {"": 0}
        (base,) = attributes(found["fanout.gaps"])
        assert base == {
            "messaging.system": "kafka",
            "messaging.destination.name": topic.name,
            "messaging.consumer.group.name": "etl",
        }
        assert collected.now()["fanout.resubscriptions"] == dict(causes)


async def test_a_writer_and_its_transactions(kafka_broker: KafkaBroker) -> None:
    topic = await new_topic(kafka_broker)
    cluster = topic.source().cluster
    collected = Collected()
    with closing(collected):
        async with open_writer(cluster, topic.name, transactional_id=topic.name) as writer:
            with collected.metrics.watch(writer, name="etl"):
                rows = [{"value": CANARY}]
                await writer.write(rows * 7)
                await writer.commit()
                await writer.write(rows * 3)
                await writer.abort()
                now, found = collected.now(), collected.all()
        assert now["messaging.client.sent.messages"] == {"": writer.statistics().records}
        assert 7 <= writer.statistics().records <= 10
        assert now["fanout.transactions"] == {"begun": 2, "committed": 1, "aborted": 1}
        assert len((await topic.read()).log[0]) == 7
        exported = "".join(metric.to_json() for metric in found.values())
        assert CANARY not in exported
