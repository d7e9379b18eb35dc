from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from fanout.errors import AcknowledgementError, FanOutError, ServiceError
from tests.support.kafka.sharing import (
    BRIEF,
    LONG,
    SHORT,
    deliveries,
    first,
    lent,
    locks,
    new_group,
    nothing_comes,
    offsets,
    take,
    until,
    where,
)
from tests.support.kafka.topics import transactional
from tests.support.patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    import fanout
    from fanout.testing.kafka.broker import KafkaBroker
    from tests.support.kafka.sharing import Group


async def test_two_groups_get_every_record_of_one_topic(kafka_broker: KafkaBroker) -> None:
    group = await new_group(kafka_broker, 400, partitions=2)
    async with group.open() as one, group.open(group_id=f"{group.id}-other") as other:
        seen = await asyncio.gather(take(one, 400), take(other, 400))
    assert [counted.keys() for counted in seen] == [group.written, group.written]


@pytest.mark.long
@pytest.mark.parametrize(
    ("level", "expected"), [("read_committed", [0, 4]), ("read_uncommitted", [0, 2, 4])]
)
async def test_what_was_aborted_is_delivered_as_the_group_wants_it(
    kafka_broker: KafkaBroker, level: str, expected: list[int]
) -> None:
    group = await new_group(kafka_broker)
    writer = await asyncio.to_thread(transactional, kafka_broker, group.id)
    for commit in (True, False, True):  # a record and a marker each
        await asyncio.to_thread(group.topic.transaction, writer, 1, commit=commit)
    async with group.open(group_settings=LONG | {"share.isolation.level": level}) as stream:
        seen = await take(stream, len(expected))
        assert sorted(offset for _, offset in seen) == expected
        assert await nothing_comes(stream, 0.3)


async def test_a_topic_that_is_deleted_ends_the_stream(kafka_broker: KafkaBroker) -> None:
    group = await new_group(kafka_broker, 3)
    async with group.open(discovery_interval=0.02) as stream:
        await stream.acknowledge(await first(stream))
        await asyncio.to_thread(kafka_broker.delete_topic, group.topic.name)
        with pytest.raises(ServiceError, match=f"the topic {group.topic.name} is gone"):
            await first(stream)


@pytest.mark.long
async def test_members_that_come_and_go_lose_nothing(kafka_broker: KafkaBroker) -> None:
    group = await new_group(kafka_broker, partitions=4)
    for partition in range(4):
        # A poll takes whole batches of a producer: of larger ones, members that have stopped
        # reading would hold all that is left.
        await group.put(1000, partition=partition, batch_num_messages=100)
    seen: Counter[tuple[int, int]] = Counter()

    async def read(stream: fanout.FanOut, count: int) -> None:
        while len(seen) < count:
            batch = await first(stream)
            seen.update(where(batch))
            await stream.acknowledge(batch)

    async with group.open(consumers=2, max_poll_records=100) as stream:
        await read(stream, 500)
        async with group.open(consumers=3, max_poll_records=100) as other, asyncio.TaskGroup() as t:
            t.create_task(read(stream, 2000))
            t.create_task(read(other, 2000))
        await read(stream, 4000)
    assert seen.keys() == group.written
    # Batches that wait in a stream when it is closed were not counted, and come again.
    assert max(seen.values()) == 1


@pytest.mark.long
async def test_a_broker_that_is_killed_and_restarted_loses_nothing(
    start_kafka_broker: Callable[..., KafkaBroker],
) -> None:
    broker = await asyncio.to_thread(start_kafka_broker)
    group = await new_group(broker, 400, partitions=2)
    seen: Counter[tuple[int, int]] = Counter()
    other = await new_group(broker, 3)
    waits = {"fetch.max.wait.ms": 29_000}  # the broker's response may wait as long
    async with (
        group.open(consumers=2, max_poll_records=50) as stream,
        other.open(max_poll_records=3, consumer_options=waits) as quiet,
    ):
        held = await first(stream)
        waiting = asyncio.create_task(quiet.acknowledge(await first(quiet)))
        await until(quiet, lambda counts: counts.pending_records == 0)
        await asyncio.to_thread(broker.kill)
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(AcknowledgementError, match="without the service's confirmation"):
                await waiting
            with pytest.raises(AcknowledgementError, match="without the service's confirmation"):
                await stream.acknowledge(held)
        await asyncio.to_thread(broker.restart)
        async with asyncio.timeout(PATIENCE):
            while seen.keys() != group.written:
                batch = await anext(stream)
                seen.update(where(batch))
                try:
                    await stream.acknowledge(batch)
                except AcknowledgementError:
                    seen -= Counter(where(batch))


