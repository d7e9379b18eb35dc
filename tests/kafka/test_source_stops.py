from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from fanout.errors import OptionError, ServiceError
from tests.support.kafka.topics import Reader, Topic, new_topic, transactional

if TYPE_CHECKING:
    from fanout.testing.kafka.broker import KafkaBroker


@pytest.fixture
def topic(kafka_broker: KafkaBroker) -> Topic:
    """A topic of two partitions with ten records each."""
    made = Topic(kafka_broker, partitions=2)
    made.put(10, partition=0)
    made.put(10, partition=1)
    return made


@pytest.mark.fault("A read ends at every place that has a name, and a later one goes on there")
async def test_latest_is_the_end_when_the_stream_opens(topic: Topic) -> None:
    async with topic.open(stop="latest") as stream:
        expected = {partition: list(rows) for partition, rows in topic.log.items()}
        topic.put(5)
        reader = Reader()
        await reader.read(stream)
    assert reader.log == expected
    assert reader.failure is None


@pytest.mark.fault("A read ends at every place that has a name, and a later one goes on there")
async def test_an_offset_is_the_first_that_is_not_read(topic: Topic) -> None:
    reader = await topic.read(stop={f"{topic.name}-0": 4, "*": "latest"})
    assert reader.log == {0: topic.log[0][:4], 1: topic.log[1]}


@pytest.mark.fault("A stop lies beyond the end")
async def test_a_read_waits_for_a_stop_that_does_not_exist_yet(topic: Topic) -> None:
    async with topic.reading(stop={f"{topic.name}-0": 12, f"{topic.name}-1": 0}) as reader:
        await reader.has(10)
        topic.put(5)
        await reader.has(12)
        await reader.ended()
    assert reader.log == {0: topic.log[0][:12]}


@pytest.mark.fault("A read ends at every place that has a name, and a later one goes on there")
async def test_a_time_stops_before_the_first_record_that_is_not_older(topic: Topic) -> None:
    hour = datetime.now(UTC) - timedelta(hours=1)
    stamped = await new_topic(topic.broker)
    stamped.write(
        {"value": b"%d" % minute, "timestamp": int(hour.timestamp() * 1000) + 60_000 * minute}
        for minute in range(10)
    )
    assert (await stamped.read(stop=hour + timedelta(minutes=4))).offsets == [0, 1, 2, 3]
    assert (await stamped.read(stop=hour + timedelta(days=1))).offsets == list(range(10))


@pytest.mark.fault("A read ends at every place that has a name, and a later one goes on there")
async def test_the_commits_of_a_group_are_a_stop(topic: Topic) -> None:
    group = f"{topic.name}-group"
    await topic.read(group_id=group)
    expected = {partition: list(rows) for partition, rows in topic.log.items()}
    topic.put(3)
    assert (await topic.read(group_id=group, stop="committed")).log == expected
    with pytest.raises(ServiceError, match="has committed no offset"):
        await topic.read(group_id=f"{group}-other", stop="committed")


async def test_a_stop_has_to_name_every_partition(topic: Topic) -> None:
    with pytest.raises(OptionError, match=rf"stop names no position for {topic.name}-1"):
        await topic.read(stop={f"{topic.name}-0": 0})


@pytest.mark.fault("A read ends at every place that has a name, and a later one goes on there")
async def test_positions_at_the_stop_go_on_in_a_later_run(topic: Topic) -> None:
    first = await topic.read()
    topic.put(3)
    second = await topic.read(resume=first.stream.positions)
    assert first.log[0] + second.log[0] == topic.log[0]
    assert second.count == 3
    third = await topic.read(resume=second.stream.positions)
    assert third.count == 0


@pytest.mark.fault("What is available now grows while it is read")
async def test_what_is_available_now_is_read_and_no_more(topic: Topic) -> None:
    async with topic.open(available_now=True) as stream:
        expected = {partition: list(rows) for partition, rows in topic.log.items()}
        topic.put(5)
        reader = Reader()
        await reader.read(stream)
    assert reader.log == expected


async def test_what_is_available_now_ends_at_an_earlier_stop(topic: Topic) -> None:
    stop = {f"{topic.name}-0": 4, f"{topic.name}-1": 40}
    reader = Reader()
    async with topic.open(available_now=True, stop=stop) as stream:
        await reader.read(stream)
    assert reader.log == {0: topic.log[0][:4], 1: topic.log[1]}


@pytest.mark.fault("A topic is empty, or some of its partitions are")
async def test_a_bounded_read_of_nothing_ends(topic: Topic) -> None:
    empty = await new_topic(topic.broker, partitions=3)
    assert (await empty.read()).count == 0
    assert (await topic.read(start="latest")).count == 0


@pytest.mark.fault("What is available now grows while it is read")
async def test_partitions_that_are_added_are_not_part_of_a_bounded_read(topic: Topic) -> None:
    async with topic.open(stop={f"{topic.name}-{number}": 12 for number in (0, 1)}) as stream:
        await asyncio.to_thread(topic.broker.grow_topic, topic.name, 3)
        topic.put(5, partition=2)
        for partition in (0, 1):
            topic.put(2, partition=partition)
        reader = Reader()
        await reader.read(stream)
    assert reader.log == {0: topic.log[0], 1: topic.log[1]}


@pytest.mark.fault("A stop lies behind an aborted transaction, its marker or an open one")
async def test_a_bounded_read_ends_behind_an_aborted_tail(topic: Topic) -> None:
    mixed = await new_topic(topic.broker)
    mixed.put(2)
    writer = transactional(topic.broker, mixed.name)
    mixed.transaction(writer, 3, commit=True)
    mixed.transaction(writer, 3, commit=False)
    reader = await mixed.read()
    assert reader.log == mixed.log
    assert reader.offsets == [0, 1, 2, 3, 4]
    assert not reader.stream.statistics().lag
    # The rest is two markers and three aborted records.
    assert (await mixed.read(resume=reader.stream.positions)).count == 0


@pytest.mark.fault("A stop lies behind an aborted transaction, its marker or an open one")
async def test_a_bounded_read_ends_before_an_open_transaction(topic: Topic) -> None:
    mixed = await new_topic(topic.broker)
    mixed.put(2)
    expected = list(mixed.log[0])
    writer = transactional(topic.broker, mixed.name)
    mixed.transaction(writer, 3, commit=None)
    mixed.put(2)
    first = await mixed.read()
    assert first.log == {0: expected}
    mixed.end_transaction(writer)
    second = await mixed.read(resume=first.stream.positions)
    assert first.log[0] + second.log[0] == sorted(mixed.log[0])


@pytest.mark.fault("Compaction leaves holes, and batches without records")
async def test_records_that_compaction_has_removed_are_not_waited_for(topic: Topic) -> None:
    configs = {"cleanup.policy": "compact", "segment.ms": "50", "min.cleanable.dirty.ratio": "0.01"}
    compacted = await new_topic(topic.broker, configs=configs)
    for number in range(10):
        compacted.write([{"key": b"same", "value": b"%d" % number}])
    stop = {f"{compacted.name}-0": 10}
    reader = await compacted.read(stop=stop)
    while reader.count > 1:
        await asyncio.sleep(0.2)
        compacted.write([{"key": b"same", "value": b"more"}])  # closes a segment that is old enough
        reader = await compacted.read(stop=stop)
    assert set(reader.log[0]) <= set(compacted.log[0])
