"""A source whose records arrive at fixed moments, and are served from any position."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import pyarrow as pa

from fanout.core.backoff import Pacing
from fanout.core.events import Batch, End, Split
from fanout.core.positions import Cursor, Horizon, Range
from fanout.core.source import Capabilities
from fanout.core.statistics import CommitStatistics
from tests.provers.simulation.randomness import happens
from tests.provers.simulation.spark.process import current_process

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
    from random import Random

    from fanout.core.event_time import EventTime
    from fanout.core.policy import Phase, Verdict
    from fanout.core.positions import Position
    from fanout.core.source import Reserve

__all__ = ("PACING", "SCHEMA", "Arrival", "ArrivalLog", "ArrivingSource", "Row", "draw_logs")

SCHEMA = pa.schema([("split", pa.string()), ("sequence", pa.int64()), ("data", pa.binary())])
IDENTITY = "simulated:orders"

PACING = Pacing(
    floor=0.0,
    spacing=0.0,
    subscribe_timeout=20.0,
    silence_timeout=60.0,
    discovery_interval=60.0,
)
_PER_EVENT = 3
_HEARTBEAT = 5.0
# asyncio may wake a sleeper a nanosecond early, and then again and again.
_TICK = 0.001

Row = tuple[str, int, bytes]
"""A record: its split, its sequence number, its data."""


@final
@dataclass(frozen=True, slots=True)
class Arrival:
    """A place in a log.

    Args:
        at: The virtual second at which it is there.
        sequence: Its sequence number.
        data: The record's bytes; None for a place without a record.
    """

    at: float
    sequence: int
    data: bytes | None


@final
@dataclass(frozen=True, slots=True)
class ArrivalLog:
    """Everything that a split ever holds.

    Args:
        split: The split.
        arrivals: What is in it, in order.
        children: What replaces it after its last arrival; none where it goes on for ever.
    """

    split: Split
    arrivals: tuple[Arrival, ...]
    children: tuple[Split, ...] = ()

    @property
    def rows(self) -> list[Row]:
        """The records, in order."""
        return [
            (self.split.id, arrival.sequence, arrival.data)
            for arrival in self.arrivals
            if arrival.data is not None
        ]


@final
@dataclass(frozen=True, slots=True)
class ArrivingSource:
    """A source of logs.

    Args:
        logs: The splits.
        on_acknowledge: Receives every acknowledgement, at the moment when it is made.
    """

    logs: tuple[ArrivalLog, ...]
    on_acknowledge: Callable[[Mapping[str, Position]], None]
    schema: pa.Schema = SCHEMA
    event_time: EventTime | None = None

    @asynccontextmanager
    async def connect(self, *, available_now: bool = False) -> AsyncIterator[_ArrivingConnection]:
        """Open the connection."""
        del available_now
        yield _ArrivingConnection(self)

    def cursor(self, batch: Batch, row: int) -> Cursor:
        """Return the position after one row."""
        return Cursor(batch.records.column("sequence")[row].as_py())

    def arrival(self, records: pa.RecordBatch, row: int) -> None:
        """Leave open when a record arrived."""


@final
class _ArrivingConnection:
    identity = IDENTITY
    pacing = PACING

    def __init__(self, source: ArrivingSource) -> None:
        self._source = source
        self.capabilities = Capabilities(commits=self)
        self.statistics = CommitStatistics()

    async def splits(self) -> Sequence[Split]:
        return [log.split for log in self._source.logs]

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

    async def acknowledge(self, positions: Mapping[str, Position]) -> None:
        current_process.get().check_alive()
        self._source.on_acknowledge(positions)

    @asynccontextmanager
    async def subscribe(
        self, split: Split, position: Position, _: Reserve
    ) -> AsyncIterator[AsyncIterator[Batch | End]]:
        log = next(log for log in self._source.logs if log.split == split)
        events = _serve(log, position)
        try:
            yield events
        finally:
            await events.aclose()


async def _serve(log: ArrivalLog, position: Position) -> AsyncGenerator[Batch | End]:
    """Send what has arrived after a position, a few places at a time, and heartbeats between."""
    loop = asyncio.get_running_loop()
    done = position.sequence if isinstance(position, Cursor) else -1
    left = [arrival for arrival in log.arrivals if arrival.sequence > done]
    while left or not log.children:
        ready = [arrival for arrival in left[:_PER_EVENT] if arrival.at <= loop.time()]
        until = Cursor(ready[-1].sequence) if ready else position
        behind = len(left) > len(ready) and left[len(ready)].at <= loop.time()
        yield Batch(log.split, _records(log, ready), Range(position, until), lag=float(behind))
        position, left = until, left[len(ready) :]
        if not behind:
            wait = left[0].at - loop.time() if left else _HEARTBEAT
            await asyncio.sleep(min(max(wait, _TICK), _HEARTBEAT))
    yield End(log.split, log.children)


def _records(log: ArrivalLog, arrivals: Sequence[Arrival]) -> pa.RecordBatch:
    rows = [arrival for arrival in arrivals if arrival.data is not None]
    columns = [
        [log.split.id] * len(rows),
        [row.sequence for row in rows],
        [row.data for row in rows],
    ]
    return pa.record_batch(columns, schema=SCHEMA)


def draw_logs(random: Random, splits: int, records: int, seconds: float) -> tuple[ArrivalLog, ...]:
    """Return splits with records that arrive in the first seconds.

    Args:
        random: Where chance comes from.
        splits: How many there are at first; the first one may end, and another follow it.
        records: The places of each.
        seconds: When the last one has arrived.
    """
    names = [Split(f"s{number}") for number in range(splits)]
    child = Split("child", (names[0].id,))
    logs = [ArrivalLog(split, _draw(random, records, 0.0, seconds)) for split in names]
    if happens(random, 0.3):
        first = ArrivalLog(names[0], _draw(random, records, 0.0, seconds / 2), (child,))
        logs = [first, *logs[1:], ArrivalLog(child, _draw(random, records, seconds / 2, seconds))]
    return tuple(logs)


def _draw(random: Random, count: int, begin: float, end: float) -> tuple[Arrival, ...]:
    moments = sorted(random.uniform(begin, end) for _ in range(count))
    # Bursts: what comes at one moment is one event, or several.
    moments = [moment - moment % random.choice((0.001, end / 4)) for moment in moments]
    sequence, arrivals = 0, []
    for moment in sorted(moments):
        sequence += random.randint(1, 5)
        idle = happens(random, 0.1)
        data = None if idle else random.randbytes(random.choice((0, 3, 30, 300)))
        arrivals.append(Arrival(moment, sequence, data))
    return tuple(arrivals)