async def hold_past_the_lock(group: Group, stream: fanout.FanOut) -> fanout.Batch:
    """Take a batch, and wait until its records are locked by another delivery."""
    batch = await first(stream)
    await until(stream, lambda counts: counts.repeated >= batch.num_records)
    assert lent(stream).expired >= batch.num_records
    assert group.written == set(where(batch))
    return batch


async def test_what_a_lock_could_not_hold_is_delivered_once_to_who_remembers(
    kafka_broker: KafkaBroker,
) -> None:
    group = await new_group(kafka_broker, 5)
    async with group.open(group_settings=BRIEF) as stream:
        locks(stream).remember("")
        batch = await hold_past_the_lock(group, stream)
        unconfirmed = locks(stream).unconfirmed({batch.split.id: batch.range.until})
        assert f'"{group.topic.name}"' in unconfirmed
        assert await nothing_comes(stream, 0.2)
        assert lent(stream).accepted == 0  # they are not acknowledged yet
        with pytest.raises(AcknowledgementError):
            await stream.acknowledge(batch)
        # They are accepted when they come again, and are confirmed then.
        await until(stream, lambda counts: counts.accepted == 5)
        assert lent(stream).unconfirmed == 0
        assert f'"{group.topic.name}"' not in locks(stream).unconfirmed({})
    async with group.open(group_settings=BRIEF) as stream:
        assert await nothing_comes(stream, 1.5)


async def test_what_an_earlier_run_made_safe_is_accepted_and_not_delivered(
    kafka_broker: KafkaBroker,
) -> None:
    group = await new_group(kafka_broker, 6)
    async with group.open() as stream:
        locks(stream).remember("")
        drained = await stream.drain(max_records=4, first_wait=math.inf)
        splits = {id_: state.position for id_, state in drained.positions.splits.items()}
        unconfirmed = locks(stream).unconfirmed(splits)
    async with group.open() as stream:
        locks(stream).remember(unconfirmed)
        assert lent(stream).unconfirmed == 4
        batch = await first(stream)
        assert (offsets(batch), deliveries(batch)) == ([4, 5], {2})
        await stream.acknowledge(batch)
        assert (lent(stream).repeated, lent(stream).accepted, lent(stream).unconfirmed) == (4, 6, 0)


async def test_unconfirmed_deliveries_that_the_group_is_done_with_are_dropped(
    kafka_broker: KafkaBroker,
) -> None:
    group = await new_group(kafka_broker, 6)
    async with group.open() as stream:
        batch = await first(stream)
        unconfirmed = locks(stream).unconfirmed({batch.split.id: batch.range.until})
        await stream.acknowledge(batch)
        # The group stores its start offset with its next acknowledgement.
        await group.put(1)
        await stream.acknowledge(await first(stream))
    async with group.open() as stream:
        locks(stream).remember(unconfirmed)
        assert lent(stream).unconfirmed == 0


async def test_what_is_known_of_a_topic_is_not_taken_for_another_one_of_its_name(
    kafka_broker: KafkaBroker,
) -> None:
    group = await new_group(kafka_broker, 4)
    async with group.open() as stream:
        locks(stream).remember("")
        batch = await first(stream)
        unconfirmed = locks(stream).unconfirmed({batch.split.id: batch.range.until})
        await stream.acknowledge(batch)
        await asyncio.to_thread(kafka_broker.delete_topic, group.topic.name)
        # Offsets 0 to 3 were confirmed a moment ago, and belong to other records now.
        await new_group(kafka_broker, 4, name=group.topic.name)
        assert offsets(await first(stream)) == [0, 1, 2, 3]
        assert lent(stream).repeated == 0
    async with group.open() as stream:
        locks(stream).remember(unconfirmed)
        assert lent(stream).unconfirmed == 0
        assert offsets(await first(stream)) == [0, 1, 2, 3]


@pytest.mark.long
async def test_a_pause_asks_for_nothing_and_costs_no_delivery(kafka_broker: KafkaBroker) -> None:
    group = await new_group(kafka_broker)
    async with group.open(consumers=8) as stream:
        assert await nothing_comes(stream, 2.0)
        locks(stream).pause()
        # A fetch of each member is under way: more fetches than the group allows deliveries.
        await group.put(3)
        batch, polls = await first(stream), 1
        with suppress(TimeoutError):
            while True:
                assert deliveries(batch) == {1}
                await stream.acknowledge(batch)
                await group.put(1)
                async with asyncio.timeout(10.0):
                    batch = await anext(stream)
                polls += 1
        assert polls <= 8
        assert (lent(stream).pending_records, lent(stream).released) == (0, 0)
        locks(stream).resume()
        assert deliveries(await first(stream)) == {1}


