"""A key stays in its partition for the life of a writer, whatever the cluster answers meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka.errors import NotLeaderForPartitionError, UnknownTopicOrPartitionError

from fanout.kafka.protocol import cluster_metadata
from fanout.kafka.protocol.cluster_metadata import TopicMetadata, fetch_metadata
from fanout.kafka.protocol.connections import Connections, Lane
from tests.kafka.writer.writers import writing
from tests.support.kafka.topics import new_topic
from tests.support.kafka.writing import read

if TYPE_CHECKING:
    from fanout.testing.kafka.broker import KafkaBroker

PARTITIONS = 3
KEYS = [b"key-%d" % number for number in range(40)]
KEYED = [{"key": key, "value": b"x"} for key in KEYS]


async def partitions_of_keys(
    broker: KafkaBroker, topic: str, partitions: int
) -> dict[bytes | None, list[int]]:
    """Return the partition of each record, by its key."""
    found = await read(broker, topic, partitions)
    return {
        key: sorted(number for number, there in found.items() for one in there if one.key == key)
        for key in KEYS
    }


def refuse_first_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next request with records fail as if the leader had moved."""
    send = Connections.send
    refused = iter([True])

    async def moved(
        self: Connections, broker: int, request: Any, lane: Lane = Lane.CALLS, **how: Any
    ) -> Any:
        if lane is Lane.WRITES and next(refused, False):
            raise NotLeaderForPartitionError
        return await send(self, broker, request, lane, **how)

    monkeypatch.setattr(Connections, "send", moved)


@pytest.mark.fault("A broker does not know a topic yet, or knows more partitions")
async def test_a_broker_that_does_not_know_the_topic_yet_moves_no_key(
    kafka_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = (await new_topic(kafka_broker, partitions=PARTITIONS)).name
    forgotten, remembered = asyncio.Event(), asyncio.Event()

    async def forgetful(connections: Connections, names: list[str], *, cluster_id: str) -> Any:
        answer = await fetch_metadata(connections, names, cluster_id=cluster_id)
        if not forgotten.is_set():
            forgotten.set()
            unknown = UnknownTopicOrPartitionError.errno
            return answer._replace(
                topics=[TopicMetadata(unknown, each, None, {}, {}) for each in names]
            )
        await remembered.wait()
        return answer

    async with writing(kafka_broker, topic) as writer:
        await writer.write(KEYED)
        await writer.flush()
        refuse_first_write(monkeypatch)
        monkeypatch.setattr(cluster_metadata, "fetch_metadata", forgetful)
        await writer.write(KEYED)
        await forgotten.wait()
        await writer.write(KEYED)
        remembered.set()
    found = await partitions_of_keys(kafka_broker, topic, PARTITIONS)
    assert all(len(there) == 3 and len(set(there)) == 1 for there in found.values())


@pytest.mark.fault("A broker does not know a topic yet, or knows more partitions")
async def test_partitions_that_are_added_move_no_key_of_a_writer_that_is_open(
    kafka_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = (await new_topic(kafka_broker, partitions=PARTITIONS)).name
    async with writing(kafka_broker, topic) as writer:
        await writer.write(KEYED)
        await writer.flush()
        await asyncio.to_thread(kafka_broker.grow_topic, topic, 2 * PARTITIONS)
        refuse_first_write(monkeypatch)
        # The leader is asked for anew, and the answer has the new partitions.
        await writer.write(KEYED)
        await writer.flush()
        await writer.write(KEYED)
    found = await partitions_of_keys(kafka_broker, topic, 2 * PARTITIONS)
    assert all(len(there) == 3 and len(set(there)) == 1 for there in found.values())
    async with writing(kafka_broker, topic) as newer:
        await newer.write(KEYED)
    found = await partitions_of_keys(kafka_broker, topic, 2 * PARTITIONS)
    assert any(len(set(there)) == 2 for there in found.values())
