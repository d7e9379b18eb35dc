from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import fanout
from fanout.core.checkpoint import Checkpoint
from fanout.errors import CheckpointError, PositionError, ServiceError, SplitFailedError
from fanout.kafka.intervals import KAFKA_INTERVALS
from tests.support.kafka.topics import Topic, eventually, new_topic
from tests.support.patience import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path

    from fanout.kafka import KafkaSource
    from fanout.testing.kafka.broker import KafkaBroker

pytestmark = pytest.mark.usefixtures("fanout_fast")


@pytest.fixture
def topic(kafka_broker: KafkaBroker) -> Topic:
    """A topic of one partition with ten records."""
    made = Topic(kafka_broker)
    made.put(10)
    return made


async def test_several_topics_are_read_whole(topic: Topic) -> None:
    other = await new_topic(topic.broker, partitions=2)
    other.put(5, partition=1)
    reader = await topic.read(topics=[topic.name, other.name])
    assert reader.topics == {topic.name: topic.log, other.name: other.log}


async def test_single_partitions_are_read_and_no_others(topic: Topic) -> None:
    other = await new_topic(topic.broker, partitions=3)
    for partition in range(3):
        other.put(5, partition=partition)
    reader = await topic.read(partitions=[f"{topic.name}-0", f"{other.name}-1"])
    assert reader.topics == {topic.name: topic.log, other.name: {1: other.log[1]}}


@pytest.mark.fault("A topic or a partition that is named does not exist")
async def test_a_topic_that_does_not_exist_is_refused_by_name(topic: Topic) -> None:
    with pytest.raises(ServiceError, match="there is no topic nowhere"):
        async with topic.open(topics=[topic.name, "nowhere"]):
            pass


