"""A model of a group's coordinator (KIP-848), for processes that share a topic, in virtual time.

It assigns in epochs, takes partitions back in steps, and fences as GroupMetadataManager and
ConsumerGroup of Kafka 4.3 do. Some runs acknowledge, others commit in transactions.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

from aiokafka.errors import (
    GroupLoadInProgressError,
    KafkaConnectionError,
    NotCoordinatorForGroupError,
    RequestTimedOutError,
)

from fanout.core.membership import SharedSplits
from fanout.errors import BatchNotWrittenError, SplitLostError
from fanout.kafka.group.calls import AssignedPartition, Code, Heartbeat, Stored
from fanout.kafka.group.member import ConsumerMember
from fanout.kafka.group.transactional import MemberPositions
from fanout.kafka.partitions import Partition
from fanout.kafka.protocol.error_codes import BrokerError
from fanout.kafka.reading.offsets import next_offset
from fanout.kafka.transactions.calls import MemberRefusedError
from fanout.kafka.transactions.outcome import TransactionOutcome
from fanout.kafka.writing.own_transactions import OwnTransactions
from tests.support.members_model import ModelStream, Process, Referee, Run, numbers_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping

    from fanout.core.backoff import FullJitter
    from fanout.core.drain import Drained
    from fanout.core.positions import Cursor
    from fanout.kafka.group.calls import GroupOffsets, Identity

_T = TypeVar("_T")

TOPIC = "orders"
_ID = b"i" * 16
SESSION, INTERVAL = 10.0, 1.5
TRANSACTION = 30.0  # seconds after which the broker aborts one
_LATEST = 6.0  # seconds until a late heartbeat arrives
_LEAVES = -1


@dataclass(eq=False)
class ModelMember:
    """What the coordinator knows of a member."""

    id: str
    seen: float
    epoch: int = 0
    previous: int = -1
    # The partitions that it has, with the epochs in which it got them.
    assigned: dict[int, int] = field(default_factory=dict)
    revoking: set[int] = field(default_factory=set)
    revoked_by: float = float("inf")
    rebalance_timeout: float = 45.0
    sent: frozenset[int] | None = None


@dataclass(eq=False)
class ModelCoordinator:
    """The service; `refuses` is the error of all calls while it is away or loads."""

    referee: Referee
    strict: bool  # whether a commit needs the newest epoch, as with older brokers
    members: dict[str, ModelMember] = field(default_factory=dict)
    target: dict[str, set[int]] = field(default_factory=dict)
    epoch: int = 0
    known: int = 0  # partitions
    texts: dict[int, str] = field(default_factory=dict)
    # Offsets in open transactions, by transactional id, and until when these are open.
    pending: dict[str, tuple[dict[int, int], float]] = field(default_factory=dict)
    written: dict[str, list[int]] = field(default_factory=dict)
    output: Counter[int] = field(default_factory=Counter)
    expired: set[str] = field(default_factory=set)  # transactional ids
    refuses: type[Exception] | None = None

    def heartbeat(
        self,
        member: Identity,
        *,
        rebalance_timeout: float | None = None,
        topics: Collection[str] | None = None,
        owned: Collection[AssignedPartition] | None = None,
    ) -> Heartbeat:
        self.expire()
        told = None if owned is None else {each.partition.number for each in owned}
        if member.epoch == _LEAVES:
            self._remove(member.id)
            return Heartbeat(0, "", _LEAVES, INTERVAL, None)
        state = self.members.get(member.id)
        if state is None:
            if member.epoch:
                return Heartbeat(Code.UNKNOWN_MEMBER_ID, "", 0, INTERVAL, None)
            state = self.members[member.id] = ModelMember(member.id, self._now)
            self._assign()
        elif member.epoch and member.epoch != state.epoch:
            lost_answer = member.epoch == state.previous and told is not None
            if not lost_answer or not (told or set()) <= state.assigned.keys():
                return Heartbeat(Code.FENCED_MEMBER_EPOCH, "", 0, INTERVAL, None)
        state.seen = self._now
        state.rebalance_timeout = rebalance_timeout or state.rebalance_timeout
        self._reconcile(state, told)
        assigned = frozenset(state.assigned)
        answered = None
        if topics is not None or member.epoch != state.epoch or assigned != state.sent:
            answered = frozenset(
                AssignedPartition(Partition(TOPIC, number), _ID) for number in assigned
            )
        state.sent = assigned
        return Heartbeat(0, "", state.epoch, INTERVAL, answered)

    def _reconcile(self, state: ModelMember, told: set[int] | None) -> None:
        """Take back what is no longer the member's; when that is done, give it what is free."""
        target = self.target[state.id]
        if state.revoking:
            if told is None or told & state.revoking:
                return
            state.revoking, state.revoked_by = set(), float("inf")
        leaving = state.assigned.keys() - target
        for number in leaving:
            del state.assigned[number]
        if told is None or told & leaving:
            state.revoking = set(leaving)
        if state.revoking:
            state.revoked_by = self._now + state.rebalance_timeout
            return
        if state.epoch != self.epoch:
            state.previous, state.epoch = state.epoch, self.epoch
        held = {n for one in self.members.values() for n in {*one.assigned} | one.revoking}
        for number in target - held:
            state.assigned[number] = state.epoch

    def _assign(self) -> None:
        """Compute who is to have what, with as few moves as balance allows."""
        self.epoch += 1
        self.known = len(self.referee.stream.splits)
        names = sorted(self.members, key=lambda id_: -len(self.target.get(id_, ())))
        least, more = divmod(self.known, max(len(names), 1))
        quota = {id_: least + (at < more) for at, id_ in enumerate(names)}
        had = {id_: sorted(self.target.get(id_, ()))[: quota[id_]] for id_ in names}
        free = sorted({*range(self.known)} - {n for some in had.values() for n in some})
        self.target = {id_: set(had[id_]) for id_ in names}
        for id_ in names:
            while len(self.target[id_]) < quota[id_]:
                self.target[id_].add(free.pop())

    def _remove(self, id_: str) -> None:
        if self.members.pop(id_, None) is not None:
            self.target.pop(id_, None)
            self._assign()

    def expire(self) -> None:
        """Remove members that were not heard, or give up too slowly; abort old transactions."""
        for id_, state in list(self.members.items()):
            if self._now >= min(state.seen + SESSION, state.revoked_by):
                self._remove(id_)
        if self.known != len(self.referee.stream.splits):
            self._assign()
        for name, (_, until) in list(self.pending.items()):
            if self._now >= until:
                self.end(name, commit=False)
                self.expired.add(name)

    def moves(self) -> None:
        """Another broker has loaded the group, and begins to wait for its members."""
        for state in self.members.values():
            state.seen = self._now
            if state.revoking:
                state.revoked_by = self._now + state.rebalance_timeout

    def commit(
        self, member: Identity, offsets: Mapping[Partition, int], texts: Mapping[str, str]
    ) -> Mapping[Partition, int]:
        codes = {each: self._refusal(member, each.number) for each in offsets}
        if not any(codes.values()):
            self._store({each.number: at for each, at in offsets.items()}, texts[TOPIC])
        return codes

    def _refusal(self, member: Identity, number: int) -> int:
        """Return the code of an offset: the newest epoch is not asked for the partition."""
        self.expire()
        state = self.members.get(member.id)
        if state is None:
            return Code.UNKNOWN_MEMBER_ID
        if member.epoch == state.epoch:
            return 0
        since = member.epoch + 1 if self.strict else state.assigned.get(number, member.epoch + 1)
        return 0 if since <= member.epoch < state.epoch else Code.STALE_MEMBER_EPOCH

    def _store(self, offsets: Mapping[int, int], text: str) -> None:
        for number, offset in offsets.items():
            self.referee.store(f"{TOPIC}-{number}", offset - 1)
            self.texts[number] = text

    def stored(
        self, member: Identity, partitions: Collection[Partition]
    ) -> Mapping[Partition, Stored]:
        self.expire()
        state = self.members.get(member.id)
        if state is None or member.epoch != state.epoch:
            code = Code.UNKNOWN_MEMBER_ID if state is None else Code.STALE_MEMBER_EPOCH
            raise BrokerError(code, "model")
        if {each.number for each in partitions} & {
            n for at, _ in self.pending.values() for n in at
        }:
            raise BrokerError(Code.UNSTABLE_OFFSET_COMMIT, "model")
        at = self.referee.stored
        return {
            each: Stored(at[str(each)] + 1, self.texts[each.number])
            if str(each) in at
            else Stored(None, "")
            for each in partitions
        }

    # Transactions.

    def claim(self, name: str, claim: GroupOffsets) -> None:
        assert claim.member is not None
        self.expire()
        if name in self.expired:
            return  # how it ended is asked for at its end
        if any(self._refusal(claim.member, each.number) for each in claim.positions):
            raise MemberRefusedError("model")
        offsets = {each.number: at for each, at in claim.offsets.items()}
        self.pending[name] = offsets, self._now + TRANSACTION
        self.texts |= dict.fromkeys(offsets, claim.texts[TOPIC])

    def begin(self, name: str) -> None:
        """Begin with a transactional id, which aborts its open transaction."""
        self.expired.discard(name)
        self.end(name, commit=False)

    def end(self, name: str, *, commit: bool) -> TransactionOutcome:
        """End an open transaction; once more does nothing."""
        if name in self.expired:
            return TransactionOutcome.EXPIRED
        offsets, _ = self.pending.pop(name, ({}, 0.0))
        numbers = self.written.pop(name, [])
        if commit:
            self.output.update(numbers)
            self.referee.acknowledged.update(numbers)
            for number, offset in offsets.items():
                self.referee.store(f"{TOPIC}-{number}", offset - 1)
        return TransactionOutcome.COMMITTED if commit else TransactionOutcome.ABORTED

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()


