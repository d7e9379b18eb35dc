from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import fanout
from tests.support.kafka.topics import Topic, committed, eventually, transactional

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
