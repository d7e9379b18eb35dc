"""What the client does that fanout has to know, and what it makes of that."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import AcknowledgeType, IllegalStateException

from fanout.kafka.share.client import open_member
from tests.kafka.share.sharing import BRIEF, LONG, first, new_group

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from fanout.kafka.share.client import Member
    from fanout.kafka.share.polled import Polled
    from fanout.testing.kafka_broker import KafkaBroker
    from tests.kafka.share.sharing import Group

ACCEPT = AcknowledgeType.ACCEPT


async def set_up(group: Group, settings: dict[str, str]) -> None:
    async with group.source(group_settings=settings).connect():
        pass


def join(group: Group) -> AbstractAsyncContextManager[Member]:
    return open_member(group.source().client_properties(0), [group.topic.name], "a member")


async def poll(member: Member) -> Polled:
    async with asyncio.timeout(20):
        while (polled := await member.poll()) is None:
            pass
    return polled


async def test_records_may_be_as_old_as_the_last_poll_that_brought_none(
    kafka_broker: KafkaBroker,
) -> None:
    group = await new_group(kafka_broker, 1)
    await set_up(group, BRIEF)
    async with join(group) as member:
        await poll(member)
        await member.answer([(group.topic.name, 0, 0)], ACCEPT)
        assert not member.asking
        assert await member.poll() is None
        assert member.asking
        before = time.monotonic()
        await group.put(3)
        async with group.open(group_settings=None) as stream:
            # The client of the member has them, until their locks expire.
            batch = await first(stream)
            assert batch.records.column("deliveryCount").to_pylist() == [2, 2, 2]
            await stream.acknowledge(batch)
        polled = await poll(member)
        # They are delivered once more, and the broker would take their acknowledgement.
        assert polled.records.column("offset").to_pylist() == [1, 2, 3]
        assert polled.since <= before
        assert await member.answer([(group.topic.name, 0, 1)], ACCEPT) == {}


class Standstill:
    """A client whose process stands still for 30 s of its second poll, and its clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self._polls = iter(((0.2, ()), (30.0, ()), (0.1, (SimpleNamespace(error=lambda: None),))))

    def __call__(self, _: object) -> Standstill:
        return self

    def monotonic(self) -> float:
        return self.now

    def poll(self, _: float) -> tuple[object, ...]:
        seconds, messages = next(self._polls)
        self.now += seconds
        return messages

    def subscribe(self, _: object) -> None:
        pass

    def close(self) -> None:
        pass


async def test_records_may_be_as_old_as_a_poll_in_which_the_process_stood_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Standstill()
    monkeypatch.setattr("fanout.kafka.share.client.time", client)
    monkeypatch.setattr("fanout.kafka.share.client.ShareConsumer", client)
    monkeypatch.setattr("fanout.kafka.share.client.gather", lambda _, since: since)
    async with open_member({"socket.timeout.ms": 1}, ["orders"], "a member") as member:
        polled: list[Any] = [await member.poll() for _ in range(3)]
    assert polled == [None, None, 0.2]


async def test_a_member_that_has_left_answers_for_nothing(kafka_broker: KafkaBroker) -> None:
    group = await new_group(kafka_broker, 1)
    await set_up(group, LONG)
    async with join(group) as member:
        await poll(member)
    with pytest.raises(IllegalStateException, match="has left its group"):
        await member.answer([(group.topic.name, 0, 0)], ACCEPT)


async def test_records_are_answered_for_once(kafka_broker: KafkaBroker) -> None:
    group = await new_group(kafka_broker, 2)
    await set_up(group, LONG)
    places = [(group.topic.name, 0, offset) for offset in range(2)]
    async with join(group) as member:
        await poll(member)
        assert await member.answer(places[:1], ACCEPT) == {}
        with pytest.raises(IllegalStateException):
            await member.answer(places[:1], ACCEPT)
        with pytest.raises(IllegalStateException):
            await member.poll()
        assert await member.answer(places[1:], AcknowledgeType.RELEASE) == {}
        assert (await poll(member)).records.column("offset").to_pylist() == [1]


async def test_a_member_that_is_closed_leaves_no_thread(kafka_broker: KafkaBroker) -> None:
    group = await new_group(kafka_broker)
    threads = set(threading.enumerate())
    async with join(group) as member:
        await member.poll()
        assert any("a member" in thread.name for thread in threading.enumerate())
    left = set(threading.enumerate()) - threads
    assert not any("a member" in thread.name for thread in left)


async def test_the_client_says_nothing_of_itself(
    kafka_broker: KafkaBroker, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG, "fanout.kafka.share.client")
    group = await new_group(kafka_broker)
    async with join(group) as member:
        await member.poll()
    assert "Preview" not in caplog.text + capfd.readouterr().err
