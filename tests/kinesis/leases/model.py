"""A model of a stream, of a lease table and of processes that share them, in virtual time.

A referee sees every grant, record and stored position, and knows the rules.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pyarrow as pa
from botocore.exceptions import ClientError, EndpointConnectionError

from fanout.core.backoff import Backoff, FullJitter, Pacing
from fanout.core.events import Batch, End, Split
from fanout.core.opening import open_stream
from fanout.core.policy import Fatal
from fanout.core.positions import Cursor, Horizon, Range
from fanout.core.source import Capabilities
from fanout.errors import SplitLostError
from fanout.kinesis.leases.lease import CHECKPOINT, ENDED, KEY, Lease
from fanout.kinesis.leases.member import LeaseMember

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from fanout.core.drain import Drained
    from fanout.core.fan_out import FanOut
    from fanout.core.membership import SplitHolder
    from fanout.core.positions import Position
    from fanout.kinesis.leases.held_lease import HeldLease
    from fanout.kinesis.leases.lease import Attributes, Item

_T = TypeVar("_T")

SCHEMA = pa.schema([("sequence", pa.int64())])
pa.array([0])  # imports pandas, which reads files, so not in a loop that refuses blocking calls
FAILOVER = 10.0
_LATEST = 6.0  # seconds until a late call arrives
PACING = Pacing(
    floor=0.1,
    spacing=0.1,
    subscribe_timeout=20.0,
    silence_timeout=1e6,
    discovery_interval=60.0,
    backoff=Backoff(base=0.1, cap=1.0),
)


@dataclass(eq=False)
class ModelShard:
    """A shard and all of its records."""

    split: Split
    records: list[int] = field(default_factory=list)
    children: tuple[Split, ...] = ()


@dataclass(eq=False)
class ModelStream:
    """A stream, whose sequence numbers are unique."""

    shards: dict[str, ModelShard] = field(default_factory=dict)
    last: int = 0
    server_time: datetime = datetime(2026, 1, 1, tzinfo=UTC)

    def add(self, *parents: str) -> Split:
        split = Split(f"shardId-{len(self.shards):012d}", tuple(sorted(parents)))
        self.shards[split.id] = ModelShard(split)
        return split

    @property
    def open(self) -> list[ModelShard]:
        return [shard for shard in self.shards.values() if not shard.children]

    def put(self, random: Random, count: int) -> None:
        for _ in range(count):
            self.last += 1
            random.choice(self.open).records.append(self.last)

    def reshard(self, random: Random) -> None:
        if random.random() < 0.5 and len(self.open) > 1:
            merged = random.sample(self.open, 2)
            child = self.add(*(shard.split.id for shard in merged))
            for shard in merged:
                shard.children = (child,)
        else:
            shard = random.choice(self.open)
            shard.children = (self.add(shard.split.id), self.add(shard.split.id))


def _refused() -> ClientError:
    return ClientError({"Error": {"Code": "ThrottlingException", "Message": "model"}}, "Model")


@dataclass(eq=False)
class Referee:
    """Hold the rules."""

    stream: ModelStream
    owners: dict[str, Process] = field(default_factory=dict)
    delivered: dict[int, int] = field(default_factory=dict)
    # Up to where the present owner of each shard was delivered.
    reached: dict[str, int] = field(default_factory=dict)
    acknowledged: set[int] = field(default_factory=set)
    stored: dict[str, int] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    repeated: int = 0
    moves: int = 0

    def granted(self, process: Process, split: Split, position: Position) -> None:
        reached = position.sequence if isinstance(position, Cursor) else 0
        assert reached == self.stored.get(split.id, 0), f"{split} goes on at {reached}"
        assert split.parents == self.stream.shards[split.id].split.parents
        for parent in split.parents:
            assert parent in self.ended, f"{split} is read before the end of {parent} is stored"
        self.owners[split.id], self.reached[split.id] = process, reached
        self.moves += 1

    def deliver(self, process: Process, batch: Batch) -> None:
        id_ = batch.split.id
        assert self.owners.get(id_) is process, f"{id_} has two owners"
        for number in batch.records.column("sequence").to_pylist():
            assert number > self.reached[id_], f"{id_} is out of order"
            skipped = [
                each
                for each in self.stream.shards[id_].records
                if self.reached[id_] < each < number
            ]
            assert not skipped, f"{id_} skips {skipped}"
            self.reached[id_] = number
            self.repeated += number in self.delivered
            self.delivered[number] = self.delivered.get(number, 0) + 1

    def store(self, shard_id: str, checkpoint: str) -> None:
        """Check a position before it is stored."""
        records = self.stream.shards[shard_id].records
        if checkpoint == ENDED:
            assert set(records) <= self.acknowledged, f"{shard_id} ends too early"
            self.ended.add(shard_id)
        elif checkpoint.isdigit():
            number = int(checkpoint)
            before = {each for each in records if each <= number}
            assert before <= self.acknowledged, f"{shard_id} is stored too far"
            assert number >= self.stored.get(shard_id, 0), f"{shard_id} is stored back"
            self.stored[shard_id] = number


@dataclass(eq=False)
class ModelTable:
    """The service, as DynamoDB keeps items and conditions; `down` refuses all calls."""

    referee: Referee
    items: dict[str, dict[str, Any]] = field(default_factory=dict)
    down: bool = False
    writes: int = 0

    def update(
        self, key: str, expected: Attributes, changes: Attributes, add: Mapping[str, int]
    ) -> Item | None:
        item = self.items.get(key, {})
        if any(item.get(name) != value for name, value in expected.items()):
            return None
        self.writes += 1
        item = {KEY: key, **item}
        for name, value in changes.items():
            item.pop(name, None)
            if value is not None:
                item[name] = value
        for name, value in add.items():
            item[name] = item.get(name, 0) + value
        if CHECKPOINT in changes:
            self.referee.store(key, str(changes[CHECKPOINT]))
        self.items[key] = item
        return MappingProxyType(dict(item))


@dataclass(eq=False)
class ProcessItems:
    """The calls of one process, which may be throttled, answered late or not, or arrive late."""

    process: Process
    table: ModelTable

    async def scan(self) -> Sequence[Item]:
        return await self._call(
            lambda: [MappingProxyType(dict(item)) for item in self.table.items.values()]
        )

    async def get(self, key: str) -> Item | None:
        return await self._call(lambda: self.table.items.get(key))

    async def create(self, item: Item) -> bool:
        def create() -> bool:
            if item[KEY] in self.table.items:
                return False
            self.table.items[str(item[KEY])] = dict(item)
            return True

        return await self._call(create)

    async def update(
        self, key: str, expected: Attributes, changes: Attributes, add: Mapping[str, int]
    ) -> Item | None:
        return await self._call(lambda: self.table.update(key, expected, changes, add))

    async def delete(self, key: str, expected: Attributes) -> bool:
        def delete() -> bool:
            item = self.table.items.get(key, {})
            if any(item.get(name) != value for name, value in expected.items()):
                return False
            return self.table.items.pop(key, None) is not None

        return await self._call(delete)

    async def renew_credentials(self) -> None:
        pass

    async def _call(self, work: Callable[[], _T]) -> _T:
        random, process = self.process.random, self.process
        await asyncio.sleep(random.uniform(0.002, 0.1))
        await process.awake()
        if self.table.down or process.cut_off or process.happens():
            raise _refused()
        if process.happens(0.3):  # nobody waits for the answer, and the call arrives late
            loop = asyncio.get_running_loop()
            loop.call_later(random.uniform(0.5, _LATEST), lambda: work() if process.alive else None)
            raise EndpointConnectionError(endpoint_url="model")
        answer = work()
        await asyncio.sleep(random.uniform(0.002, 0.1))
        await process.awake()
        if process.happens():
            raise EndpointConnectionError(endpoint_url="model")
        return answer


@dataclass(eq=False)
class Process:
    """One process of the application."""

    name: str
    random: Random
    faults: float
    table: ModelTable
    alive: bool = True
    cut_off: bool = False  # from the table; it reads on
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
            raise EndpointConnectionError(endpoint_url="model")

    async def live(self, most: int | None = None) -> None:
        """Read and acknowledge until the stream is stopped, or so many records were delivered."""
        source = cast("Any", ModelSource(self))
        group = cast("Any", ModelGroup(self))
        async with open_stream(source, group=group, random=self.random) as self.stream:
            held: list[Drained] = []
            done = self.table.referee.delivered
            while self.alive and not self.stream.stopping and (most is None or len(done) < most):
                drained = await self.stream.drain(
                    max_records=self.random.randint(1, 10), max_wait=self.random.uniform(0.0, 0.5)
                )
                await self._work(drained)
                held.append(drained)
                # What is acknowledged later counts for all before.
                if not drained.batches or self.random.random() < 0.5:
                    await self._acknowledge(held)
                    held = []
            await self._acknowledge(held)

    async def _work(self, drained: Drained) -> None:
        for batch in drained.batches:
            self.table.referee.deliver(self, batch)
        await asyncio.sleep(self.random.choice((0.0, 0.0, 0.05, 1.0)))
        await self.running.wait()

    async def _acknowledge(self, held: list[Drained]) -> None:
        if not self.alive or self.stream is None:
            return
        for drained in held:
            # The work with the records is done, whoever has the shards now.
            for batch in drained.batches:
                numbers = batch.records.column("sequence").to_pylist()
                self.table.referee.acknowledged.update(numbers)
            try:
                await self.stream.acknowledge(drained)
            except SplitLostError:
                self.lost += 1


@dataclass(frozen=True)
class ModelGroup:
    """The group, for one process."""

    process: Process

    @asynccontextmanager
    async def join(self, _: Any, connection: Any, jitter: FullJitter) -> AsyncIterator[Any]:
        process = self.process
        member = LeaseMember(
            ProcessItems(process, process.table),
            connection,
            table="model",
            worker=process.name,
            # A clock that is fast or slow is one whose seconds are not ours.
            failover_time=FAILOVER * process.random.uniform(0.98, 1.02),
            handover_timeout=30.0,
            starts=await connection.resolve(await connection.splits()),
            jitter=jitter,
        )
        try:
            yield _Watched(member, process)
        finally:
            await member.leave()


class _Watched:
    """A member whose grants the referee sees."""

    def __init__(self, member: LeaseMember, process: Process) -> None:
        self._member = member
        self._process = process
        lose = member._lose

        async def lost(held: HeldLease) -> None:
            await process.running.wait()  # a frozen one does not notice it in time
            await lose(held)

        member._lose = lost  # type: ignore[method-assign]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._member, name)

    async def take_part(self, holder: SplitHolder) -> None:
        grant, process = holder.grant, self._process

        def granted(split: Split, position: Position) -> None:
            process.table.referee.granted(process, split, position)
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
    """Read the shards of the model."""

    identity = "model"
    pacing = PACING

    def __init__(self, process: Process) -> None:
        self.stream = process.table.referee.stream
        self.capabilities = Capabilities()
        self.shards: Mapping[str, Any] = {}
        self._process = process

    async def splits(self) -> Sequence[Split]:
        await asyncio.sleep(0.01)
        return [shard.split for shard in self.stream.shards.values()]

    async def resolve(self, splits: Sequence[Split]) -> Mapping[str, Position]:
        return {split.id: Horizon() for split in splits}

    async def verdict(self, *_: object) -> Fatal:
        return Fatal()

    @asynccontextmanager
    async def subscribe(self, split: Split, position: Position, _: Any) -> AsyncIterator[Any]:
        yield self._events(split, position)

    async def _events(self, split: Split, position: Position) -> AsyncIterator[Batch | End]:
        shard = self.stream.shards[split.id]
        while True:
            reached = position.sequence if isinstance(position, Cursor) else 0
            rows = [each for each in shard.records if each > reached]
            rows = rows[: self._process.random.randint(1, 4)]
            if rows:
                records = pa.record_batch([pa.array(rows, pa.int64())], SCHEMA)
                until = Cursor(rows[-1])
                yield Batch(split, records, Range(position, until))
                position = until
            elif shard.children:
                yield End(split, shard.children)
                return
            await asyncio.sleep(self._process.random.uniform(0.05, 0.5))
            await self._process.running.wait()


@dataclass(eq=False)
class Run:
    """One run of a seed."""

    random: Random
    faults: float
    stream: ModelStream
    table: ModelTable
    processes: dict[Process, asyncio.Task[None]] = field(default_factory=dict)
    names: int = 0

    def start(self, tasks: asyncio.TaskGroup) -> None:
        self.names += 1
        process = Process(f"w{self.names}", Random(self.random.random()), self.faults, self.table)
        self.processes[process] = tasks.create_task(process.live(), name=process.name)

    async def step(self, tasks: asyncio.TaskGroup) -> None:
        random = self.random
        self.stream.put(random, random.randint(0, 20))
        living = list(self.processes)
        match random.randint(0, 9):
            case 0 | 1:
                self.stream.reshard(random)
            case 2 if len(living) < 4:
                self.start(tasks)
            case 3 if len(living) > 1:
                await self._stop(random.choice(living))
            case 4 if self.faults and len(living) > 1:
                self._kill(random.choice(living))
            case 5 if self.faults:
                await self._freeze(random.choice(living), random.uniform(1.0, 3 * FAILOVER))
            case 6 if self.faults:
                self.table.down = True
                await asyncio.sleep(random.choice((3.0, 2 * FAILOVER)))
                self.table.down = False
            case 7 if self.faults:
                process = random.choice(living)
                process.cut_off = True
                for _ in range(random.randint(10, 20)):
                    await asyncio.sleep(FAILOVER / 10)
                    self.stream.put(random, 3)
                process.cut_off = False
        await asyncio.sleep(random.choice((0.3, 3.0, 15.0)))

    async def _stop(self, process: Process) -> None:
        task = self.processes.pop(process)
        if process.stream is not None:
            process.stream.stop()
        else:
            task.cancel()
        await asyncio.wait([task])

    def _kill(self, process: Process) -> None:
        process.alive = False
        self.processes.pop(process).cancel()

    async def _freeze(self, process: Process, seconds: float) -> None:
        process.running.clear()
        await asyncio.sleep(seconds)
        process.running.set()

    async def finish(self) -> None:
        """Wait until everything is read and stored, then stop all processes."""
        referee = self.table.referee
        async with asyncio.timeout(30 * FAILOVER):
            while not self._done():  # noqa: ASYNC110
                await asyncio.sleep(1.0)
        for process in list(self.processes):
            await self._stop(process)
        await asyncio.sleep(_LATEST)
        leases = [Lease.of(item) for item in self.table.items.values() if "leaseCounter" in item]
        held = [each for each in leases if each.holder is not None and not each.ended]
        assert self.faults or not held, "a lease was not given back"
        assert referee.delivered.keys() == {*range(1, self.stream.last + 1)}

    def _done(self) -> bool:
        referee = self.table.referee
        return all(
            not shard.records or referee.stored.get(id_, 0) == shard.records[-1]
            if not shard.children
            else id_ in referee.ended
            for id_, shard in self.stream.shards.items()
        )


async def run_seed(seed: int) -> Run:
    """Run some processes on some shards, with or without faults, and hold the rules."""
    random = Random(seed)
    faults = random.choice((0.0, 0.02, 0.1))
    stream = ModelStream()
    for _ in range(random.randint(1, 6)):
        stream.add()
    run = Run(random, faults, stream, ModelTable(Referee(stream)))
    async with asyncio.TaskGroup() as tasks:
        for _ in range(random.randint(1, 3)):
            run.start(tasks)
        for _ in range(random.randint(4, 12)):
            await run.step(tasks)
        if not run.processes:
            run.start(tasks)
        for process in run.processes:
            process.faults = 0.0
        await run.finish()
    if not faults:
        assert run.table.referee.repeated == 0, f"seed {seed}: repeated without a fault"
    return run