@dataclass(eq=False)
class ProcessCalls:
    """The calls of one process, which may be lost, answered late or not, or arrive late."""

    process: Process
    coordinator: ModelCoordinator
    speed: float  # of its clock
    group = "model"

    async def session_timeout(self) -> float:
        return await self.call(lambda: SESSION * self.speed)

    async def learn(self, _: Collection[str]) -> None:
        await asyncio.sleep(0)

    async def heartbeat(self, member: Identity, **told: Any) -> Heartbeat:
        beat = partial(self.coordinator.heartbeat, member, **told)
        return await self.call(beat, late=member.epoch != 0)

    async def commit(
        self, member: Any, positions: Mapping[Partition, Cursor], texts: Any
    ) -> Mapping[Partition, int]:
        offsets = {partition: next_offset(at) for partition, at in positions.items()}
        return await self.call(lambda: self.coordinator.commit(member, offsets, texts))

    async def stored(self, *arguments: Any) -> Mapping[Partition, Stored]:
        return await self.call(lambda: self.coordinator.stored(*arguments))

    async def call(self, work: Callable[[], _T], *, late: bool = False) -> _T:
        random, process = self.process.random, self.process
        await asyncio.sleep(random.uniform(0.002, 0.1))
        await process.awake()
        if process.cut_off or process.happens():
            raise KafkaConnectionError
        if self.coordinator.refuses is not None:
            raise self.coordinator.refuses
        if late and process.happens(0.3):  # nobody waits for the answer, and it arrives late
            loop = asyncio.get_running_loop()
            loop.call_later(random.uniform(0.5, _LATEST), lambda: work() if process.alive else None)
            raise RequestTimedOutError
        answer = work()
        await asyncio.sleep(random.uniform(0.002, 0.1))
        await process.awake()
        if process.cut_off or process.happens():
            raise RequestTimedOutError
        return answer


