from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from fanout.demo.records import SentRecord, generate
from fanout.demo.service import MAX_CALL_RECORDS, produce

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fanout.demo.plan import Action
    from fanout.demo.records import Record
    from fanout.demo.service import ActionResult


class Counting:
    """A stream that takes everything, and counts how many records come in each call."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    async def put(self, records: Sequence[Record]) -> Sequence[SentRecord]:
        self.calls.append(len(records))
        return [SentRecord(record.number, record.key, "split", 0, "") for record in records]

    async def perform(self, action: Action) -> ActionResult:
        raise NotImplementedError

    async def parents(self) -> Mapping[str, Sequence[str]]:
        return {}


async def test_a_call_carries_no_more_than_the_service_takes() -> None:
    stream = Counting()
    async with aclosing(produce(stream, generate(1_200, 1), rate=1e9)) as calls:
        assert [record.number async for call in calls for record in call] == list(range(1_200))
    assert stream.calls == [MAX_CALL_RECORDS, MAX_CALL_RECORDS, 200]
