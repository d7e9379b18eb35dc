"""A source in memory that a test fills, idles, ends and fails at will, from any thread."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from fanout.core.backoff import Pacing
from fanout.core.events import Batch, End, Split
from fanout.core.policy import Fatal
from fanout.core.positions import Cursor, Horizon, Range
from fanout.core.source import Capabilities
from fanout.core.statistics import CommitStatistics

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Awaitable,
        Callable,
        Mapping,
        Sequence,
    )

    from fanout.core.event_time import EventTime
    from fanout.core.policy import Phase
    from fanout.core.positions import Position
    from fanout.core.source import Reserve

SCHEMA = pa.schema([("shard", pa.string()), ("sequence", pa.int64()), ("data", pa.binary())])

pa.array([b""])  # the first array imports pandas, which reads files: not in an event loop

PACING = Pacing(
    floor=0.0,
    spacing=0.0,
    subscribe_timeout=20.0,
    silence_timeout=60.0,
    discovery_interval=60.0,
)


@dataclass(frozen=True, slots=True)
class Subscribed:
    """A subscribe call, as `ManualSource.trace` remembers it."""

    split: str
    position: Position


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """An acknowledgement, as `ManualSource.trace` remembers it."""

    positions: Mapping[str, Position]


class ManualSource:
    """Splits whose logs are lists; the sequence number of an entry is its index plus 1.

    Args:
        splits: The splits that exist from the start.
        identity: What checkpoints remember the source by.
        bounded: Whether each split stops at what is there when it is subscribed.
    """

    schema = SCHEMA

    def __init__(self, *splits: str, identity: str = "manual:one", bounded: bool = False) -> None:
        self.identity = identity
        self.bounded = bounded
        self.throttled = 0
        self.decode: Callable[[Batch], Awaitable[Batch]] | None = None
        self.event_time: EventTime | None = None
        self.available_now: list[bool] = []
        self.lag = 0.0
        self.trace: list[object] = []
        self.poll_seconds = 0.0
        self.on_poll: Callable[[], None] | None = None
        self._logs: dict[Split, list[bytes | None]] = {Split(id_): [] for id_ in splits or ("a",)}
        self._ended: dict[Split, tuple[Split, ...]] = {}
        self._failure: Exception | None = None
        self._waiting: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}

    def poll_every(self, seconds: float) -> None:
        self.poll_seconds = seconds

    def poll_now(self) -> bool:
        """Poll, where a test has said what the poll finds."""
        if self.on_poll is None:
            return False
        self.on_poll()
        return True

    def put(self, *data: bytes, split: str = "a") -> None:
        """Append records."""
        self._log(split).extend(data)
        self._wake()

    def idle(self, split: str = "a") -> None:
        """Append a place without a record: idle progress."""
        self._log(split).append(None)
        self._wake()

    def end(self, split: str, *children: str) -> None:
        """Finish a split; its children take over."""
        parent = self._split(split)
        born = tuple(Split(id_, (parent.id,)) for id_ in children)
        for child in born:
            self._logs[child] = []
        self._ended[parent] = born
        self._wake()

    def fail(self, error: Exception) -> None:
        """Let every subscription raise; it is fatal."""
        self._failure = error
        self._wake()

    @asynccontextmanager
    async def connect(self, *, available_now: bool = False) -> AsyncIterator[ManualConnection]:
        self.available_now.append(available_now)
        yield ManualConnection(self)

    def cursor(self, batch: Batch, row: int) -> Cursor:
        return Cursor(batch.records.column("sequence")[row].as_py())

    def arrival(self, records: pa.RecordBatch, row: int) -> None:
        """Leave open when a record arrived."""

    def splits(self) -> Sequence[Split]:
        return list(self._logs)

    @property
    def subscriptions(self) -> int:
        """How many subscriptions are open."""
        return len(self._waiting)

    async def events(self, split: Split, position: Position) -> AsyncGenerator[Batch | End]:
        """Serve a split from a position; what is there at one moment is one event."""
        done = position.sequence if isinstance(position, Cursor) else 0
        changed = asyncio.Event()
        self._waiting[changed] = asyncio.get_running_loop()
        try:
            while True:
                changed.clear()
                if self._failure is not None:
                    raise self._failure
                entries = self._logs[split][done:]
                until = Cursor(done + len(entries)) if entries else position
                records = records_of(split, entries, done)
                if entries or split not in self._ended:
                    yield Batch(split, records, Range(position, until), lag=self.lag)
                position, done = until, done + len(entries)
                if split in self._ended and done == len(self._logs[split]):
                    yield End(split, self._ended[split])
                    return
                await changed.wait()
        finally:
            del self._waiting[changed]

    def _split(self, id_: str) -> Split:
        return next(split for split in self._logs if split.id == id_)

    def _log(self, id_: str) -> list[bytes | None]:
        return self._logs[self._split(id_)]

    def _wake(self) -> None:
        for changed, loop in list(self._waiting.items()):
            loop.call_soon_threadsafe(changed.set)


class ManualConnection:
    def __init__(self, source: ManualSource) -> None:
        self.pacing = PACING
        self._source = source
        self.identity = source.identity
        self.capabilities = Capabilities(
            bounded=source.bounded,
            commits=self,
            polling=source,
            throttled=lambda: source.throttled,
            decode=source.decode,
        )
        self.statistics = CommitStatistics()

    async def splits(self) -> Sequence[Split]:
        return self._source.splits()

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

    async def acknowledge(self, positions: Mapping[str, Position]) -> None:
        self._source.trace.append(Acknowledged(dict(positions)))

    @asynccontextmanager
    async def subscribe(
        self, split: Split, position: Position, reserve: Reserve
    ) -> AsyncIterator[AsyncIterator[Batch | End]]:
        del reserve
        self._source.trace.append(Subscribed(split.id, position))
        async with aclosing(self._source.events(split, position)) as events:
            yield events


def records_of(split: Split, entries: Sequence[bytes | None], done: int) -> pa.RecordBatch:
    """Return the entries that are records; `done` entries came before them."""
    numbered = [(done + n, data) for n, data in enumerate(entries, 1) if data is not None]
    columns = [
        [split.id] * len(numbered),
        [sequence for sequence, _ in numbered],
        [data for _, data in numbered],
    ]
    return pa.record_batch(columns, schema=SCHEMA)
