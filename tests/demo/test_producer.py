from __future__ import annotations

from contextlib import aclosing
from random import Random
from typing import TYPE_CHECKING, Any

from fanout.demo.stream import MAX_CALL_RECORDS, SentRecord, produce
from fanout.testing.trials.records import RecordProducer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanout.testing.trials.records import Record


class Counting:
    """A stream that takes everything, and counts how many records come in each call."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    async def put(self, records: Sequence[Record]) -> Sequence[SentRecord]:
        self.calls.append(len(records))
        return [SentRecord("split", str(record.number)) for record in records]


async def test_a_call_carries_no_more_than_the_service_takes() -> None:
    stream: Any = Counting()
    producer = RecordProducer("orders", Random(1))
    async with aclosing(produce(stream, producer, 1_200, rate=1e9)) as calls:
        sent = [int(record.sequence) async for call in calls for record in call]
    assert sent == list(range(1_200))
    assert stream.calls == [MAX_CALL_RECORDS, MAX_CALL_RECORDS, 200]
    assert producer.total == 1_200
