"""Members of one consumer group on a real broker."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer

import fanout
from fanout.errors import OptionError, ServiceError, SplitLostError
from fanout.kafka import Cluster, ConsumerGroup, KafkaShareSource, KafkaSource, ShuffleSource
from fanout.kinesis import KinesisSource
from tests.kafka.group.processes import GUARD, Process, set_session, started, until
from tests.support.kafka.brokers import HERE
from tests.support.kafka.topics import Topic, committed, new_topic, seeded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from fanout.testing.kafka.broker import KafkaBroker

PARTITIONS = 6
_GROUPS = itertools.count(1)


@pytest.fixture
def topic(kafka_broker: KafkaBroker) -> Topic:
    return Topic(kafka_broker, partitions=PARTITIONS)


@pytest.fixture
def group() -> ConsumerGroup:
    """A group of this test alone."""
    return ConsumerGroup(group_id=f"group{next(_GROUPS)}")


@dataclass
class Read:
    """What one member has got, in order."""

    stream: fanout.FanOut
    offsets: list[tuple[str, int]] = field(default_factory=list)

    @property
    def owned(self) -> set[str]:
        return {*self.stream.statistics().splits}


@asynccontextmanager
async def member(topic: Topic, group: ConsumerGroup, **options: Any) -> AsyncIterator[Read]:
    """Read as a member in the background for as long as the block runs, and acknowledge."""
    source = topic.source(**{"start": "earliest"} | options)
    async with fanout.open(source, group=group, random=seeded()) as stream:
        read = Read(stream)

        async def run() -> None:
            async for batch in stream:
                numbers = batch.records.column("offset").to_pylist()
                read.offsets += [(batch.split.id, number) for number in numbers]
                with suppress(SplitLostError):
                    await stream.acknowledge(batch)

        task = asyncio.create_task(run())
        yield read
        stream.stop()
        await task


def put(topic: Topic, count: int, partitions: int = PARTITIONS) -> None:
    for partition in range(partitions):
        topic.put(count, partition=partition)


def everything(topic: Topic) -> list[tuple[str, int]]:
    return sorted(
        (f"{topic.name}-{number}", offset)
        for number, rows in topic.log.items()
        for offset, _ in rows
    )


async def test_members_share_a_topic_and_hand_partitions_over(
    topic: Topic, group: ConsumerGroup
) -> None:
    await asyncio.to_thread(put, topic, 10)
    async with member(topic, group) as first:
        await until(lambda: len(first.offsets) == 10 * PARTITIONS)
        async with member(topic, group) as second, member(topic, group) as third:
            await until(lambda: {len(one.owned) for one in (first, second, third)} == {2})
            assert first.owned | second.owned | third.owned == {
                f"{topic.name}-{n}" for n in range(PARTITIONS)
            }
            kept = first.owned
            await asyncio.to_thread(put, topic, 10)
            read = (first, second, third)
            await until(lambda: sum(len(one.offsets) for one in read) == 20 * PARTITIONS)
        assert kept <= first.owned  # what stays is not interrupted
        await until(lambda: len(first.owned) == PARTITIONS)
        await asyncio.to_thread(put, topic, 10)
        await until(lambda: sum(len(one.offsets) for one in read) == 30 * PARTITIONS)
        found = first.stream.statistics().membership
        assert found is not None
        assert (found.owned, found.handed_over, found.lost) == (PARTITIONS, 4, 0)
    assert sorted(first.offsets + second.offsets + third.offsets) == everything(topic)
    stored = await asyncio.to_thread(committed, topic, group.group_id, PARTITIONS)
    assert stored == dict.fromkeys(range(PARTITIONS), 30)


async def test_what_was_not_acknowledged_comes_to_the_next_member(
    topic: Topic, group: ConsumerGroup
) -> None:
    await asyncio.to_thread(topic.put, 10)
    await asyncio.to_thread(topic.put, 10, partition=1)
    source = topic.source(start="earliest")
    async with fanout.open(source, group=group) as stream:
        async with asyncio.timeout(GUARD):
            first = await anext(stream)
            second = await anext(stream)
        await stream.acknowledge(first)
        assert {first.num_records, second.num_records} == {10}
    async with member(topic, group) as read:
        await until(lambda: len(read.offsets) == 10)
        assert {split for split, _ in read.offsets} == {second.split.id}


async def test_a_reader_that_acknowledges_nothing_holds_nobody_up(
    topic: Topic, group: ConsumerGroup
) -> None:
    await asyncio.to_thread(put, topic, 1)
    group = replace(group, handover_timeout=2.0)
    async with fanout.open(topic.source(start="earliest"), group=group) as stream:
        async with asyncio.timeout(GUARD):
            batches = [await anext(stream) for _ in range(PARTITIONS)]
        async with member(topic, group) as other:
            await until(lambda: len(other.owned) == 3)
            await until(lambda: len(other.offsets) == 3)
            for batch in batches:
                if batch.split.id in other.owned:
                    with pytest.raises(SplitLostError, match=group.group_id):
                        await stream.acknowledge(batch)
                else:
                    await stream.acknowledge(batch)


async def test_a_partition_that_is_added_is_read_from_its_beginning(
    topic: Topic, group: ConsumerGroup
) -> None:
    """Also where the group began at the end, and no member was there when it was added."""
    await asyncio.to_thread(put, topic, 5)
    async with member(topic, group, start="latest") as read:
        await until(lambda: len(read.owned) == PARTITIONS)
    assert read.offsets == []
    await asyncio.to_thread(topic.broker.grow_topic, topic.name, PARTITIONS + 1)
    await asyncio.to_thread(put, topic, 5, PARTITIONS + 1)
    async with member(topic, group, start="latest") as read:
        await until(lambda: len(read.offsets) == 5 * (PARTITIONS + 1))
        added = [number for split, number in read.offsets if split == f"{topic.name}-{PARTITIONS}"]
        assert added == [0, 1, 2, 3, 4]
        # One that is added while a member is there, too.
        await asyncio.to_thread(topic.broker.grow_topic, topic.name, PARTITIONS + 2)
        await asyncio.to_thread(topic.put, 5, partition=PARTITIONS + 1)
        await until(lambda: len(read.offsets) == 5 * (PARTITIONS + 2))


async def test_a_group_begins_at_one_place_whoever_comes_first(
    topic: Topic, group: ConsumerGroup
) -> None:
    """A start at the end is stored before anything is read: what comes next is not skipped."""
    async with member(topic, group, start="latest") as read:
        await until(lambda: len(read.owned) == PARTITIONS)
    await asyncio.to_thread(put, topic, 1)
    async with member(topic, group, start="latest") as read:
        await until(lambda: len(read.offsets) == PARTITIONS)


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
async def test_members_of_another_client_are_in_the_group(
    topic: Topic, group: ConsumerGroup, protocol: str
) -> None:
    options = {
        "bootstrap.servers": topic.broker.bootstrap_servers,
        "group.id": group.group_id,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "log_level": 0,
    }
    found: list[tuple[str, int]] = []
    ends = asyncio.Event()

    async def other() -> None:
        consumer = Consumer(options)
        consumer.subscribe([topic.name])
        while not ends.is_set():
            message = await asyncio.to_thread(consumer.poll, 0.1)
            if message is not None and message.error() is None:
                found.append((f"{topic.name}-{message.partition()}", message.offset() or 0))
                await asyncio.to_thread(consumer.commit, message=message, asynchronous=False)
        await asyncio.to_thread(consumer.close)

    async with member(topic, group) as ours:
        await until(lambda: len(ours.owned) == PARTITIONS)
        theirs = asyncio.create_task(other())
        await until(lambda: len(ours.owned) == PARTITIONS // 2)
        await asyncio.to_thread(put, topic, 10)
        await until(lambda: len(ours.offsets) + len(found) == 10 * PARTITIONS)
        assert len(found) == 10 * PARTITIONS // 2
        ends.set()
        await theirs
        await until(lambda: len(ours.owned) == PARTITIONS)
    assert sorted(ours.offsets + found) == everything(topic)


async def test_a_static_member_finds_its_partitions_again(
    topic: Topic, group: ConsumerGroup
) -> None:
    name = group.group_id
    one, two = (ConsumerGroup(group_id=name, instance_id=id_) for id_ in ("1", "2"))
    async with member(topic, one) as first:
        async with member(topic, two) as second:
            await until(lambda: len(first.owned) == len(second.owned) == 3)
            had = second.owned
        assert len(first.owned) == 3
        async with member(topic, two) as second:
            await until(lambda: second.owned == had)
            found = first.stream.statistics().membership
            assert found is not None
            assert found.handed_over == 3  # when the second came first


async def test_two_processes_with_one_instance_id_are_told(
    topic: Topic, group: ConsumerGroup
) -> None:
    # The refusal comes after more than a session, and the first member has to keep its own.
    await asyncio.to_thread(set_session, topic.broker, group.group_id, 6.0)
    static = ConsumerGroup(group_id=group.group_id, instance_id="1")
    async with member(topic, static) as first:
        await until(lambda: len(first.owned) == PARTITIONS)
        async with fanout.open(topic.source(), group=static) as stream:
            with pytest.raises(ServiceError, match="has the instance_id='1'; give each process"):
                async with asyncio.timeout(GUARD):
                    await anext(stream)


@pytest.mark.long
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_member_that_is_gone_loses_its_partitions(
    topic: Topic, group: ConsumerGroup, fault: signal.Signals
) -> None:
    await asyncio.to_thread(set_session, topic.broker, group.group_id)
    async with process(topic, group) as first, process(topic, group) as second:
        await asyncio.to_thread(put, topic, 5)
        await while_written(topic, lambda: owners(first, second) == {3})
        splits = last_owned(first, second)
        os.kill(first.process.pid, fault)
        stopped = asyncio.get_running_loop().time()
        await while_written(
            topic, lambda: splits <= {s["split"] for s in second.said if s["time"] > stopped}
        )
        with suppress(ProcessLookupError):
            first.process.send_signal(signal.SIGCONT)
        await asyncio.sleep(1)
        await asyncio.to_thread(put, topic, 1)
        wanted = set(everything(topic))
        await until(lambda: {*first.got, *second.got} == wanted)
    repeated = len(first.got) + len(second.got) - len(wanted)
    # What came before the end and is not stored yet: a batch of each partition at the most.
    last = {s["split"]: len(s["offsets"]) for s in first.said if s["time"] <= stopped}
    assert repeated <= sum(last[split] for split in splits)
    check_alone(first, second)


@pytest.mark.long
async def test_a_member_that_blocks_its_loop_hears_at_its_acknowledgement_what_it_has_lost(
    topic: Topic, group: ConsumerGroup
) -> None:
    await asyncio.to_thread(set_session, topic.broker, group.group_id)
    await asyncio.to_thread(put, topic, 5)
    async with process(topic, group, "blocks") as first:
        await until(lambda: first.said)
        held = first.said[0]
        async with process(topic, group) as second:
            await until(lambda: len(set(second.got)) == 5 * PARTITIONS)
            first.tell()
            await until(lambda: held | {"lost": True} in first.said)


def process(
    topic: Topic, group: ConsumerGroup, *options: str
) -> AbstractAsyncContextManager[Process]:
    servers = topic.broker.bootstrap_servers
    return started("reader", servers, topic.name, group.group_id, *options)


async def while_written(topic: Topic, fact: Callable[[], bool]) -> None:
    """Write records until something is true."""
    async with asyncio.timeout(GUARD):
        while not fact():
            await asyncio.to_thread(put, topic, 1)
            await asyncio.sleep(0.3)


def last_owned(one: Process, *others: Process) -> set[str]:
    """Return the partitions of which a process has got the newest records."""
    newest: dict[str, tuple[float, Process]] = {}
    for each in (one, *others):
        for said in each.said:
            newest[said["split"]] = max(
                (said["time"], each), newest.get(said["split"], (0.0, each)), key=lambda one: one[0]
            )
    return {split for split, (_, owner) in newest.items() if owner is one}


def owners(first: Process, second: Process) -> set[int]:
    return {len(last_owned(first, second)), len(last_owned(second, first))}


def check_alone(*members: Process) -> None:
    """Check that within each partition no member goes on where another one has begun."""
    for split in {said["split"] for one in members for said in one.said}:
        turns = sorted(
            (said["time"], said["offsets"])
            for one in members
            for said in one.said
            if said["split"] == split and "lost" not in said
        )
        for (_, before), (_, after) in itertools.pairwise(turns):
            # The batch that was not acknowledged comes again, and nothing older.
            assert after[0] >= before[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"partitions": []}, "partitions and a group cannot be used together"),
        ({"group_id": "g"}, "commits without members"),
        ({"pattern": "o.*", "start": "latest"}, "would skip records"),
        ({"stop": "latest"}, "a group reads without an end"),
    ],
)
async def test_what_the_group_decides_is_refused(
    topic: Topic, group: ConsumerGroup, options: dict[str, Any], words: str
) -> None:
    if "partitions" in options:
        options = {"partitions": [f"{topic.name}-0"]}
    with pytest.raises(OptionError, match=words):
        async with fanout.open(topic.source(**options), group=group):
            raise AssertionError("it is open")


@pytest.mark.parametrize(
    "source",
    [
        KinesisSource(stream="orders", consumer="app", region="eu-central-1"),
        ShuffleSource(
            KafkaSource(cluster=Cluster("127.0.0.1:9092", security=HERE), topics="orders")
        ),
    ],
)
async def test_other_sources_have_no_consumer_group(group: ConsumerGroup, source: Any) -> None:
    joining: Any = group.join(source, None, None)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=rf"of a KafkaSource, not of a {type(source).__name__}"):
        async with joining:
            raise AssertionError("it is open")


async def test_a_share_group_needs_no_other_group(topic: Topic, group: ConsumerGroup) -> None:
    cluster = Cluster(topic.broker.bootstrap_servers, security=HERE)
    source = KafkaShareSource(
        cluster=cluster, topics=topic.name, group_id=f"{group.group_id}-share"
    )
    with pytest.raises(OptionError, match="by itself, to as many processes as open it"):
        async with fanout.open(source, group=group):
            raise AssertionError("it is open")


async def test_members_share_several_topics(topic: Topic, group: ConsumerGroup) -> None:
    other = await new_topic(topic.broker, partitions=2)
    await asyncio.to_thread(put, topic, 3)
    await asyncio.to_thread(put, other, 3, 2)
    both = {"topics": [topic.name, other.name]}
    async with member(topic, group, **both) as first, member(topic, group, **both) as second:
        await until(lambda: len(first.owned) == len(second.owned) == (PARTITIONS + 2) // 2)
        await until(lambda: len(first.offsets) + len(second.offsets) >= 3 * (PARTITIONS + 2))
    assert sorted(first.offsets + second.offsets) == sorted(everything(topic) + everything(other))


@pytest.mark.parametrize(
    "options",
    [
        {"group_id": ""},
        {"group_id": 5},
        {"group_id": "g", "instance_id": 5},
        {"group_id": "g", "handover_timeout": 0},
    ],
)
def test_options_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        ConsumerGroup(**options)
