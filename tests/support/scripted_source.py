"""A source that follows a script: immutable logs, served from the position that is asked for."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from fanout.core.backoff import Backoff, Pacing
from fanout.core.events import Batch, End
from fanout.core.policy import Fatal, Pace, Retry
from fanout.core.positions import Cursor, Horizon, Range, Timestamp
from fanout.core.source import Capabilities
from fanout.core.statistics import CommitStatistics
from fanout.errors import (
    FanOutError,
    MalformedEventError,
    SubscriptionEndedError,
    SubscriptionSilentError,
)

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Awaitable,
        Callable,
        Iterator,
        Mapping,
        Sequence,
    )

    from fanout.core.event_time import EventTime
    from fanout.core.events import Split
    from fanout.core.policy import Phase, Verdict
    from fanout.core.positions import Position
    from fanout.core.source import Reserve

SCHEMA = pa.schema([("split", pa.string()), ("sequence", pa.int64()), ("data", pa.binary())])

pa.array([0])  # imports pandas, which reads files, so not in a loop that refuses blocking calls

LISTED_EVERY = 60.0

PACING = Pacing(
    floor=1.0,
    spacing=5.0,
    subscribe_timeout=20.0,
    silence_timeout=35.0,
    discovery_interval=LISTED_EVERY,
    backoff=Backoff(base=1.0, cap=30.0),
)


class FlakyError(FanOutError):
    """A fault that goes away."""

    retryable = True


class ThrottledError(FanOutError):
    """A fault that goes away, after which waiting longer does not help."""

    retryable = True


class VerdictError(FanOutError):
    """A fault that brings its own verdict."""

    __match_args__ = ("verdict",)

    def __init__(self, verdict: Verdict) -> None:
        super().__init__("as scripted")
        self.verdict = verdict


class FatalError(FanOutError):
    """A fault that stays."""


@dataclass(frozen=True, slots=True)
class Idle:
    """A place in a log without a record: the service reports progress up to it."""

    sequence: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """A subscribe call fails."""

    error: Exception


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """A subscribe call is never answered."""


@dataclass(frozen=True, slots=True)
class Break:
    """A subscription fails after some events."""

    after: int
    error: Exception


@dataclass(frozen=True, slots=True)
class Stall:
    """A subscription falls silent after some events."""

    after: int


@dataclass(frozen=True, slots=True)
class Stop:
    """A subscription ends after some events although its split goes on."""

    after: int


@dataclass(frozen=True, slots=True)
class BadClose:
    """Closing a subscription fails."""

    error: Exception


Fault: TypeAlias = Refuse | NoAnswer | Break | Stall | Stop | BadClose


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """Everything about one split.

    Args:
        split: The split.
        entries: Sequence numbers of its records, and places without a record, in order.
        ends: Whether the split is finished after its last entry; an open split goes on with
            heartbeats, events at the same position.
        children: What End names.
        faults: What happens in the subscriptions of this split, in turn; None for nothing.
        per_event: Records in one event.
        event_delay: Seconds before each event.
        heartbeat: Seconds between heartbeats, None for silence.
        size: Bytes of data in a record.
    """

    split: Split
    entries: tuple[int | Idle, ...] = ()
    ends: bool = False
    children: tuple[Split, ...] = ()
    faults: tuple[Fault | None, ...] = ()
    per_event: int = 2
    event_delay: float = 0.0
    heartbeat: float | None = 5.0
    size: int = 8

    @property
    def records(self) -> list[int]:
        return [entry for entry in self.entries if isinstance(entry, int)]


@dataclass(frozen=True, slots=True)
class Call:
    """A subscribe call as the service saw it."""

    split_id: str
    position: Position
    time: float


@dataclass(slots=True, kw_only=True)
class ScriptedSource:
    """A source that follows the scripts of its splits, and remembers how it was used."""

    logs: Sequence[Log]
    pacing: Pacing = PACING
    listings: Sequence[Sequence[Split] | Exception] = ()
    """The results of listings, in turn; the last for ever. Empty: every split of the logs."""
    start: Position = field(default_factory=Horizon)
    identity: str = "scripted:one"
    unread: frozenset[str] = frozenset()
    """Splits that the user does not want to be read any more."""
    bounded: bool = False
    """Whether the last entry of each log is its stop."""
    event_time: EventTime | None = None
    decode: Callable[[Batch], Awaitable[Batch]] | None = None
    available_now: list[bool] = field(default_factory=list)
    answer_after: float = 0.0
    close_after: float = 0.0
    calls: list[Call] = field(default_factory=list)
    pending: int = 0
    most_pending: int = 0
    listed: int = 0
    live: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    judged: list[tuple[type[Exception], Phase]] = field(default_factory=list)
    acknowledged: list[dict[str, Position]] = field(default_factory=list)

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    def log(self, split_id: str) -> Log:
        return next(log for log in self.logs if log.split.id == split_id)

    def calls_of(self, split_id: str) -> list[Call]:
        return [call for call in self.calls if call.split_id == split_id]

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Count a subscribe call as pending."""
        self.pending += 1
        self.most_pending = max(self.most_pending, self.pending)
        try:
            yield
        finally:
            self.pending -= 1

    @asynccontextmanager
    async def connect(self, *, available_now: bool = False) -> AsyncIterator[ScriptedConnection]:
        self.available_now.append(available_now)
        yield ScriptedConnection(self)
        if self.live.total():
            self.broken.append("a subscription outlived its connection")

    def cursor(self, batch: Batch, row: int) -> Cursor:
        return Cursor(batch.records.column("sequence")[row].as_py())

    def arrival(self, records: pa.RecordBatch, row: int) -> int:
        """Say that a record arrives each second."""
        return 1000 * int(records.column("sequence")[row].as_py())