async def test_records_that_waited_in_the_client_past_their_lock_are_given_back(
    kafka_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = await new_group(kafka_broker, 4)
    # Every record is older than that.
    monkeypatch.setattr("fanout.core.lending.acquired._UNTIL_DELIVERY", -1.0)
    async with group.open() as stream:
        await until(stream, lambda counts: counts.acquired == 4)
        monkeypatch.undo()
        batch = await first(stream)
        assert (offsets(batch), deliveries(batch)) == ([0, 1, 2, 3], {2})
        assert lent(stream).released == 4


@pytest.mark.long
async def test_a_process_that_stood_still_does_not_use_up_the_deliveries_of_a_record(
    kafka_broker: KafkaBroker,
) -> None:
    group = await new_group(kafka_broker)
    async with group.open(consumers=6, group_settings=SHORT) as stream:
        assert await nothing_comes(stream, 2.0)  # every member has a fetch under way
        writing = threading.Thread(target=group.topic.put, args=(1,))
        writing.start()
        time.sleep(2.0)  # noqa: ASYNC251 - it blocks the loop
        writing.join()
        assert max(deliveries(await first(stream))) <= 3


async def test_a_member_that_fails_gives_back_what_it_holds_and_joins_again(
    kafka_broker: KafkaBroker,
) -> None:
    group = await new_group(kafka_broker, 4)

    def decode(records: object) -> object:
        if getattr(records, "num_rows", 0):
            raise ValueError("no such record")
        return records

    async with group.open(decode=decode) as stream:
        with pytest.raises(FanOutError, match="decode failed"):
            await first(stream)
    async with group.open() as stream, asyncio.timeout(10):
        assert deliveries(await first(stream)) == {2}


async def test_a_slow_consumer_costs_each_record_one_delivery(kafka_broker: KafkaBroker) -> None:
    """Nothing is polled for a consumer that still works on records whose locks have expired."""
    group = await new_group(kafka_broker, 3)
    async with group.open(group_settings=SHORT) as stream:
        slow = await first(stream)
        await group.lengthen_locks(stream)
        await asyncio.sleep(6.5)  # the locks expire after three seconds
        with pytest.raises(AcknowledgementError):
            await stream.acknowledge(slow)
        again = await first(stream)
        assert (where(again), deliveries(again)) == (where(slow), {2})
        await stream.acknowledge(again)
        counts = lent(stream)
        assert (counts.accepted, counts.expired, counts.refused) == (3, 3, 0)


@pytest.mark.long
async def test_a_consumer_that_is_too_slow_for_its_members_gets_every_record(
    kafka_broker: KafkaBroker,
) -> None:
    """What the other members have waits for too long meanwhile, and each time is a delivery."""
    group = await new_group(kafka_broker)
    for _ in range(12):
        await group.put(1)
    seen = set[tuple[int, int]]()
    async with group.open(group_settings=BRIEF, consumers=4, max_poll_records=1) as stream:
        async with asyncio.timeout(60):
            while seen != group.written:
                batch = await anext(stream)
                seen.update(where(batch))
                await asyncio.sleep(0.8)
                with suppress(AcknowledgementError):
                    await stream.acknowledge(batch)
        assert lent(stream).redelivered


@pytest.mark.parametrize("lock", [3.0, 6.0], ids=["expired", "too little left"])
async def test_what_waited_for_the_consumer_beyond_its_lock_is_not_handed_out(
    kafka_broker: KafkaBroker, lock: float
) -> None:
    group = await new_group(kafka_broker, 1)
    settings = LONG | {"share.record.lock.duration.ms": f"{lock * 1000:.0f}"}
    async with group.open(group_settings=settings) as stream:
        await stream.acknowledge(await first(stream))
        await group.put(1)
        await until(stream, lambda counts: counts.pending_records)
        await asyncio.sleep(4)  # the next batch waits for the consumer
        late = await first(stream)
        assert deliveries(late) == {2}
        await stream.acknowledge(late)
        counts = lent(stream)
        assert (counts.accepted, counts.expired + counts.released, counts.refused) == (2, 1, 0)
