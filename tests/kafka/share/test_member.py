"""The behaviour of librdkafka's share consumer that fanout depends on, and how a member uses it."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, cast

import pytest
from confluent_kafka import (
    AcknowledgeType,
    IllegalStateException,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from fanout.core.lending.seam import Settlement
from fanout.errors import MalformedEventError
from fanout.kafka.partitions import Partition
from fanout.kafka.share.member import open_member
from tests.support.kafka.sharing import BRIEF, LONG, SHORT, first, new_group, offsets
from tests.support.kafka.topics import PLAINTEXT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractAsyncContextManager

    from fanout.kafka.share.member import Member
    from fanout.kafka.share.offset_ranges import OffsetRange
    from fanout.kafka.share.poll_columns import PolledRecords
    from fanout.testing.kafka.broker import KafkaBroker
    from tests.support.kafka.sharing import Group

    Word = tuple[int, int, KafkaException | None]

ACCEPT = Settlement.ACCEPT


async def set_up(group: Group, settings: dict[str, str]) -> None:
    async with group.source(group_settings=settings).connect():
        pass


def join(group: Group, **options: Any) -> AbstractAsyncContextManager[Member]:
    properties = group.source(**options).client_properties(0, PLAINTEXT)
    return open_member(properties, [group.topic.name], "a member")


def ranges(group: Group, begin: int, end: int) -> list[OffsetRange]:
    return [(Partition(group.topic.name, 0), begin, end)]


async def poll(member: Member) -> PolledRecords:
    async with asyncio.timeout(20):
        while (polled := await member.poll()) is None:
            pass
    return polled


async def test_records_may_be_as_old_as_the_last_poll_that_brought_none(
    kafka_broker: KafkaBroker,
) -> None:
    group = await new_group(kafka_broker, 1)
    await set_up(group, SHORT)
    async with join(group) as member:
        await poll(member)
        await member.acknowledge(ranges(group, 0, 1), ACCEPT)
        assert not member.fetching
        assert await member.poll() is None
        assert member.fetching
        before = time.monotonic()
        await group.put(3)
        async with group.open(group_settings=None) as stream:
            # The member's client holds the records until their locks expire.
            batch = await first(stream)
            assert batch.records.column("deliveryCount").to_pylist() == [2, 2, 2]
            await stream.acknowledge(batch)
        polled = await poll(member)
        # They are delivered once more, and the broker would confirm their acknowledgement.
        assert polled.records.column("offset").to_pylist() == [1, 2, 3]
        assert polled.acquired_after <= before
        assert await member.acknowledge(ranges(group, 1, 2), ACCEPT) == {}


class Scripted:
    """A client with a clock of its own, scripted polls and scripted responses."""

    def __init__(self, *polls: tuple[float, list[Message]], words: Iterable[Word] = ()) -> None:
        self.now = 0.0
        self.released: list[int | None] = []
        self._polls = iter(polls)
        self._words = iter(words)
        self._on_response: Callable[..., None] = self.do_nothing

    def __call__(self, _: object) -> Scripted:
        return self

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def poll(self, _: float) -> list[Message]:
        seconds, messages = next(self._polls)
        self.now += seconds
        return messages

    def acknowledge(self, message: Message, kind: AcknowledgeType) -> None:
        assert kind is AcknowledgeType.RELEASE
        self.released.append(message.offset())

    def set_acknowledgement_commit_callback(self, on_response: Callable[..., None]) -> None:
        self._on_response = on_response

    def commit_async(self) -> None:
        self.now += 0.1
        for number, offset, error in itertools.islice(self._words, 1):
            self._on_response({TopicPartition("orders", number): {offset}}, error)

    def do_nothing(self, *_: object) -> None:
        pass

    acknowledge_offset = close = commit_sync = subscribe = do_nothing

    def join(self, monkeypatch: pytest.MonkeyPatch) -> AbstractAsyncContextManager[Member]:
        monkeypatch.setattr("fanout.kafka.share.consumer.time", self)
        monkeypatch.setattr("fanout.kafka.share.consumer.ShareConsumer", self)
        monkeypatch.setattr(
            "fanout.kafka.share.consumer.to_columns", lambda _, acquired_after: acquired_after
        )
        config = {"socket.timeout.ms": 1000, "max.poll.records": 2}
        return open_member(config, ["orders"], "a member")


async def test_records_may_be_as_old_as_a_poll_in_which_the_process_stood_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Scripted((0.2, []), (30.0, []), (0.1, [Message()]))
    async with client.join(monkeypatch) as member:
        polled: list[Any] = [await member.poll() for _ in range(3)]
    assert polled == [None, None, 0.2]


async def test_a_poll_with_a_record_that_the_client_cannot_read_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bad = Message(topic="orders", partition=1, offset=8, error=KafkaError(KafkaError._BAD_MSG))
    client = Scripted((0.0, [Message(topic="orders", partition=1, offset=7), bad]))
    async with client.join(monkeypatch) as member:
        with pytest.raises(MalformedEventError, match="orders-1 offset 8: Local: Bad message"):
            await member.poll()
    assert client.released == [7, 8]


async def test_the_word_for_a_partition_is_told_from_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    no = KafkaException(KafkaError(KafkaError.INVALID_RECORD_STATE))
    records = [Message(topic="orders", partition=number, offset=4) for number in range(2)]
    # The first is for an abandoned acknowledgement, the second for the other partition.
    words: list[Word] = [(0, 3, no), (1, 4, no), (0, 4, None)]
    client = Scripted((0.0, records), (0.0, []), words=words)
    async with client.join(monkeypatch) as member:
        await member.poll()
        response = member.acknowledge(
            [(Partition("orders", 0), 4, 5), (Partition("orders", 1), 4, 5)], ACCEPT
        )
        assert await member.poll() is None
        assert await response == {Partition("orders", 1): no}


async def test_an_answer_that_was_not_even_sent_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    no_leader = KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
    words: list[Word] = [(0, 0, no_leader), (1, 0, None)]
    client = Scripted((0.0, [Message(topic="orders", partition=0, offset=0)]), words=words)
    async with client.join(monkeypatch) as member:
        await member.poll()
        response = member.acknowledge(
            [(Partition("orders", 0), 0, 1), (Partition("orders", 1), 0, 1)], ACCEPT
        )
        assert await response == {Partition("orders", 0): no_leader}


async def test_an_answer_that_the_broker_says_nothing_to_is_refused_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records = [Message(topic="orders", partition=0, offset=offset) for offset in range(2)]
    client = Scripted((0.0, records), (0.0, []), words=itertools.repeat((1, 0, None)))
    async with client.join(monkeypatch) as member:
        await member.poll()
        response = member.acknowledge([(Partition("orders", 0), 0, 2)], ACCEPT)
        assert await member.poll() is None
        assert isinstance((await response)[Partition("orders", 0)], TimeoutError)


@pytest.mark.fault("ShareAcknowledge")
async def test_records_do_not_wait_for_the_word_about_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records = [Message(topic="orders", partition=0, offset=offset) for offset in range(2)]
    client = Scripted(
        (0.0, records), (0.1, records), (0.2, []), words=itertools.repeat((1, 0, None))
    )
    monkeypatch.setattr(client, "commit_async", client.do_nothing)
    async with client.join(monkeypatch) as member:
        await member.poll()
        response = member.acknowledge([(Partition("orders", 0), 0, 2)], ACCEPT)
        assert member.polls_ahead
        assert cast("Any", await member.poll()) == 0.0
        assert client.now == 0.1
        assert not member.polls_ahead
        assert not response.done()
        client.now = 1.5
        assert isinstance((await response)[Partition("orders", 0)], TimeoutError)
        assert member.polls_ahead


async def test_a_client_that_cannot_commit_is_told_to_whoever_acknowledges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = KafkaException(KafkaError(KafkaError._STATE))

    def fail() -> None:
        raise broken

    client = Scripted((0.0, [Message(topic="orders", partition=0, offset=0)]))
    monkeypatch.setattr(client, "commit_async", fail)
    async with client.join(monkeypatch) as member:
        await member.poll()
        response = member.acknowledge([(Partition("orders", 0), 0, 1)], ACCEPT)
        assert await response == {Partition("orders", 0): broken}


async def test_a_member_that_leaves_sends_its_answers_and_then_no_more(
    kafka_broker: KafkaBroker,
) -> None:
    group = await new_group(kafka_broker, 2)
    await set_up(group, LONG)
    async with join(group) as member:
        await poll(member)
        response = member.acknowledge(ranges(group, 0, 1), ACCEPT)
    async with asyncio.timeout(20):
        assert await response == {}
        errors = await member.acknowledge(ranges(group, 1, 2), ACCEPT)
    assert "has left its group" in str(errors[Partition(group.topic.name, 0)])


async def test_records_are_answered_for_once(kafka_broker: KafkaBroker) -> None:
    group = await new_group(kafka_broker, 2)
    await set_up(group, LONG)
    async with join(group) as member:
        await poll(member)
        assert await member.acknowledge(ranges(group, 0, 1), ACCEPT) == {}
        errors = await member.acknowledge(ranges(group, 0, 1), ACCEPT)
        assert isinstance(errors[Partition(group.topic.name, 0)], IllegalStateException)
        with pytest.raises(IllegalStateException):
            await member.poll()
        assert await member.acknowledge(ranges(group, 1, 2), Settlement.RELEASE) == {}
        assert (await poll(member)).records.column("offset").to_pylist() == [1]


async def test_an_answer_goes_with_a_poll_where_there_is_more(kafka_broker: KafkaBroker) -> None:
    group = await new_group(kafka_broker, 2)
    await group.put(2)
    await set_up(group, LONG)
    async with join(group, max_poll_records=2) as member:
        await poll(member)
        response = member.acknowledge(ranges(group, 0, 2), ACCEPT)
        # It cannot poll while a record is unacknowledged.
        polled = await member.poll()
        assert polled is not None
        assert polled.offsets.tolist() == [2, 3]
        assert await response == {}
    async with group.open() as stream:
        assert offsets(await first(stream)) == [2, 3]


async def test_an_answer_is_told_at_once_without_a_poll(kafka_broker: KafkaBroker) -> None:
    group = await new_group(kafka_broker, 2)
    await set_up(group, LONG)
    async with join(group, consumer_options={"fetch.max.wait.ms": 29_000}) as member:
        await poll(member)
        assert not member.polls_ahead
        async with asyncio.timeout(15):
            assert await member.acknowledge(ranges(group, 0, 2), ACCEPT) == {}


async def test_an_answer_is_told_although_nothing_more_comes(kafka_broker: KafkaBroker) -> None:
    group = await new_group(kafka_broker, 2)
    await set_up(group, LONG)
    async with join(group, max_poll_records=2) as member, asyncio.timeout(20):
        await poll(member)
        response = member.acknowledge(ranges(group, 0, 2), ACCEPT)
        assert await member.poll() is None
        assert await response == {}


async def test_a_refusal_comes_with_a_poll_as_well(kafka_broker: KafkaBroker) -> None:
    group = await new_group(kafka_broker, 1)
    await set_up(group, BRIEF)
    async with join(group, max_poll_records=1) as member:
        await poll(member)
        async with group.open(group_settings=None) as stream:
            assert offsets(await first(stream)) == [0]  # the lock has expired
            response = member.acknowledge(ranges(group, 0, 1), ACCEPT)
            await member.poll()
            assert isinstance((await response)[Partition(group.topic.name, 0)], KafkaException)


async def test_a_member_that_is_closed_leaves_no_thread(kafka_broker: KafkaBroker) -> None:
    group = await new_group(kafka_broker)
    threads = set(threading.enumerate())
    async with join(group) as member:
        await member.poll()
        assert any("a member" in thread.name for thread in threading.enumerate())
    left = set(threading.enumerate()) - threads
    assert not any("a member" in thread.name for thread in left)


async def test_a_client_that_does_not_leave_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client, left = Scripted((0.2, [])), threading.Event()
    monkeypatch.setattr(client, "close", left.wait)
    async with client.join(monkeypatch) as member:
        await member.poll()
    assert "a member has not left its share group within 1 s" in caplog.text
    assert not any(thread.name == "a member" for thread in threading.enumerate())
    left.set()


async def test_the_client_says_nothing_of_itself(
    kafka_broker: KafkaBroker, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG, "fanout.kafka.share.consumer")
    group = await new_group(kafka_broker)
    async with join(group) as member:
        await member.poll()
    assert "Preview" not in caplog.text + capfd.readouterr().err