class ScriptedConnection:
    def __init__(self, source: ScriptedSource) -> None:
        self._source = source

    @property
    def identity(self) -> str:
        return self._source.identity

    @property
    def pacing(self) -> Pacing:
        return self._source.pacing

    @property
    def capabilities(self) -> Capabilities:
        source = self._source
        return Capabilities(
            bounded=source.bounded,
            reads=lambda split: split.id not in source.unread,
            commits=self,
            decode=source.decode,
        )

    @property
    def statistics(self) -> CommitStatistics:
        return CommitStatistics()

    async def splits(self) -> Sequence[Split]:
        source = self._source
        if not source.listings:
            return [log.split for log in source.logs]
        listing = source.listings[min(source.listed, len(source.listings) - 1)]
        source.listed += 1
        if isinstance(listing, Exception):
            raise listing
        return listing

    async def resolve(self, splits: Sequence[Split]) -> Mapping[str, Position]:
        return {split.id: self._source.start for split in splits}

    async def verdict(
        self,
        error: Exception,
        phase: Phase,
        split: Split | None = None,
        position: Position | None = None,
    ) -> Verdict:
        self._source.judged.append((type(error), phase))
        del split, position
        await asyncio.sleep(0)
        match error:
            case VerdictError(verdict):
                return verdict
            case ThrottledError() | SubscriptionEndedError() | SubscriptionSilentError():
                return Retry(Pace.FLOOR)
            case MalformedEventError() | EOFError():
                return Retry(limit=3)
            case FanOutError(retryable=True) | OSError():
                return Retry()
            case _:
                return Fatal("the script says so")

    async def acknowledge(self, positions: Mapping[str, Position]) -> None:
        self._source.acknowledged.append(dict(positions))
        await asyncio.sleep(0)

    @asynccontextmanager
    async def subscribe(
        self, split: Split, position: Position, reserve: Reserve
    ) -> AsyncIterator[AsyncIterator[Batch | End]]:
        source, log = self._source, self._source.log(split.id)
        number = len(source.calls_of(split.id))
        source.calls.append(Call(split.id, position, asyncio.get_running_loop().time()))
        fault = log.faults[number] if number < len(log.faults) else None
        with source.answering():
            if source.answer_after:
                await asyncio.sleep(source.answer_after)
            match fault:
                case Refuse(error):
                    raise error
                case NoAnswer():
                    await _for_ever()
                case _:
                    pass
        source.live[split.id] += 1
        if source.live[split.id] > 1:
            source.broken.append(f"two live subscriptions of {split}")
        try:
            async with aclosing(_faulty(_serve(log, position, reserve), fault)) as events:
                yield events
            if source.close_after:
                await asyncio.sleep(source.close_after)
        finally:
            source.live[split.id] -= 1
            if isinstance(fault, BadClose):
                raise fault.error