async def test_nothing_is_logged_before_the_error_about_a_topic(
    topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for topics, partitions in ((["nowhere"], None), (None, ["nowhere-0"])):
        with pytest.raises(ServiceError, match="there is no topic nowhere"):
            async with topic.open(topics=topics, partitions=partitions):
                pass
    assert caplog.messages == []


async def test_a_topic_that_is_deleted_is_named_once(
    topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    async with topic.open(on_data_loss="earliest", discovery_interval=0.1) as stream:
        await asyncio.to_thread(topic.broker.delete_topic, topic.name)
        await eventually(lambda: "deleted" in caplog.text)
        await asyncio.sleep(0.5)
        assert not stream.failure
    assert [each for each in caplog.messages if "deleted" in each] == [
        f"the topic {topic.name} was deleted, or may no longer be described"
    ]


async def test_the_log_has_start_new_partitions_stop_and_resume_in_the_terms_of_kafka(
    topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "fanout.lifecycle")
    async with topic.reading(start="earliest", discovery_interval=0.1) as reader:
        await reader.has(10)
        await asyncio.to_thread(topic.broker.grow_topic, topic.name, 2)
        await eventually(lambda: "found" in caplog.text)
        # A partition without records has either the earliest offset or offset 0 as its position.
        topic.put(3, partition=1)
        await reader.has(13)
        saved = reader.stream.positions
    identity = fanout.Checkpoint.from_json(saved).source
    async with topic.open(resume=saved):
        pass
    # A new partition is listed before its broker leads it: then it is subscribed to again.
    again = f"resubscribing to {topic.name}-1 "
    lines = [line for line in caplog.messages if not line.startswith(again)]
    started, found, stopped, resumed, _ = lines
    assert started == f"{identity} starts with 1 partition: {topic.name}-0 at offset 0"
    assert found == f"found 1 new partition: {topic.name}-1"
    assert stopped.startswith(f"{identity} stopped after ")
    assert " s: 13 records, " in stopped
    assert resumed == (
        f"{identity} resumes from stored positions with 2 partitions: {topic.name}-0 at offset 10, "
        f"{topic.name}-1 at offset 3"
    )


@pytest.mark.fault("A topic or a partition that is named does not exist")
async def test_a_partition_that_does_not_exist_is_refused_by_name(topic: Topic) -> None:
    with pytest.raises(ServiceError, match=rf"no partition {topic.name}-7: .* has 1 partition"):
        async with topic.open(partitions=[f"{topic.name}-0", f"{topic.name}-7"]):
            pass


async def test_a_pattern_means_whole_names_and_no_topic_of_kafka_itself(topic: Topic) -> None:
    longer = await new_topic(topic.broker, name=f"{topic.name}-longer")
    longer.put(1)
    await topic.read(group_id="one-that-makes-consumer-offsets-exist")
    assert (await topic.read(pattern=re.compile(topic.name))).topics.keys() == {topic.name}
    async with topic.open(pattern=".*", stop="latest") as stream:
        splits = stream.statistics().splits
    assert f"{longer.name}-0" in splits
    assert not [split for split in splits if split.startswith("__")]


@pytest.mark.fault("A pattern gains a topic, or matches none yet")
async def test_a_pattern_finds_a_topic_that_is_created_later(topic: Topic) -> None:
    async with topic.reading(pattern=f"{topic.name}(-.*)?", start="latest") as reader:
        topic.put(1)
        await reader.has(1)
        later = await new_topic(topic.broker, name=f"{topic.name}-later")
        later.put(3)
        await reader.has(4)
    assert reader.topics[later.name] == later.log


@pytest.mark.fault("A pattern gains a topic, or matches none yet")
async def test_a_pattern_that_nothing_matches_yet_waits(kafka_broker: KafkaBroker) -> None:
    waiting = await new_topic(kafka_broker)
    name = f"{waiting.name}-later"
    async with waiting.reading(pattern=name) as reader:
        later = await new_topic(kafka_broker, name=name)
        later.put(3)
        await reader.has(3)
    assert reader.log == later.log


@pytest.mark.fault("Partitions are added while a topic is read")
async def test_partitions_that_are_added_are_read_from_their_beginning(topic: Topic) -> None:
    async with topic.reading(start="latest") as reader:
        await asyncio.to_thread(topic.broker.grow_topic, topic.name, 3)
        for partition in (1, 2):
            topic.put(3, partition=partition)
        await reader.has(6)
    assert reader.log == {1: topic.log[1], 2: topic.log[2]}


@pytest.mark.fault("Partitions are added while a topic is read")
async def test_without_discovery_partitions_that_are_added_are_not_read(topic: Topic) -> None:
    async with topic.reading(discovery_interval=None) as reader:
        await reader.has(10)
        await asyncio.to_thread(topic.broker.grow_topic, topic.name, 2)
        topic.put(3, partition=1)
        topic.put(3, partition=0)
        await reader.has(13)
    assert reader.log == {0: topic.log[0]}


@pytest.mark.fault("A topic is added to a stream with stored positions, or left out of it")
async def test_a_topic_that_is_no_longer_chosen_keeps_its_positions_unread(topic: Topic) -> None:
    other = await new_topic(topic.broker)
    other.put(5)
    both = await topic.read(topics=[topic.name, other.name])
    topic.put(2)
    other.put(2)
    alone = await topic.read(resume=both.stream.positions)
    assert alone.topics == {topic.name: {0: topic.log[0][10:]}}
    again = await topic.read(topics=[topic.name, other.name], resume=alone.stream.positions)
    assert again.topics == {other.name: {0: other.log[0][5:]}}


@pytest.mark.fault("A topic is added to a stream with stored positions, or left out of it")
async def test_a_topic_that_is_chosen_later_is_read_from_its_beginning(topic: Topic) -> None:
    other = await new_topic(topic.broker)
    other.put(5)
    alone = await topic.read(start="latest")
    async with topic.reading(
        topics=[topic.name, other.name], start="latest", resume=alone.stream.positions
    ) as reader:
        await reader.has(5)
    assert reader.topics == {other.name: other.log}


@pytest.mark.long
@pytest.mark.fault("A topic is added to a stream with stored positions, or left out of it")
async def test_positions_of_other_topics_alone_are_refused(topic: Topic, tmp_path: Path) -> None:
    other = await new_topic(topic.broker)
    other.put(5)
    alone = await topic.read()
    sentence = f"are of the topics {topic.name}, and of none that is read now: {other.name};"
    for choice in ({"topics": other.name}, {"pattern": other.name}):
        with pytest.raises(PositionError, match=sentence):
            await topic.read(**choice, resume=alone.stream.positions)
    await topic.read(partitions=[f"{topic.name}-0"], resume=alone.stream.positions)
    location = str(tmp_path / "landing")
    for topics in (topic.name, [topic.name, other.name], other.name):
        async with fanout.land(topic.source(topics=topics), location, available_now=True) as landed:
            async for _ in landed:
                pass
    async with fanout.land(topic.source(), str(tmp_path / "one"), available_now=True) as landed:
        assert [entry.rows async for entry in landed] == [10]
    renamed = fanout.land(topic.source(topics=other.name), str(tmp_path / "one"))
    with pytest.raises(CheckpointError, match=f"cannot be continued: .*{sentence}"):
        await renamed.__aenter__()


@pytest.mark.fault("Stored positions meet another cluster")
async def test_positions_of_another_cluster_are_refused(topic: Topic) -> None:
    positions = Checkpoint("kafka:another").to_json()
    with pytest.raises(PositionError, match="belong to kafka:another"):
        await topic.read(resume=positions)


@pytest.mark.fault("Records expire before they are read, also those of the very first position")
async def test_records_that_expire_before_they_are_read_fail_the_stream(topic: Topic) -> None:
    origin = await fanout.resolve_start(topic.source())
    await asyncio.to_thread(topic.broker.delete_records, topic.name, 0, 4)
    async with topic.reading(resume=origin) as reader:
        failure = await reader.failed()
    assert isinstance(failure, SplitFailedError)
    assert "on_data_loss" in str(failure)


@pytest.mark.fault("Records expire before they are read, also those of the very first position")
async def test_records_that_expire_are_a_gap_where_that_is_allowed(topic: Topic) -> None:
    origin = await fanout.resolve_start(topic.source())
    await asyncio.to_thread(topic.broker.delete_records, topic.name, 0, 4)
    async with topic.reading(resume=origin, on_data_loss="earliest") as reader:
        await reader.has(6)
        assert reader.stream.statistics().gaps == 1
    assert reader.offsets == [4, 5, 6, 7, 8, 9]
    (gap,) = reader.batches[0].gaps
    assert (gap.after, gap.until) == (fanout.Cursor(-1), fanout.Cursor(3))


@pytest.mark.fault("A topic is deleted: an error")
async def test_a_topic_that_is_deleted_fails_the_stream(topic: Topic) -> None:
    async with topic.reading() as reader:
        await reader.has(10)
        await asyncio.to_thread(topic.broker.delete_topic, topic.name)
        assert isinstance(await reader.failed(), SplitFailedError)


@pytest.mark.fault("A topic is deleted: an error")
async def test_the_others_go_on_when_a_topic_is_deleted_where_that_is_allowed(topic: Topic) -> None:
    other = await new_topic(topic.broker)
    chosen = [topic.name, other.name]
    async with topic.reading(topics=chosen, on_data_loss="earliest") as reader:
        await reader.has(10)
        await asyncio.to_thread(topic.broker.delete_topic, topic.name)
        await reader.until(lambda: reader.causes)
        other.put(5)
        await reader.has(15)
    assert reader.topics[other.name] == other.log


@pytest.mark.fault("A topic is deleted and created again, and ends before the position")
async def test_a_smaller_topic_of_the_same_name_fails_the_stream(topic: Topic) -> None:
    first = await topic.read()
    again = await asyncio.to_thread(_replace, topic, 4)
    async with again.reading(resume=first.stream.positions) as reader:
        failure = await reader.failed()
    assert isinstance(failure, SplitFailedError)
    assert "on_data_loss" in str(failure)


@pytest.mark.long
@pytest.mark.fault("A topic is deleted and created again, and ends before the position")
async def test_a_smaller_topic_of_the_same_name_is_read_once_where_that_is_allowed(
    topic: Topic,
) -> None:
    first = await topic.read()
    again = await asyncio.to_thread(_replace, topic, 4)
    async with again.reading(resume=first.stream.positions, on_data_loss="earliest") as reader:
        await reader.has(4)
        assert reader.log == again.log
        positions = reader.stream.positions
    again.put(2)
    third = await again.read(resume=positions)
    assert third.offsets == [4, 5]


@pytest.mark.fault("A topic is deleted and created again, and ends before the position")
@pytest.mark.long
async def test_what_is_available_now_of_a_smaller_topic_of_the_same_name_is_not_taken_for_read(
    topic: Topic,
) -> None:
    first = await topic.read()
    again = await asyncio.to_thread(_replace, topic, 4)
    with pytest.raises(SplitFailedError, match="on_data_loss"):
        await again.read(resume=first.stream.positions)
    second = await again.read(resume=first.stream.positions, on_data_loss="earliest")
    assert second.log == again.log
    again.put(2)
    assert (await again.read(resume=second.stream.positions)).offsets == [4, 5]


@pytest.mark.long
async def test_a_bounded_read_takes_a_deleted_topic_for_lost_and_a_later_one_reads_what_comes_back(
    topic: Topic,
) -> None:
    chosen = {"pattern": f"{topic.name}(-other)?"}
    await new_topic(topic.broker, name=f"{topic.name}-other")
    first = await topic.read(**chosen)
    await asyncio.to_thread(topic.broker.delete_topic, topic.name)
    with pytest.raises(SplitFailedError, match="was deleted"):
        await topic.read(resume=first.stream.positions, **chosen)
    second = await topic.read(resume=first.stream.positions, on_data_loss="earliest", **chosen)
    assert second.count == 0
    again = await new_topic(topic.broker, name=topic.name)
    again.put(20)
    third = await again.read(resume=second.stream.positions, **chosen)
    assert third.log == again.log


async def test_a_topic_that_came_back_empty_is_read_from_its_beginning_by_later_runs(
    topic: Topic,
) -> None:
    first = await topic.read()
    again = await asyncio.to_thread(_replace, topic, 0)
    second = await again.read(resume=first.stream.positions, on_data_loss="earliest")
    assert second.count == 0
    again.put(20)
    assert (await again.read(resume=second.stream.positions)).log == again.log


@pytest.mark.parametrize("allowed", [False, pytest.param(True, marks=pytest.mark.long)])
async def test_a_larger_topic_of_the_same_name_is_told_while_it_is_read(
    topic: Topic, *, allowed: bool
) -> None:
    loss = {"on_data_loss": "earliest"} if allowed else {}
    seconds = KAFKA_INTERVALS.current.loss_confirmed_after
    # Between the two topics there is none for a while: that alone is not to be the loss, however
    # long it takes.
    meanwhile = seconds if allowed else PATIENCE
    intervals = replace(KAFKA_INTERVALS.current, loss_confirmed_after=meanwhile)
    with KAFKA_INTERVALS.replaced(intervals):
        async with topic.reading(**loss) as reader:
            await reader.has(10)
            again = await asyncio.to_thread(_replace, topic, 20)
            object.__setattr__(intervals, "loss_confirmed_after", seconds)
            if allowed:
                await reader.has(30)
                assert reader.log[0][10:] == again.log[0]
            else:
                failure = await reader.failed()
                assert "was deleted and created anew" in str(failure)
                assert reader.count == 10


LATER = "A topic is deleted and created again between two runs, however many records it has then"


@pytest.mark.fault(LATER)
@pytest.mark.parametrize("count", [pytest.param(20, marks=pytest.mark.long), 10])
async def test_a_topic_that_was_created_again_between_two_runs_is_told_by_its_id(
    topic: Topic, count: int
) -> None:
    first = await topic.read()
    again = await asyncio.to_thread(_replace, topic, count)
    with pytest.raises(SplitFailedError, match=r"was deleted and created anew.*on_data_loss"):
        await again.read(resume=first.stream.positions)
    second = await again.read(resume=first.stream.positions, on_data_loss="earliest")
    assert second.log == again.log
    again.put(2)
    assert (await again.read(resume=second.stream.positions)).offsets == [count, count + 1]


@pytest.mark.fault(LATER)
async def test_a_start_that_was_resolved_knows_the_topic(topic: Topic) -> None:
    origin = await fanout.resolve_start(topic.source(start="latest"))
    again = await asyncio.to_thread(_replace, topic, 20)
    with pytest.raises(SplitFailedError, match="was deleted and created anew"):
        await again.read(resume=origin)


async def test_positions_without_an_id_go_on_as_they_did_and_have_one_then(topic: Topic) -> None:
    stored = Checkpoint.from_json((await topic.read()).stream.positions)
    assert "id " in stored.to_json()
    (state,) = stored.splits.values()
    assert isinstance(state.position, fanout.Cursor)
    bare = replace(state, position=replace(state.position, state=""))
    again = await asyncio.to_thread(_replace, topic, 20)
    old = replace(stored, splits={bare.split.id: bare}).to_json()
    second = await again.read(resume=old)
    assert second.log[0] == again.log[0][10:]
    await asyncio.to_thread(_replace, topic, 30)
    with pytest.raises(SplitFailedError, match="was deleted and created anew"):
        await again.read(resume=second.stream.positions)


@pytest.mark.fault(LATER)
@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.long)])
async def test_a_landing_tells_a_topic_that_was_created_again_between_two_runs(
    topic: Topic, tmp_path: Path, processes: int
) -> None:
    async def landed(source: KafkaSource) -> int:
        opening = fanout.land(source, str(tmp_path), available_now=True, processes=processes)
        async with opening as landing:
            return sum([entry.rows async for entry in landing])

    assert await landed(topic.source()) == 10
    again = await asyncio.to_thread(_replace, topic, 20)
    with pytest.raises(SplitFailedError, match="was deleted and created anew"):
        await landed(again.source())
    assert await landed(again.source(on_data_loss="earliest")) == 20
    again.put(3)
    assert await landed(again.source()) == 3


@pytest.mark.fault("A topic is deleted and created again, and ends before the position")
@pytest.mark.long
async def test_a_topic_that_comes_back_is_read_from_its_beginning(topic: Topic) -> None:
    async with topic.reading(on_data_loss="earliest") as reader:
        await reader.has(10)
        await asyncio.to_thread(topic.broker.delete_topic, topic.name)
        await reader.until(lambda: len(reader.causes) > 8)
        again = await new_topic(topic.broker, name=topic.name)
        again.put(20)
        await reader.has(30)
    assert reader.log[0][10:] == again.log[0]


def _replace(topic: Topic, count: int) -> Topic:
    topic.broker.delete_topic(topic.name)
    again = Topic(topic.broker, name=topic.name)
    again.put(count)
    return again
