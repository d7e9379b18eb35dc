"""A model of a stream and of processes that share it as a group, in virtual time.

A referee sees every grant, record and stored position, and knows the rules. Who the group is, and
how its service fails, each protocol says for itself.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import pyarrow as pa

from fanout.core.backoff import Backoff, Pacing
from fanout.core.events import Batch, End, Split
from fanout.core.opening import open_stream
from fanout.core.policy import Fatal
from fanout.core.positions import Cursor, Horizon, Range
from fanout.core.source import Capabilities
from fanout.errors import SplitLostError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from fanout.core.backoff import FullJitter
    from fanout.core.drain import Drained
    from fanout.core.fan_out import FanOut
    from fanout.core.membership import SplitHolder
    from fanout.core.positions import Position

    Join = Callable[["Process", Any, FullJitter], AbstractAsyncContextManager[Any]]

SCHEMA = pa.schema([("sequence", pa.int64())])
pa.array([0])  # imports pandas, which reads files, so not in a loop that refuses blocking calls
PACING = Pacing(
    floor=0.1,
    spacing=0.1,
    subscribe_timeout=20.0,
    silence_timeout=1e6,
    discovery_interval=60.0,
    backoff=Backoff(base=0.1, cap=1.0),
)


@dataclass(eq=False)
class ModelSplit:
    """A split and all of its records."""

    split: Split
    records: list[int] = field(default_factory=list)
    children: tuple[Split, ...] = ()


@dataclass(eq=False)
class ModelStream:
    """A stream, whose sequence numbers are unique."""

    splits: dict[str, ModelSplit] = field(default_factory=dict)
    last: int = 0
    server_time: datetime = datetime(2026, 1, 1, tzinfo=UTC)

    def add(self, name: str, *parents: str) -> Split:
        split = Split(f"{name}{len(self.splits)}", tuple(sorted(parents)))
        self.splits[split.id] = ModelSplit(split)
        return split

    @property
    def open(self) -> list[ModelSplit]:
        return [each for each in self.splits.values() if not each.children]

    def put(self, random: Random, count: int) -> None:
        for _ in range(count):
            self.last += 1
            random.choice(self.open).records.append(self.last)


@dataclass(eq=False)
class Referee:
    """Hold the rules."""

    stream: ModelStream
    owners: dict[str, Process] = field(default_factory=dict)
    delivered: dict[int, int] = field(default_factory=dict)
    # Up to where the present owner of each split was delivered.
    reached: dict[str, int] = field(default_factory=dict)
    # Behind which record of a split another process went on after one.
    followed: dict[tuple[Process, str], int] = field(default_factory=dict)
    acknowledged: set[int] = field(default_factory=set)
    stored: dict[str, int] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    repeated: int = 0
    moves: int = 0

    def granted(self, process: Process, split: Split, position: Position) -> None:
        reached = position.sequence if isinstance(position, Cursor) else 0
        assert reached == self.stored.get(split.id, 0), f"{split} goes on at {reached}"
        assert split.parents == self.stream.splits[split.id].split.parents
        for parent in split.parents:
            assert parent in self.ended, f"{split} is read before the end of {parent} is stored"
        if (before := self.owners.get(split.id, process)) is not process:
            self.followed[before, split.id] = reached
        self.owners[split.id], self.reached[split.id] = process, reached
        self.moves += 1

    def deliver(self, process: Process, batch: Batch) -> None:
        id_ = batch.split.id
        assert self.owners.get(id_) is process, f"{id_} has two owners"
        for number in numbers_of(batch):
            assert number > self.reached[id_], f"{id_} is out of order"
            records = self.stream.splits[id_].records
            skipped = [each for each in records if self.reached[id_] < each < number]
            assert not skipped, f"{id_} skips {skipped}"
            self.reached[id_] = number
            self.repeated += number in self.delivered
            self.delivered[number] = self.delivered.get(number, 0) + 1

    def took(self, process: Process, drained: Drained) -> None:
        """Check that what a process has acknowledged well is its own, or comes to no other."""
        for batch in drained.batches:
            id_, last = batch.split.id, numbers_of(batch)[-1]
            mine = self.owners.get(id_) is process or self.followed[process, id_] >= last
            assert mine, f"{id_} was acknowledged after it was lost"

    def delivers_again(self, process: Process) -> None:
        """What a process has and has not stored comes again."""
        for id_ in [id_ for id_, owner in self.owners.items() if owner is process]:
            self.reached[id_] = self.stored.get(id_, 0)

    def store(self, split_id: str, number: int) -> None:
        """Check a position before it is stored."""
        records = self.stream.splits[split_id].records
        before = {each for each in records if each <= number}
        assert before <= self.acknowledged, f"{split_id} is stored too far"
        assert number >= self.stored.get(split_id, 0), f"{split_id} is stored back"
        self.stored[split_id] = number

    def end(self, split_id: str) -> None:
        """Check that a split is read before that is stored."""
        records = self.stream.splits[split_id].records
        assert set(records) <= self.acknowledged, f"{split_id} ends too early"
        self.ended.add(split_id)

    @property
    def done(self) -> bool:
        """Whether all that there is was read and stored."""
        return all(
            not one.records or self.stored.get(id_, 0) == one.records[-1]
            if not one.children
            else id_ in self.ended
            for id_, one in self.stream.splits.items()
        )


def numbers_of(batch: Batch) -> list[int]:
    return cast("list[int]", batch.records.column("sequence").to_pylist())


@dataclass(eq=False)
class Process:
    """One process of the application; `gone` is the error of a call of a dead one."""

    name: str
    random: Random
    faults: float
    referee: Referee
    join: Join
    gone: Exception
    alive: bool = True
    cut_off: bool = False  # from the group's service; it reads on
    running: asyncio.Event = field(default_factory=asyncio.Event)
    stream: FanOut | None = None
    lost: int = 0

    def __post_init__(self) -> None:
        self.running.set()

    def happens(self, share: float = 1.0) -> bool:
        return self.random.random() < self.faults * share

    async def awake(self) -> None:
        """Wait while the process is frozen; nothing of a dead one arrives."""
        await self.running.wait()
        if not self.alive:
            raise self.gone

    async def live(self, most: int | None = None) -> None:
        """Read and acknowledge until the stream is stopped, or so many records were delivered."""
        source = cast("Any", ModelSource(self))
        group = cast("Any", _Joined(self))
        async with open_stream(source, group=group, random=self.random) as self.stream:
            held: list[Drained] = []
            done = self.referee.delivered
            while self.alive and not self.stream.stopping and (most is None or len(done) < most):
                drained = await self.stream.drain(
                    max_records=self.random.randint(1, 10), max_wait=self.random.uniform(0.0, 0.5)
                )
                await self.work(drained)
                held.append(drained)
                # What is acknowledged later counts for all before.
                if not drained.batches or self.random.random() < 0.5:
                    await self.acknowledge(held)
                    held = []
            await self.acknowledge(held)

    async def work(self, drained: Drained) -> None:
        for batch in drained.batches:
            self.referee.deliver(self, batch)
        await asyncio.sleep(self.random.choice((0.0, 0.0, 0.05, 1.0)))
        await self.running.wait()

    async def acknowledge(self, held: list[Drained]) -> None:
        if not self.alive or self.stream is None:
            return
        for drained in held:
            # The work with the records is done, whoever has the splits now.
            for batch in drained.batches:
                self.referee.acknowledged.update(numbers_of(batch))
            try:
                await self.stream.acknowledge(drained)
            except SplitLostError:
                self.lost += 1
            else:
                self.referee.took(self, drained)


@dataclass(frozen=True)
class _Joined:
    """The group, for one process."""

    process: Process

    @asynccontextmanager
    async def join(self, _: Any, connection: Any, jitter: FullJitter) -> AsyncIterator[Any]:
        async with self.process.join(self.process, connection, jitter) as member:
            yield _Watched(member, self.process)


class _Watched:
    """A member whose grants the referee sees."""

    def __init__(self, member: Any, process: Process) -> None:
        self._member = member
        self._process = process

    def __getattr__(self, name: str) -> Any:
        return getattr(self._member, name)

    async def take_part(self, holder: SplitHolder) -> None:
        grant, process = holder.grant, self._process

        def granted(split: Split, position: Position) -> None:
            process.referee.granted(process, split, position)
            grant(split, position)

        holder.grant = granted  # type: ignore[method-assign]
        await self._member.take_part(holder)


@dataclass(frozen=True)
class ModelSource:
    """The stream, as one process reads it."""

    process: Process
    schema: Any = SCHEMA
    event_time: None = None

    @asynccontextmanager
    async def connect(self, *, available_now: bool = False) -> AsyncIterator[ModelConnection]:
        del available_now
        yield ModelConnection(self.process)

    def cursor(self, batch: Batch, row: int) -> Cursor:
        return Cursor(batch.records.column("sequence")[row].as_py())

    def arrival(self, *_: object) -> None:
        return None


class ModelConnection:
    """Read the splits of the model."""

    identity = "model"
    pacing = PACING

    def __init__(self, process: Process) -> None:
        self.stream = process.referee.stream
        self.capabilities = Capabilities()
        self.shards: Mapping[str, Any] = {}
        self._process = process

    async def splits(self) -> Sequence[Split]:
        await asyncio.sleep(0.01)
        return [each.split for each in self.stream.splits.values()]

    async def resolve(self, splits: Sequence[Split]) -> Mapping[str, Position]:
        return {split.id: Horizon() for split in splits}

    async def verdict(self, *_: object) -> Fatal:
        return Fatal()

    @asynccontextmanager
    async def subscribe(self, split: Split, position: Position, _: Any) -> AsyncIterator[Any]:
        yield self._events(split, position)

    async def _events(self, split: Split, position: Position) -> AsyncIterator[Batch | End]:
        one = self.stream.splits[split.id]
        while True:
            reached = position.sequence if isinstance(position, Cursor) else 0
            rows = [each for each in one.records if each > reached]
            rows = rows[: self._process.random.randint(1, 4)]
            if rows:
                records = pa.record_batch([pa.array(rows, pa.int64())], SCHEMA)
                until = Cursor(rows[-1])
                yield Batch(split, records, Range(position, until))
                position = until
            elif one.children:
                yield End(split, one.children)
                return
            await asyncio.sleep(self._process.random.uniform(0.05, 0.5))
            await self._process.running.wait()


_P = TypeVar("_P", bound=Process)


@dataclass(eq=False)
class Run(Generic[_P]):
    """One run of a seed; `make` makes a process by its name."""

    random: Random
    faults: float
    referee: Referee
    make: Callable[[str, Random], _P]
    processes: dict[_P, asyncio.Task[None]] = field(default_factory=dict)
    names: int = 0

    def start(self, tasks: asyncio.TaskGroup) -> None:
        self.names += 1
        process = self.make(f"w{self.names}", Random(self.random.random()))
        self.processes[process] = tasks.create_task(process.live(), name=process.name)

    async def stop(self, process: _P) -> None:
        task = self.processes.pop(process)
        if process.stream is not None:
            process.stream.stop()
        else:
            task.cancel()
        await asyncio.wait([task])

    def kill(self, process: _P) -> None:
        process.alive = False
        self.processes.pop(process).cancel()

    async def freeze(self, process: _P, seconds: float) -> None:
        process.running.clear()
        await asyncio.sleep(seconds)
        process.running.set()

    async def cut_off(self, process: _P, seconds: float) -> None:
        """Let nothing of a process come to the service of its group, while records arrive."""
        process.cut_off = True
        for _ in range(10):
            await asyncio.sleep(seconds / 10)
            self.referee.stream.put(self.random, 3)
        process.cut_off = False

    async def finish(self, patience: float) -> None:
        """Wait until everything is read and stored, then stop all processes."""
        for process in self.processes:
            process.faults = 0.0
        async with asyncio.timeout(patience):
            while not self.referee.done:  # noqa: ASYNC110
                await asyncio.sleep(1.0)
        for process in list(self.processes):
            await self.stop(process)
