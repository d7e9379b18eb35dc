"""A source in memory that lends its records; a test lets locks run out, and answers get lost."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from fanout.core.events import Batch, Split
from fanout.core.policy import Fatal
from fanout.core.positions import Cursor, Horizon, Range
from fanout.core.source import Capabilities
from fanout.core.statistics import LendingStatistics
from fanout.errors import AcknowledgementError
from tests.support.manual_source import PACING, SCHEMA

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Awaitable,
        Callable,
        Iterable,
        Mapping,
        Sequence,
    )

    from fanout.core.events import End
    from fanout.core.policy import Phase
    from fanout.core.positions import Position
    from fanout.core.source import Reserve


class LendingSource:
    """Records for the member that polls first; records are numbered from 1.

    For tests: `held` has the acquired records by member, `accepted` those that never come again,
    and `dropped` those that came again and were unconfirmed; see also `paused`. Use it in one loop.

    Args:
        members: The number of members.
        per_poll: The most records of one poll.
    """

    schema = SCHEMA
    event_time = None

    def __init__(self, *, members: int = 1, per_poll: int = 100) -> None:
        self.members = [f"member-{number}" for number in range(members)]
        self.per_poll = per_poll
        self.held: dict[str, dict[int, int]] = {id_: {} for id_ in self.members}
        self.accepted: list[int] = []
        self.dropped: list[int] = []
        self.paused = False
        self.late = False
        self.on_acknowledge: Callable[[], Awaitable[object]] = _nothing
        self.changed = asyncio.Event()
        self.failure: Exception | None = None
        self._waiting: deque[int] = deque()
        self._count = 0

    def put(self, count: int) -> None:
        """Add records."""
        self._waiting.extend(range(self._count + 1, self._count + count + 1))
        self._count += count
        self.notify()

    def accept(self, count: int) -> None:
        """Begin after records that an earlier run has had accepted."""
        self.accepted.extend(range(1, count + 1))
        self._count = count

    def expire(self) -> None:
        """Let the locks of all acquired records expire."""
        for held in self.held.values():
            self._waiting.extend(held.values())
            held.clear()
        self.notify()

    def fail(self, error: Exception) -> None:
        """Let every subscription raise; it is fatal."""
        self.failure = error
        self.notify()

    def notify(self) -> None:
        """Wake all that wait for a change."""
        self.changed.set()
        self.changed = asyncio.Event()

    def lend(self) -> list[int]:
        """Take what waits, as much as one poll returns."""
        return [self._waiting.popleft() for _ in range(min(self.per_poll, len(self._waiting)))]

    def give_back(self, numbers: Iterable[int]) -> None:
        """Let records come again."""
        self._waiting.extend(numbers)
        self.notify()

    @property
    def waits(self) -> bool:
        """Whether there are records that no member holds."""
        return bool(self._waiting)

    @asynccontextmanager
    async def connect(self, *, available_now: bool = False) -> AsyncIterator[LendingConnection]:
        del available_now
        self.paused = False
        self.changed = asyncio.Event()  # of this loop
        try:
            yield LendingConnection(self)
        finally:
            self.expire()

    def cursor(self, batch: Batch, row: int) -> Cursor:
        return Cursor(_sequence(batch.range.after) + row + 1)

    def arrival(self, records: pa.RecordBatch, row: int) -> None:
        """Leave open when a record arrived."""


class LendingConnection:
    pacing = PACING
    identity = "lending:one"
    seconds = 30.0

    def __init__(self, source: LendingSource) -> None:
        self._source = source
        self._unconfirmed: set[int] = set()
        self._subscribed = False
        self.capabilities = Capabilities(
            reads=lambda split: split.id in self._source.members, lending=self
        )

    async def splits(self) -> Sequence[Split]:
        return [Split(id_) for id_ in self._source.members]

    async def resolve(self, splits: Sequence[Split]) -> Mapping[str, Position]:
        return {split.id: Horizon() for split in splits}

    async def verdict(
        self,
        error: Exception,
        phase: Phase,
        split: Split | None = None,
        position: Position | None = None,
    ) -> Fatal:
        del error, phase, split, position
        return Fatal()

    def keeps(self, _batch: Batch) -> bool:
        return True

    def begin_wait(self) -> None:
        pass

    def end_wait(self) -> None:
        pass

    def pause(self) -> None:
        self._source.paused = True
        self._source.notify()

    def resume(self) -> None:
        self._source.paused = False
        self._source.notify()

    @property
    def statistics(self) -> LendingStatistics:
        return LendingStatistics()

    def unconfirmed(self, positions: Mapping[str, Position]) -> str:
        for id_, position in positions.items():
            self._unconfirmed.update(self._up_to(id_, position).values())
        return json.dumps(sorted(self._unconfirmed))

    async def release(self, split_id: str, piece: Range) -> None:
        raise NotImplementedError

    async def reject(self, split_id: str, piece: Range, rows: Sequence[int], reason: str) -> None:
        raise NotImplementedError

    def remember(self, unconfirmed: str) -> None:
        assert not self._subscribed, "too late: something may have come again"
        self._unconfirmed.update(json.loads(unconfirmed or "[]"))

    async def acknowledge(self, positions: Mapping[str, Position]) -> None:
        source = self._source
        await source.on_acknowledge()
        numbers: list[int] = []
        for id_, position in positions.items():
            for place, number in self._up_to(id_, position).items():
                del source.held[id_][place]
                numbers.append(number)
        if source.late:
            source.late = False
            source.give_back(numbers)
            raise AcknowledgementError("too late", tuple(map(str, numbers)))
        source.accepted.extend(numbers)
        self._unconfirmed.difference_update(numbers)
        source.notify()

    @asynccontextmanager
    async def subscribe(
        self, split: Split, position: Position, reserve: Reserve
    ) -> AsyncIterator[AsyncIterator[Batch | End]]:
        del reserve
        self._subscribed = True
        async with aclosing(self._events(split, _sequence(position))) as events:
            yield events

    async def _events(self, split: Split, count: int) -> AsyncGenerator[Batch | End]:
        source = self._source
        while True:
            changed = source.changed
            if source.failure is not None:
                raise source.failure
            if not source.paused and not source.held[split.id]:
                numbers = self._poll(split.id, count)
                covered = Range(Cursor(count), Cursor(count + len(numbers)))
                columns = [[split.id] * len(numbers), numbers, [b"x"] * len(numbers)]
                records = pa.record_batch(columns, schema=SCHEMA)
                yield Batch(split, records, covered, lag=float(source.waits))
                count += len(numbers)
                if source.waits and not numbers:
                    continue
            await changed.wait()

    def _poll(self, member: str, count: int) -> list[int]:
        """Ask for records, and drop those that are unconfirmed."""
        source = self._source
        numbers = source.lend()
        again = [number for number in numbers if number in self._unconfirmed]
        self._unconfirmed.difference_update(again)
        source.dropped += again
        source.accepted += again
        fresh = [number for number in numbers if number not in again]
        source.held[member] = dict(enumerate(fresh, count + 1))
        return fresh

    def _up_to(self, id_: str, position: Position) -> dict[int, int]:
        held = self._source.held.get(id_, {})
        return {place: number for place, number in held.items() if place <= _sequence(position)}


def _sequence(position: Position) -> int:
    return position.sequence if isinstance(position, Cursor) else 0


async def _nothing() -> None:
    await asyncio.sleep(0)