@dataclass(eq=False)
class ModelTransactions:
    """The cluster of a writer: each call is made until it succeeds, as `Transactions` makes it."""

    calls: ProcessCalls
    queued: int = 0

    async def write(self, rows: list[int], _: object) -> None:
        self.queued += len(rows)
        self._mine.extend(rows)
        await asyncio.sleep(0)

    async def flush(self) -> None:
        await self.calls.process.running.wait()
        await asyncio.sleep(self.calls.process.random.uniform(0.0, 0.3))

    def next_transaction(self) -> None:
        pass

    async def store_offsets(self, name: str, _: object, claim: GroupOffsets) -> None:
        await self._until_answered(lambda: self.calls.coordinator.claim(name, claim))

    async def abort(self, name: str, _: object) -> None:
        await self._until_answered(lambda: self.calls.coordinator.end(name, commit=False))

    async def end(self, name: str, _: object, *, patience: float) -> TransactionOutcome:
        del patience
        return await self._until_answered(lambda: self.calls.coordinator.end(name, commit=True))

    async def _until_answered(self, work: Callable[[], _T]) -> _T:
        while True:
            try:
                return await self.calls.call(work)
            except (KafkaConnectionError, RequestTimedOutError, *_MOVES):
                await asyncio.sleep(0.2)
                if not self.calls.process.alive:
                    raise

    @property
    def _mine(self) -> list[int]:
        return self.calls.coordinator.written.setdefault(self.calls.process.name, [])


_MOVES = (NotCoordinatorForGroupError, GroupLoadInProgressError)


