"""A source of acquired records: they come again, to any reader, until acknowledged."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

import pyarrow as pa

from fanout.core.events import Batch, Split
from fanout.core.positions import Cursor, Horizon, Range
from fanout.core.source import Capabilities
from fanout.core.statistics import LendingStatistics
from fanout.errors import AcknowledgementError
from tests.provers.simulation.randomness import happens
from tests.provers.simulation.spark.arriving_source import PACING, SCHEMA
from tests.provers.simulation.spark.lending_service import LOCK
from tests.provers.simulation.spark.process import current_process

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence

    from fanout.core.event_time import EventTime
    from fanout.core.events import End
    from fanout.core.policy import Phase, Verdict
    from fanout.core.positions import Position
    from fanout.core.source import Reserve
    from tests.provers.simulation.spark.lending_service import AcquiredRecord, LendingService

__all__ = ("LendingSource",)

_IDENTITY = "simulated:group"
_MEMBERS = 2
_POLL = 0.02
_HEARTBEAT = 1.0
# Of acknowledgements that are not answered, some have arrived.
_UNANSWERED = 0.1
_NO_RECORDS = pa.RecordBatch.from_pylist([], schema=SCHEMA)


@final
@dataclass(frozen=True, slots=True)
class LendingSource:
    """A source of members that share what a service lends.

    Args:
        service: The service.
    """

    service: LendingService
    schema: pa.Schema = SCHEMA
    event_time: EventTime | None = None

    @asynccontextmanager
    async def connect(self, *, available_now: bool = False) -> AsyncIterator[_LendingConnection]:
        """Open the connection; what it holds is given back in the end."""
        del available_now
        connection = _LendingConnection(self.service)
        try:
            yield connection
        finally:
            if current_process.get().alive:
                self.service.take_back(set(connection.members.values()))

    def cursor(self, batch: Batch, row: int) -> Cursor:
        """Return the position after one row: a count of what the member was given."""
        after = batch.range.after
        return Cursor((after.sequence if isinstance(after, Cursor) else 0) + row + 1)

    def arrival(self, records: pa.RecordBatch, row: int) -> None:
        """Leave open when a record arrived."""


@final
@dataclass(slots=True, eq=False)
class _GroupMember:
    """One consumer: what it was given and has not settled, with the position after each."""

    given: list[tuple[int, AcquiredRecord]] = field(default_factory=list)


@final
class _LendingConnection:
    identity = _IDENTITY
    pacing = PACING
    seconds = LOCK

    def __init__(self, service: LendingService) -> None:
        self.members = {f"member-{number}": _GroupMember() for number in range(_MEMBERS)}
        self._service = service
        self._unconfirmed: set[str] = set()
        self._safe: set[str] = set()
        self._paused = False
        self._changed = asyncio.Event()
        self.capabilities = Capabilities(reads=lambda split: split.id in self.members, lending=self)

    async def splits(self) -> Sequence[Split]:
        return [Split(id_) for id_ in self.members]

    async def resolve(self, splits: Sequence[Split]) -> Mapping[str, Position]:
        return {split.id: Horizon() for split in splits}

    async def verdict(
        self,
        error: Exception,
        phase: Phase,
        split: Split | None = None,
        position: Position | None = None,
    ) -> Verdict:
        raise AssertionError(f"{split} failed while {phase} at {position}") from error

    def keeps(self, _batch: Batch) -> bool:
        return True

    def begin_wait(self) -> None:
        pass

    def end_wait(self) -> None:
        pass

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._tell()

    @property
    def statistics(self) -> LendingStatistics:
        return LendingStatistics()

    def unconfirmed(self, positions: Mapping[str, Position]) -> str:
        for id_, position in positions.items():
            self._unconfirmed |= {record.name for record in self._up_to(id_, position)}
        return json.dumps(sorted(self._unconfirmed))

    async def release(self, split_id: str, piece: Range) -> None:
        raise NotImplementedError

    async def reject(self, split_id: str, piece: Range, rows: Sequence[int], reason: str) -> None:
        raise NotImplementedError

    def remember(self, unconfirmed: str) -> None:
        self._unconfirmed |= set(json.loads(unconfirmed or "[]"))
        self._safe |= self._unconfirmed

    async def acknowledge(self, positions: Mapping[str, Position]) -> None:
        late: list[str] = []
        for id_, position in positions.items():
            member = self.members.get(id_)
            if member is None:
                continue
            records = self._up_to(id_, position)
            member.given = [(n, record) for n, record in member.given if record not in records]
            self._safe |= {record.name for record in records}
            late += [record.name for record in records if not await self._accept(record, member)]
        self._tell()
        if late:
            raise AcknowledgementError("too late, as it seems", tuple(late))

    @asynccontextmanager
    async def subscribe(
        self, split: Split, position: Position, _: Reserve
    ) -> AsyncIterator[AsyncIterator[Batch | End]]:
        async with aclosing(self._serve(split, position)) as events:
            yield events

    async def _serve(self, split: Split, position: Position) -> AsyncGenerator[Batch | End]:
        """Ask again and again, when everything is settled that came before."""
        member, loop = self.members[split.id], asyncio.get_running_loop()
        count = position.sequence if isinstance(position, Cursor) else 0
        while True:
            if not self._paused and not member.given:
                await asyncio.sleep(self._service.random.uniform(0.0, _POLL))
                lent = self._service.lend(member, loop.time())
                known = self._unconfirmed.union(*map(_names, self.members.values()))
                again = [record for record in lent if record.name in known]
                fresh = [record for record in lent if record not in again]
                if fresh:
                    member.given = list(enumerate(fresh, count + 1))
                    covered = Range(position, Cursor(count + len(fresh)))
                    yield Batch(split, _records(fresh), covered)
                    count, position = count + len(fresh), covered.until
                for record in again:
                    while record.name not in self._safe:
                        await self._change()
                    await self._accept(record, member)
                if lent:
                    continue
            lag = float(not self._service.empty(loop.time()))
            yield Batch(split, _NO_RECORDS, Range(position, position), lag=lag)
            idle = self._service.random.uniform(0.1, _HEARTBEAT)
            if not self._paused and not member.given:
                idle = min(idle, self._service.next(loop.time()))
            with suppress(TimeoutError):
                async with asyncio.timeout(idle):
                    await self._change()

    async def _accept(self, record: AcquiredRecord, member: _GroupMember) -> bool:
        """Acknowledge a record; return whether the service has confirmed it."""
        random = self._service.random
        await current_process.get().request(f"accept {record.name}")
        lost = happens(random, _UNANSWERED)
        if lost and happens(random, 0.5):
            return False
        accepted = self._service.accept(record, member, asyncio.get_running_loop().time())
        await current_process.get().request(f"accepted {record.name}")
        if lost or not accepted:
            return False
        self._unconfirmed.discard(record.name)
        return True

    def _up_to(self, id_: str, position: Position) -> list[AcquiredRecord]:
        member = self.members.get(id_)
        if member is None or not isinstance(position, Cursor):
            return []
        return [record for number, record in member.given if number <= position.sequence]

    def _tell(self) -> None:
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


def _names(member: _GroupMember) -> set[str]:
    return {record.name for _, record in member.given}


def _records(records: Sequence[AcquiredRecord]) -> pa.RecordBatch:
    columns = [[record.row[column] for record in records] for column in range(len(SCHEMA.names))]
    return pa.record_batch(columns, schema=SCHEMA)