async def _serve(log: Log, position: Position, reserve: Reserve) -> AsyncGenerator[Batch | End]:
    """Send what the log has after a position; heartbeats, or the end, after its last entry."""
    entries = [entry for entry in log.entries if _is_after(entry, position)]
    while entries:
        count = _records_in_next_event(entries, log.per_event)
        event, entries = entries[: max(count, 1)], entries[max(count, 1) :]
        until = Cursor(_sequence(event[-1]))
        await asyncio.sleep(log.event_delay)
        behind = len(entries) + log.ends  # a split that ends is at its newest record with its end
        yield await _batch(log, event[:count], Range(position, until), behind, reserve)
        position = until
    if log.ends:
        await asyncio.sleep(log.event_delay)
        yield End(log.split, log.children)
        return
    while log.heartbeat is not None:
        await asyncio.sleep(log.heartbeat)
        yield await _batch(log, [], Range(position, position), 0, reserve)
    await _for_ever()


async def _batch(
    log: Log, event: Sequence[int | Idle], covered: Range, behind: int, reserve: Reserve
) -> Batch:
    records = record_batch(log, [_sequence(entry) for entry in event])
    await reserve(records.nbytes)
    return Batch(log.split, records, covered, lag=float(behind), behind=behind)


def record_batch(log: Log, sequences: Sequence[int]) -> pa.RecordBatch:
    """Build the records that a log holds under these sequence numbers."""
    return pa.record_batch(
        [
            [log.split.id] * len(sequences),
            sequences,
            [str(sequence).encode().ljust(log.size) for sequence in sequences],
        ],
        schema=SCHEMA,
    )


async def _faulty(
    served: AsyncGenerator[Batch | End], fault: Fault | None
) -> AsyncGenerator[Batch | End]:
    """Let events pass until the fault strikes."""
    sent = 0
    async with aclosing(served) as events:
        while True:
            match fault:
                case Break(after, error) if sent == after:
                    raise error
                case Stall(after) if sent == after:
                    await _for_ever()
                case Stop(after) if sent == after:
                    return
                case _:
                    pass
            try:
                event = await anext(events)
            except StopAsyncIteration:
                return
            yield event
            sent += 1


def _records_in_next_event(entries: Sequence[int | Idle], most: int) -> int:
    count = 0
    while count < min(most, len(entries)) and isinstance(entries[count], int):
        count += 1
    return count


def _is_after(entry: int | Idle, position: Position) -> bool:
    match position:
        case Horizon():
            return True
        case Timestamp(millis):
            return _sequence(entry) >= millis
        case Cursor(sequence):
            return _sequence(entry) > sequence


def _sequence(entry: int | Idle) -> int:
    return entry if isinstance(entry, int) else entry.sequence


async def _for_ever() -> None:
    await asyncio.get_running_loop().create_future()


def sequences(batch: Batch) -> list[int]:
    """Return the sequence numbers of a batch's records."""
    result: list[int] = batch.records.column("sequence").to_pylist()
    return result


def check_delivery(logs: Sequence[Log], delivered: Sequence[tuple[str, int]]) -> None:
    """Check that exactly the logs were delivered, in order, and children after their parents."""
    for log in logs:
        numbers = [number for split_id, number in delivered if split_id == log.split.id]
        assert numbers == log.records, f"{log.split}: {numbers} instead of {log.records}"
    order = [split_id for split_id, _ in delivered]
    for log in logs:
        for parent in log.split.parents:
            if log.split.id in order and parent in order:
                last_of_parent = len(order) - 1 - order[::-1].index(parent)
                assert last_of_parent < order.index(log.split.id), f"{log.split} before {parent}"


def seeded() -> Random:
    """Build a source of randomness that is the same in each run."""
    return Random(7)
