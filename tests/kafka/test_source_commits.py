from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer

import fanout
from fanout.kafka import ConsumerGroup
from tests.support.kafka.topics import (
    Topic,
    committed,
    eventually,
    transactional,
)

if TYPE_CHECKING:
    from fanout.core.positions import Position
    from fanout.testing.kafka.broker import KafkaBroker
    from tests.support.kafka.topics import Reader


@pytest.fixture
def topic(kafka_broker: KafkaBroker) -> Topic:
    """A topic of two partitions with ten records in the first."""
    made = Topic(kafka_broker, partitions=2)
    made.put(10)
    return made


@pytest.fixture
def group(topic: Topic) -> str:
    """A consumer group of this test alone."""
    return f"{topic.name}-group"


@pytest.mark.fault("Another client looks at the group")
async def test_another_client_sees_what_was_acknowledged(topic: Topic, group: str) -> None:
    await topic.read(group_id=group)
    assert await asyncio.to_thread(committed, topic, group) == {0: 10}


@pytest.mark.fault("Another client looks at the group")
async def test_nothing_is_committed_before_it_is_acknowledged(topic: Topic, group: str) -> None:
    async with topic.open(group_id=group, stop="latest") as stream:
        batches = [batch async for batch in stream]
    assert sum(batch.num_records for batch in batches) == 10
    assert await asyncio.to_thread(committed, topic, group) == {}


def positions(reader: Reader) -> set[Position | None]:
    """Return the committed position of each partition."""
    splits = reader.stream.statistics().splits.values()
    return {split.committed for split in splits}


async def test_offsets_are_committed_while_the_stream_runs(topic: Topic, group: str) -> None:
    async with topic.reading(group_id=group) as reader:
        await reader.has(10)
        await eventually(lambda: fanout.Cursor(9) in positions(reader))
        assert await asyncio.to_thread(committed, topic, group) == {0: 10}
        # Each record is an event of its own, so there may be a commit for each.
        topic.put(5, partition=1, batch_num_messages=1)
        await reader.has(15)
        await eventually(lambda: positions(reader) == {fanout.Cursor(4), fanout.Cursor(9)})
        assert reader.stream.statistics().commits_succeeded > 1
    assert await asyncio.to_thread(committed, topic, group) == {0: 10, 1: 5}


async def test_without_a_group_nothing_is_committed(topic: Topic) -> None:
    reader = await topic.read()
    assert reader.stream.statistics().commits_succeeded == 0


@pytest.mark.fault("The group's commits differ from the stored positions")
async def test_commits_are_never_read_where_positions_are_stored(topic: Topic, group: str) -> None:
    async with topic.open(group_id=group, stop="latest") as stream:
        origin = stream.positions
    await topic.read(group_id=group)
    again = await topic.read(group_id=group, start="committed", resume=origin)
    assert again.log == topic.log


@pytest.mark.fault("Another client looks at the group")
async def test_a_transaction_leaves_no_lag_behind(topic: Topic, group: str) -> None:
    writer = transactional(topic.broker, topic.name)
    topic.transaction(writer, 2, commit=True)
    await topic.read(group_id=group)
    end = 10 + 2 + 1  # the marker of its end has an offset of its own
    assert (await asyncio.to_thread(committed, topic, group))[0] == end


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
async def test_a_group_with_members_is_refused_at_the_start(
    topic: Topic, group: str, protocol: str
) -> None:
    servers = topic.broker.bootstrap_servers
    named = {"bootstrap.servers": servers, "group.id": group, "group.protocol": protocol}
    consumer = Consumer({**named, "log_level": 0})
    try:
        consumer.subscribe([topic.name])
        async with asyncio.timeout(60):
            while not await asyncio.to_thread(consumer.assignment):
                await asyncio.to_thread(consumer.poll, 0.1)
        with pytest.raises(fanout.ServiceError, match=f"the group {group} has members, and"):
            async with topic.open(group_id=group):
                raise AssertionError("it is open")
    finally:
        await asyncio.to_thread(consumer.close)
    await topic.read(group_id=group)
    assert await asyncio.to_thread(committed, topic, group) == {0: 10}


async def test_members_that_come_later_are_told_of_once_and_stop_nothing(
    topic: Topic, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with topic.reading(group_id=group) as reader:
        await reader.has(10)
        await eventually(lambda: fanout.Cursor(9) in positions(reader))
        async with fanout.open(topic.source(), group=ConsumerGroup(group_id=group)) as member:
            async with asyncio.timeout(60):
                while len(member.statistics().splits) < 2:
                    await member.drain(max_wait=0.1)
            await asyncio.to_thread(topic.put, 5)
            await reader.has(15)
            await eventually(lambda: reader.stream.statistics().commits_failed > 2)
            said = [one.message for one in caplog.records if group in one.message]
            assert [text for text in said if "has members" in text] == [said[0]]
            assert "cannot commit" not in "".join(said)
        # When they have gone, it commits again.
        await eventually(lambda: fanout.Cursor(14) in positions(reader))
