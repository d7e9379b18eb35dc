"""Members of a group that write in transactions, on a real broker."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.kafka.group.processes import GUARD, Process, set_session, started, until
from tests.support.kafka.topics import Topic, committed, new_topic
from tests.support.kafka.writing import read

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from fanout.testing.kafka.broker import KafkaBroker

PARTITIONS = 4


def copier(source: Topic, target: Topic, group: str, id_: str) -> AbstractAsyncContextManager[Any]:
    servers = source.broker.bootstrap_servers
    return started("copier", servers, source.name, target.name, group, f"{group}-{id_}")


def splits(process: Process, what: str) -> set[str]:
    return {split for said in process.said if said["what"] == what for split in said["splits"]}


async def check_copied(source: Topic, target: Topic) -> None:
    """Have another client count what is committed: each record once, in the order of its key."""
    given = Counter(value for rows in source.log.values() for _, value in rows)
    found = await read(source.broker, target.name)
    assert Counter(record.value for record in found[0]) == given
    for number, rows in source.log.items():
        order = [record.value for record in found[0] if record.key == b"%d" % number]
        assert order == [value for _, value in rows]


async def put(topic: Topic, count: int) -> None:
    for number in range(PARTITIONS):
        values = [b"%d-%d" % (number, topic.written + each) for each in range(count)]
        records = [{"key": b"%d" % number, "value": value} for value in values]
        await asyncio.to_thread(topic.write, records, number)


async def is_stored(source: Topic, group: str) -> None:
    stored: dict[int, int] = {}
    async with asyncio.timeout(GUARD):
        while stored != {number: len(rows) for number, rows in source.log.items()}:
            await asyncio.sleep(0.2)
            stored = await asyncio.to_thread(committed, source, group, PARTITIONS)


@pytest.mark.long
@pytest.mark.parametrize("fault", [signal.SIGSTOP, signal.SIGKILL])
async def test_a_member_that_is_gone_in_the_middle_of_a_transaction_repeats_nothing(
    kafka_broker: KafkaBroker, fault: signal.Signals
) -> None:
    source = await new_topic(kafka_broker, partitions=PARTITIONS)
    target = await new_topic(kafka_broker)
    group = f"{source.name}-copiers"
    await asyncio.to_thread(set_session, kafka_broker, group)
    async with copier(source, target, group, "1") as first:
        await put(source, 1)
        await until(lambda: splits(first, "committed"))
        async with copier(source, target, group, "2") as second:
            while not splits(second, "committed"):
                await put(source, 1)
                await asyncio.sleep(0.3)
            await is_stored(source, group)
            first.tell()
            await until(lambda: any(said["what"] == "holds" for said in first.said))
            first.said.clear()
            await put(source, 5)
            await until(lambda: splits(first, "written"))
            mine = splits(first, "written")  # the positions are not stored
            first.process.send_signal(fault)
            await put(source, 5)
            await until(lambda: mine <= splits(second, "committed"))
            await is_stored(source, group)
            if fault == signal.SIGSTOP:
                first.tell()
                first.process.send_signal(signal.SIGCONT)
                await until(lambda: first.said[-1]["what"] != "written")
                await put(source, 5)
                await is_stored(source, group)
                assert mine & splits(first, "lost")
            else:
                # The open transaction of the dead one hides what was written after it.
                async with copier(source, target, group, "1") as third:
                    await until(lambda: third.said)
    await check_copied(source, target)


@pytest.mark.long
async def test_members_hand_partitions_over_between_transactions(
    kafka_broker: KafkaBroker,
) -> None:
    source = await new_topic(kafka_broker, partitions=PARTITIONS)
    target = await new_topic(kafka_broker)
    group = f"{source.name}-copiers"
    await put(source, 20)
    async with copier(source, target, group, "1") as first:
        await until(lambda: splits(first, "committed"))
        async with copier(source, target, group, "2") as second:
            while not splits(second, "committed"):
                await put(source, 5)
                await asyncio.sleep(0.3)
        await put(source, 5)
        await is_stored(source, group)
        assert not splits(first, "lost")
        assert not splits(second, "lost")
    await check_copied(source, target)
