"""A model of a lease table, for processes that share a stream of Kinesis, in virtual time."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from botocore.exceptions import ClientError, EndpointConnectionError

from fanout.kinesis.leases.lease import CHECKPOINT, ENDED, KEY, Lease
from fanout.kinesis.leases.member import LeaseMember
from tests.support.members_model import ModelStream, Process, Referee, Run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from fanout.core.backoff import FullJitter
    from fanout.kinesis.leases.held_lease import HeldLease
    from fanout.kinesis.leases.lease import Attributes, Item

_T = TypeVar("_T")

SHARD = "shardId-00000000000"
FAILOVER = 10.0
_LATEST = 6.0  # seconds until a late call arrives


def _refused() -> ClientError:
    return ClientError({"Error": {"Code": "ThrottlingException", "Message": "model"}}, "Model")


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
            self._store(key, str(changes[CHECKPOINT]))
        self.items[key] = item
        return MappingProxyType(dict(item))

    def _store(self, key: str, checkpoint: str) -> None:
        if checkpoint == ENDED:
            self.referee.end(key)
        elif checkpoint.isdigit():
            self.referee.store(key, int(checkpoint))


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


@asynccontextmanager
async def join(
    table: ModelTable, process: Process, connection: Any, jitter: FullJitter
) -> AsyncIterator[LeaseMember]:
    member = LeaseMember(
        ProcessItems(process, table),
        connection,
        table="model",
        worker=process.name,
        # A clock that is fast or slow is one whose seconds are not ours.
        failover_time=FAILOVER * process.random.uniform(0.98, 1.02),
        handover_timeout=30.0,
        starts=await connection.resolve(await connection.splits()),
        jitter=jitter,
    )
    lose = member._lose

    async def lost(held: HeldLease) -> None:
        await process.running.wait()  # a frozen one does not notice it in time
        await lose(held)

    member._lose = lost  # type: ignore[method-assign]
    try:
        yield member
    finally:
        await member.leave()


def reader(table: ModelTable, faults: float, name: str, random: Random) -> Process:
    """Make a process that reads as a member."""
    gone = EndpointConnectionError(endpoint_url="model")
    return Process(name, random, faults, table.referee, partial(join, table), gone)


def _reshard(stream: ModelStream, random: Random) -> None:
    if random.random() < 0.5 and len(stream.open) > 1:
        merged = random.sample(stream.open, 2)
        child = stream.add(SHARD, *(shard.split.id for shard in merged))
        for shard in merged:
            shard.children = (child,)
    else:
        shard = random.choice(stream.open)
        parent = shard.split.id
        shard.children = (stream.add(SHARD, parent), stream.add(SHARD, parent))


async def _step(run: Run[Process], table: ModelTable, tasks: asyncio.TaskGroup) -> None:
    random = run.random
    run.referee.stream.put(random, random.randint(0, 20))
    living = list(run.processes)
    match random.randint(0, 9):
        case 0 | 1:
            _reshard(run.referee.stream, random)
        case 2 if len(living) < 4:
            run.start(tasks)
        case 3 if len(living) > 1:
            await run.stop(random.choice(living))
        case 4 if run.faults and len(living) > 1:
            run.kill(random.choice(living))
        case 5 if run.faults:
            await run.freeze(random.choice(living), random.uniform(1.0, 3 * FAILOVER))
        case 6 if run.faults:
            table.down = True
            await asyncio.sleep(random.choice((3.0, 2 * FAILOVER)))
            table.down = False
        case 7 if run.faults:
            await run.cut_off(random.choice(living), random.uniform(1.0, 2.0) * FAILOVER)
    await asyncio.sleep(random.choice((0.3, 3.0, 15.0)))


async def run_seed(seed: int) -> Run[Process]:
    """Run some processes on some shards, with or without faults, and hold the rules."""
    random = Random(seed)
    faults = random.choice((0.0, 0.02, 0.1))
    stream = ModelStream()
    for _ in range(random.randint(1, 6)):
        stream.add(SHARD)
    referee = Referee(stream)
    table = ModelTable(referee)
    run = Run(random, faults, referee, partial(reader, table, faults))
    async with asyncio.TaskGroup() as tasks:
        for _ in range(random.randint(1, 3)):
            run.start(tasks)
        for _ in range(random.randint(4, 12)):
            await _step(run, table, tasks)
        if not run.processes:
            run.start(tasks)
        await run.finish(30 * FAILOVER)
    await asyncio.sleep(_LATEST)
    leases = [Lease.of(item) for item in table.items.values() if "leaseCounter" in item]
    held = [each for each in leases if each.holder is not None and not each.ended]
    assert faults or not held, "a lease was not given back"
    assert referee.delivered.keys() == {*range(1, stream.last + 1)}
    if not faults:
        assert referee.repeated == 0, f"seed {seed}: repeated without a fault"
    return run
