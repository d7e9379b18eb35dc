"""The service: splits with logs that grow, and that other splits replace."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from fanout.core.backoff import Backoff, Pacing
from fanout.core.event_time import EventTime
from fanout.core.events import Batch, End, Split
from fanout.core.policy import Fatal, Pace, Retry
from fanout.core.positions import Cursor, Horizon, Range
from fanout.core.source import Capabilities
from fanout.core.user_decode import BAD_RECORD
from fanout.errors import FanOutError, SubscriptionEndedError, SubscriptionSilentError
from fanout.testing.virtual_time.loop import running_loop
from tests.provers.simulation.randomness import happens, stream_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from fanout.core.policy import Phase, Verdict
    from fanout.core.positions import Position
    from fanout.core.source import Reserve
    from tests.provers.simulation.landers.plan import LandersPlan

__all__ = ("FlakyError", "SimSource", "SplitLog", "draw_logs", "is_bad", "records_before")

_SCHEMA: Final = pa.schema([("split", pa.string()), ("sequence", pa.int64())])
_BAD: Final = pa.struct([*_SCHEMA, ("reason", pa.string())])
_HEARTBEAT: Final = 1.0
_PER_EVENT: Final = 4
# Positions between two records, for heartbeats: they move a position, and there is no record.
_ROOM: Final = 1_000_000
_PACING: Final = Pacing(
    floor=1.0,
    spacing=5.0,
    subscribe_timeout=10.0,
    silence_timeout=20.0,
    discovery_interval=20.0,
    backoff=Backoff(base=1.0, cap=10.0),
)

# They import pandas and more, which reads files: not in a loop that refuses it.
pc.max(pa.array([0]))


class FlakyError(FanOutError):
    """A fault that goes away."""

    retryable = True


@final
@dataclass(frozen=True, slots=True)
class SplitLog:
    """The records of a split.

    Args:
        split: The split.
        since: When it appears.
        arrivals: When each record arrives; its sequence number is its place, from 1.
        ends_at: When it ends; None if it goes on.
        children: What replaces it.
    """

    split: Split
    since: float
    arrivals: tuple[float, ...]
    ends_at: float | None = None
    children: tuple[Split, ...] = ()

    def millis(self, sequence: int) -> int:
        """Return when a record arrives, in milliseconds."""
        return int(1000 * self.arrivals[sequence - 1])


def draw_logs(plan: LandersPlan) -> dict[str, SplitLog]:
    """Draw the splits of a plan: some are halved, others merged."""
    random = stream_of(plan.seed, "logs")
    open_since = {Split(f"split-{number}"): 0.0 for number in range(plan.splits)}
    logs: dict[str, SplitLog] = {}
    number = plan.splits

    def close(split: Split, ends_at: float | None, children: tuple[Split, ...]) -> None:
        since = open_since.pop(split)
        count = random.randint(0, 2 * plan.records)
        until = plan.seconds if ends_at is None else ends_at
        arrivals = sorted(random.uniform(since, until) for _ in range(count))
        logs[split.id] = SplitLog(split, since, tuple(arrivals), ends_at, children)

    for reshard in range(plan.reshards):
        at = plan.seconds * (reshard + random.uniform(0.2, 0.9)) / (plan.reshards + 1)
        parents = random.sample(list(open_since), min(len(open_since), random.choice((1, 1, 2))))
        born = 1 if len(parents) == 2 else 2
        ids = tuple(parent.id for parent in parents)
        children = tuple(Split(f"split-{number + place}", ids) for place in range(born))
        number += born
        for parent in parents:
            close(parent, at, children)
        open_since |= dict.fromkeys(children, at)
    for split in list(open_since):
        close(split, None, ())
    return logs


@final
class SimSource:
    """A `Source` of these logs.

    Args:
        plan: How flaky it is.
        logs: The splits.
        holding: Notes that the process that runs holds a subscription of a split.
    """

    schema = _SCHEMA

    def __init__(
        self,
        plan: LandersPlan,
        logs: Mapping[str, SplitLog],
        holding: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        self.plan = plan
        self.flaky = plan.flaky
        self.logs = logs
        self.holding = holding
        self.random = stream_of(plan.seed, "subscriptions")
        self.event_time = EventTime(self._times)

    @asynccontextmanager
    async def connect(self, *, available_now: bool = False) -> AsyncIterator[_Connection]:
        """Connect, which never fails."""
        assert not available_now
        yield _Connection(self)

    def cursor(self, batch: Batch, row: int) -> Cursor:
        """Return the position after a row."""
        return _after(batch.records.column("sequence")[row].as_py())

    def arrival(self, records: pa.RecordBatch, row: int) -> int:
        """Say when a row arrived."""
        log = self.logs[records.column("split")[row].as_py()]
        return log.millis(records.column("sequence")[row].as_py())

    def _times(self, records: pa.RecordBatch) -> pa.Array:
        """Say when rows arrived, which is their event time."""
        millis = [self.arrival(records, row) for row in range(records.num_rows)]
        return pa.array(millis, pa.timestamp("ms", tz="UTC"))


@final
class _Connection:
    identity = "simulated:splits"
    pacing = _PACING
    capabilities = Capabilities()

    def __init__(self, source: SimSource) -> None:
        self._source = source

    async def splits(self) -> Sequence[Split]:
        await asyncio.sleep(0.01)
        if happens(self._source.random, self._source.flaky):
            raise FlakyError("no listing now")
        now = running_loop().time()
        return [log.split for log in self._source.logs.values() if log.since <= now]

    async def resolve(self, splits: Sequence[Split]) -> Mapping[str, Position]:
        return {split.id: Horizon() for split in splits}

    async def verdict(
        self,
        error: Exception,
        phase: Phase,
        split: Split | None = None,
        position: Position | None = None,
    ) -> Verdict:
        del phase, split, position
        match error:
            case SubscriptionEndedError() | SubscriptionSilentError():
                return Retry(Pace.FLOOR)
            case FanOutError(retryable=True):
                return Retry()
            case _:
                return Fatal("nothing of the simulation raises that")

    @asynccontextmanager
    async def subscribe(
        self, split: Split, position: Position, reserve: Reserve
    ) -> AsyncIterator[AsyncIterator[Batch | End]]:
        source = self._source
        await asyncio.sleep(source.random.uniform(0.0, 0.2))
        fails = happens(source.random, source.flaky)
        if fails and happens(source.random, 0.3):
            raise FlakyError("no subscription now")
        with source.holding(split.id):
            async with (
                aclosing(_serve(source, source.logs[split.id], position, reserve)) as events,
                aclosing(_fail(events, source) if fails else events) as seen,
            ):
                yield seen


async def _serve(
    source: SimSource, log: SplitLog, position: Position, reserve: Reserve
) -> AsyncGenerator[Batch | End]:
    """Send what is behind a position as it arrives, heartbeats between, and the end."""
    last = records_before(position)
    while True:
        now = running_loop().time()
        here = sum(1 for arrival in log.arrivals if arrival <= now)
        if last < here:
            until = min(here, last + _PER_EVENT)
            covered = Range(position, _after(until))
            yield await _batch(source.plan, log, covered, here - until, reserve)
            last, position = until, _after(until)
        elif log.ends_at is not None and log.ends_at <= now:
            yield End(log.split, log.children)
            return
        else:
            following = [*log.arrivals[last : last + 1], *[at for at in [log.ends_at] if at]]
            wait = min([_HEARTBEAT, *[at - now for at in following]])
            await asyncio.sleep(max(wait, 0.001))
            if wait == _HEARTBEAT:
                moved = Cursor(position.sequence + 1 if isinstance(position, Cursor) else 1)
                yield await _batch(source.plan, log, Range(position, moved), 0, reserve)
                position = moved


async def _batch(
    plan: LandersPlan, log: SplitLog, covered: Range, behind: int, reserve: Reserve
) -> Batch:
    after, until = records_before(covered.after), records_before(covered.until)
    numbers = list(range(after + 1, until + 1))
    records = pa.record_batch([[log.split.id] * len(numbers), numbers], schema=_SCHEMA)
    bad = [
        {"split": log.split.id, "sequence": number, "reason": "it is drawn"}
        if is_bad(plan, log.split.id, number)
        else None
        for number in numbers
    ]
    if any(bad):
        records = records.append_column(BAD_RECORD, pa.array(bad, _BAD))
    await reserve(records.nbytes)
    return Batch(log.split, records, covered, lag=float(behind), behind=behind)


def is_bad(plan: LandersPlan, split_id: str, sequence: int) -> bool:
    """Return whether `decode` fails for a record."""
    return crc32(f"{plan.seed}/{split_id}/{sequence}".encode()) % 100 < 100 * plan.bad


def _after(sequence: int) -> Cursor:
    """Return the position right after a record."""
    return Cursor(sequence * _ROOM)


def records_before(position: Position) -> int:
    """Return how many records of its split a position is behind.

    Args:
        position: It may be further, after heartbeats.
    """
    return position.sequence // _ROOM if isinstance(position, Cursor) else 0


async def _fail(
    events: AsyncGenerator[Batch | End], source: SimSource
) -> AsyncGenerator[Batch | End]:
    """Let some events pass; then end, break or fall silent."""
    for _ in range(source.random.randint(0, 4)):
        yield await anext(events)
    match source.random.randrange(3):
        case 0:
            return
        case 1:
            raise FlakyError("the subscription breaks")
        case _:
            await asyncio.sleep(60.0)
