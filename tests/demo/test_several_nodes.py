"""The demo's topic on three nodes that fail while records are in flight."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, TopicPartition

from fanout.demo.kafka import start_kafka
from fanout.demo.options import STREAM
from fanout.demo.plan import Action, Kind
from fanout.testing.trials.records import RecordProducer, read_number
from tests.support.patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("_kafka_jars"),
]


def numbers(servers: str, count: int) -> Counter[int | None]:
    options = {"bootstrap.servers": servers, "group.id": "nobody", "log_level": 0}
    consumer = Consumer({**options, "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(STREAM, number, 0) for number in range(2)])
    found: Counter[int | None] = Counter()
    while found.total() < count:
        (message,) = consumer.consume(1, PATIENCE)
        assert message.error() is None
        value = message.value() or b""
        key = (message.key() or b"").decode()
        found[read_number(STREAM, key, value)] += 1
    consumer.close()
    return found


async def test_nodes_fail_while_records_are_in_flight() -> None:
    records = RecordProducer(STREAM, Random(1)).make(300)
    thirds: Sequence[slice] = (slice(0, 100), slice(100, 200), slice(200, 300))
    starting = start_kafka(2, 3)
    stream = await asyncio.to_thread(starting.__enter__)
    try:
        async with stream.connect():
            for kind, third in zip((Kind.RESTART, Kind.MOVE, Kind.HANG), thirds, strict=True):
                await stream.perform(Action(1, kind, 0.5))
                await stream.put(records[third])
        assert stream.faults() == {"KillBroker": 1, "MoveLeaders": 1, "HangBroker": 1}
        assert await asyncio.to_thread(numbers, stream.address, 300) == Counter(range(300))
    finally:
        await asyncio.to_thread(starting.__exit__, None, None, None)
