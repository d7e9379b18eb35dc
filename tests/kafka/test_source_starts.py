from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

import fanout
from fanout.errors import OptionError, ServiceError, SplitFailedError
from tests.support.kafka.topics import Topic, new_topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanout.testing.kafka.broker import KafkaBroker

pytestmark = pytest.mark.usefixtures("fanout_fast")


@pytest.fixture
def topic(kafka_broker: KafkaBroker) -> Topic:
    """A topic of two partitions with ten records each."""
    made = Topic(kafka_broker, partitions=2)
    made.put(10, partition=0)
    made.put(10, partition=1)
    return made


@pytest.mark.fault("A read begins at every place that has a name")
async def test_earliest_is_where_nothing_is_said(topic: Topic) -> None:
    assert (await topic.read()).log == topic.log


@pytest.mark.fault("A read begins at every place that has a name")
async def test_latest_is_the_end_when_the_stream_opens(topic: Topic) -> None:
    before = dict(topic.log)
    topic.log.clear()
    async with topic.reading(start="latest") as reader:
        topic.put(3, partition=1)
        await reader.has(3)
    assert reader.log == topic.log
    assert before


@pytest.mark.fault("A first attempt fails after its start was found")
async def test_latest_stays_where_it_was_when_the_origin_was_stored(topic: Topic) -> None:
    origin = await fanout.resolve_start(topic.source(start="latest"))
    topic.log.clear()
    topic.put(3)
    assert (await topic.read(resume=origin, start="latest")).log == topic.log


@pytest.mark.fault("A read begins at every place that has a name")
async def test_a_time_begins_with_the_first_record_that_is_not_older(topic: Topic) -> None:
    hour = datetime.now(UTC) - timedelta(hours=1)
    stamped = await new_topic(topic.broker)
    stamped.write(
        {"value": b"%d" % minute, "timestamp": _millis(hour + timedelta(minutes=minute))}
        for minute in range(10)
    )
    reader = await stamped.read(start=hour + timedelta(minutes=4))
    assert reader.offsets == [4, 5, 6, 7, 8, 9]


@pytest.mark.fault("A time is younger than every record")
async def test_a_time_after_the_last_record_begins_at_the_end(topic: Topic) -> None:
    topic.log.clear()
    async with topic.reading(start=datetime(2100, 1, 1, tzinfo=UTC)) as reader:
        topic.put(2)
        await reader.has(2)
    assert reader.log == topic.log


@pytest.mark.fault("A read begins at every place that has a name")
async def test_each_partition_can_begin_elsewhere(topic: Topic) -> None:
    start = {f"{topic.name}-0": 7, f"{topic.name}-1": "latest"}
    reader = await topic.read(start=start)
    assert reader.log == {0: topic.log[0][7:]}


async def test_a_star_stands_for_the_partitions_that_are_not_named(topic: Topic) -> None:
    reader = await topic.read(start={f"{topic.name}-0": 7, "*": "earliest"})
    assert reader.log == {0: topic.log[0][7:], 1: topic.log[1]}


async def test_a_cursor_is_the_record_before_the_first(topic: Topic) -> None:
    reader = await topic.read(start={f"{topic.name}-0": fanout.Cursor(7), "*": "latest"})
    assert reader.offsets == [8, 9]


@pytest.mark.fault("A read begins at every place that has a name")
async def test_a_function_can_choose(topic: Topic) -> None:
    def choose(splits: Sequence[fanout.Split]) -> dict[str, object]:
        return {split.id: index * 5 for index, split in enumerate(splits)}

    reader = await topic.read(start=choose)
    assert reader.log == {0: topic.log[0], 1: topic.log[1][5:]}


@pytest.mark.fault("A read begins at every place that has a name")
async def test_the_commits_of_a_group_are_a_start(topic: Topic) -> None:
    group = f"{topic.name}-group"
    await topic.read(group_id=group)
    before, topic.log = topic.log, type(topic.log)(list)
    topic.put(3)
    assert (await topic.read(group_id=group, start="committed")).log == topic.log
    assert before


@pytest.mark.fault("A group has committed nothing")
async def test_without_a_commit_and_a_reset_there_is_no_start(topic: Topic) -> None:
    with pytest.raises(ServiceError, match=rf"committed no offset of {topic.name}-0, .*-1; choose"):
        await topic.read(group_id=f"{topic.name}-group", start="committed")


@pytest.mark.fault("A group has committed nothing")
async def test_a_reset_is_for_partitions_without_a_commit(topic: Topic) -> None:
    group = f"{topic.name}-group"
    await topic.read(group_id=group, partitions=[f"{topic.name}-0"])
    start = fanout.Committed(reset="earliest")
    assert (await topic.read(group_id=group, start=start)).log == {1: topic.log[1]}
    other = fanout.Committed(reset="latest")
    assert (await topic.read(group_id=f"{group}-new", start=other)).count == 0


async def test_a_mapping_has_to_name_every_partition(topic: Topic) -> None:
    with pytest.raises(OptionError, match=rf"start names no position for {topic.name}-1"):
        await topic.read(start={f"{topic.name}-0": 0})


@pytest.mark.fault("An offset is asked for that the partition does not have")
@pytest.mark.long
async def test_an_offset_beyond_the_end_is_lost_records(topic: Topic) -> None:
    start = {f"{topic.name}-0": 11, "*": "latest"}
    async with topic.reading(start=start) as reader:
        assert isinstance(await reader.failed(), SplitFailedError)
    async with topic.reading(start=start, on_data_loss="earliest") as reader:
        await reader.has(10)
    assert reader.offsets == list(range(10))
    assert reader.batches[0].gaps


def _millis(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