class Copier(Process):
    """A process that commits what it reads in transactions, with what it has made of it."""

    own: OwnTransactions

    async def live(self, most: int | None = None) -> None:
        """Open a new writer where a transaction has taken too long."""
        ended = False
        while not ended and self.alive and not (self.stream and self.stream.stopping):
            with suppress(BatchNotWrittenError):
                await super().live(most)
                ended = True

    async def work(self, drained: Drained) -> None:
        await super().work(drained)
        for batch in drained.batches:
            rows: Any = numbers_of(batch)
            nothing: Any = None
            await self.own.write(rows, nothing)

    async def acknowledge(self, held: list[Drained]) -> None:
        if not self.alive or self.stream is None or not held:
            return
        positions = held[-1].positions
        assert isinstance(positions.shared, SharedSplits)
        member: Any = positions.shared.membership
        at = {id_: each.position for id_, each in positions.splits.items()}
        try:
            await self.own.commit_delivered(MemberPositions(positions.shared, member, at))
        except SplitLostError:
            self.lost += 1
            self.referee.delivers_again(self)


@asynccontextmanager
async def join(
    coordinator: ModelCoordinator, process: Process, connection: Any, jitter: FullJitter
) -> AsyncIterator[ConsumerMember]:
    calls: Any = ProcessCalls(process, coordinator, process.random.uniform(0.96, 1.04))
    if isinstance(process, Copier):
        cluster: Any = ModelTransactions(calls)
        coordinator.begin(process.name)
        joined: Any = SimpleNamespace(transactional_id=process.name, incarnation=None)
        process.own = OwnTransactions(cluster, cluster, joined, timeout=TRANSACTION)
    member = ConsumerMember(
        calls,
        connection,
        instance_id=None,
        handover_timeout=30.0,
        starts=await connection.resolve(await connection.splits()),
        jitter=jitter,
    )
    rejoin = member._rejoin

    async def rejoins(*arguments: Any) -> None:
        await process.running.wait()  # a frozen one does not notice it in time
        await rejoin(*arguments)

    member._rejoin = rejoins  # type: ignore[method-assign, assignment]
    try:
        yield member
    finally:
        await member.leave()


async def step(run: Run[Process], coordinator: ModelCoordinator, tasks: asyncio.TaskGroup) -> None:
    random, stream = run.random, run.referee.stream
    stream.put(random, random.randint(0, 20))
    living = list(run.processes)
    match random.randint(0, 9):
        case 0:
            stream.add(f"{TOPIC}-")
        case 1 | 2 if len(living) < 4:
            run.start(tasks)
        case 3 if len(living) > 1:
            await run.stop(random.choice(living))
        case 4 if run.faults and len(living) > 1:
            run.kill(random.choice(living))
        case 5 if run.faults:
            await run.freeze(random.choice(living), random.uniform(1.0, 3 * SESSION))
        case 6 | 7 if run.faults:
            for coordinator.refuses in random.choice((_MOVES, (KafkaConnectionError,))):
                await asyncio.sleep(random.choice((1.0, 3.0, 2 * SESSION)))
            coordinator.refuses = None
            coordinator.moves()
        case 8 if run.faults:
            await run.cut_off(random.choice(living), random.uniform(1.0, 2.0) * SESSION)
    await asyncio.sleep(random.choice((0.3, 3.0, 15.0)))


async def run_seed(seed: int) -> Run[Process]:
    """Run some processes on some partitions, with or without faults, and hold the rules."""
    random = Random(seed)
    faults = random.choice((0.0, 0.02, 0.1))
    kind = random.choice((Process, Copier))
    referee = Referee(ModelStream())
    for _ in range(random.randint(1, 6)):
        referee.stream.add(f"{TOPIC}-")
    coordinator = ModelCoordinator(referee, strict=random.random() < 0.3)

    def make(name: str, own: Random) -> Process:
        return kind(name, own, faults, referee, partial(join, coordinator), KafkaConnectionError())

    run = Run(random, faults, referee, make)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(random.randint(1, 3)):
            run.start(tasks)
        for _ in range(random.randint(4, 12)):
            await step(run, coordinator, tasks)
        if not run.processes:
            run.start(tasks)
        await run.finish(30 * SESSION)
    await asyncio.sleep(_LATEST)
    everything = {*range(1, referee.stream.last + 1)}
    assert referee.delivered.keys() == everything
    if kind is Copier:
        assert coordinator.output == Counter(everything)
    if not faults:
        assert referee.repeated == 0, f"seed {seed}: repeated without a fault"
        assert not coordinator.members, "a member has not left"
    return run
