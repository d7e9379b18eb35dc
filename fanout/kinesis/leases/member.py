"""One member of an application: leases that are taken, renewed, handed over and given back.

A lease is valid for the failover time from where its last renewal began, on the clock of this
process. Others take it when they have not seen its counter move for as long, on theirs, so no
clocks are compared.
"""

from __future__ import annotations

import asyncio
import logging
import math
import uuid
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, final

from fanout.core.cancellation import FailingTasks, cancellations, prefer_cancellation
from fanout.core.error_text import text_of
from fanout.core.events import Split
from fanout.core.policy import Fatal, Phase
from fanout.core.positions import Horizon, Timestamp
from fanout.core.statistics import CommitStatistics
from fanout.errors import FanOutError, ServiceError
from fanout.kinesis.leases.held_lease import HeldLease, LeaseLostError
from fanout.kinesis.leases.lease import (
    BEAT,
    CHECKPOINT,
    COUNTER,
    ENDED,
    GIVER,
    KIND,
    LEASE_KIND,
    NEWEST,
    OWNER,
    PROCESS,
    REPORTED,
    SWITCHES,
    WORKER_KIND,
    Lease,
    new_lease,
)
from fanout.kinesis.leases.sightings import Sightings, missing
from fanout.kinesis.leases.table import table_failure
from fanout.kinesis.policy import KinesisRemedy, judge

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from fanout.core.backoff import FullJitter
    from fanout.core.events import End
    from fanout.core.membership import SplitHolder
    from fanout.core.positions import Position
    from fanout.kinesis.connection import KinesisConnection
    from fanout.kinesis.leases.lease import Attributes, Value
    from fanout.kinesis.leases.table import Items

log = logging.getLogger(__name__)

# Parts of the failover time: for which a lease is valid, as clocks may run at different speeds;
# between two renewals of a lease; between two looks at the table.
_VALID: Final = 0.95
_RENEWAL: Final = 0.45
_LOOK: Final = 1 / 4
# Seconds between two looks while a lease is awaited, and between two writes of a lease.
_AWAITING: Final = 0.5
_STORING: Final = 1.0
# Seconds between two comparisons of the leases with the shards, as in the KCL.
_SYNCING: Final = 120.0
_LEAVING: Final = 5.0  # seconds that leaving may take
_CALLS_AT_ONCE: Final = 16
# Seconds over which rates are averaged, so that a burst moves no lease.
_AVERAGED: Final = 60.0


@final
class LeaseMember:
    """Take part in an application; a `Membership` of `fanout.core.membership`."""

    def __init__(
        self,
        items: Items,
        connection: KinesisConnection,
        *,
        table: str,
        worker: str,
        failover_time: float,
        handover_timeout: float,
        starts: Mapping[str, Position],
        jitter: FullJitter,
    ) -> None:
        self.group = table
        self.valid_until = math.inf
        self._items = items
        self._connection = connection
        self._worker = worker
        self._process = uuid.uuid4().hex
        self._failover_time = failover_time
        self._handover_timeout = handover_timeout
        self._starts = starts
        self._jitter = jitter
        self._clock = asyncio.get_running_loop().time
        self._sightings = Sightings(worker, failover_time)
        self._held: dict[str, HeldLease] = {}
        self._stops = 0  # of the task that leaves
        self._keeping: dict[str, asyncio.Task[None]] = {}
        self._measured: dict[str, tuple[float, int]] = {}  # when, and the bytes until then
        self._calls = asyncio.Semaphore(_CALLS_AT_ONCE)
        self._synced = -math.inf
        self._beat: Value | None = None
        self._worked: set[Callable[[], Awaitable[None]]] = set()  # the steps that have worked
        self._hurry = asyncio.Event()
        self._committed: Mapping[str, Position] = {}
        self._succeeded = self._failed = 0

    @property
    def commits(self) -> CommitStatistics:
        """Return what the table has of this member's; from any thread."""
        return CommitStatistics(self._committed, self._succeeded, self._failed)

    def store(self, positions: Mapping[str, Position]) -> None:
        """Store soon the positions of shards whose leases this member has."""
        for shard_id, position in positions.items():
            if held := self._held.get(shard_id):
                held.position = position
                held.wake.set()

    def finish(self, end: End) -> None:
        """Store soon that a shard is read to its end, with leases for the shards behind it."""
        if held := self._held.get(end.split.id):
            held.end = end
            held.wake.set()

    async def take_part(self, holder: SplitHolder) -> None:
        """Take, renew and hand over leases until cancelled."""
        self._holder = holder
        while (
            self._report not in self._worked
        ):  # a process of the same name hears of this one before it takes
            await self._attempt(self._report)
            if self._report not in self._worked:
                await asyncio.sleep(self._jitter.delay(1))
        async with FailingTasks() as self._tasks:
            for work in (self._reports, self._looks, self._expiry):
                self._spawn(work)
            await self._tasks.failure()

    def _spawn(self, work: Callable[..., Awaitable[None]], *args: Any) -> asyncio.Task[None]:
        return self._tasks.spawn("fanout lease member", work, *args)

    async def leave(self) -> None:
        """Store what is acknowledged, and give all leases back, within a few seconds."""
        self._stops = cancellations()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LEAVING):
                await self._together(partial(self._give_back, each) for each in self._held.values())
                await self._goodbye(self._withdraw())
                await self._goodbye(self._items.delete(self._worker, {PROCESS: self._process}))

    async def _give_back(self, held: HeldLease) -> None:
        held.leaving = True
        if held.end is not None:
            await self._goodbye(self._create_children(held, held.end))
        await self._goodbye(held.write())

    async def _withdraw(self) -> None:
        """Give leases back that others hand over, or have just handed over."""
        await self._see()
        for lease in self._sightings.leases.values():
            if lease.owner == self._worker and not lease.ended:
                changes: Attributes = {OWNER: lease.giver, GIVER: None}
                await self._items.update(lease.shard_id, _as_seen(lease), changes, {})

    async def _goodbye(self, call: Awaitable[object]) -> None:
        """Make a last call; without it others wait for the failover time."""
        try:
            await call
        except LeaseLostError:
            return
        except Exception as error:  # noqa: BLE001 - nothing depends on it
            prefer_cancellation(error, after=self._stops)
            log.warning("cannot leave the lease table %s well: %s", self.group, text_of(error))

    async def _together(self, calls: Iterable[Callable[[], Awaitable[None]]]) -> None:
        """Make all calls at one time, though not too many; then raise the first error."""
        failed: list[Exception] = []

        async def one(call: Callable[[], Awaitable[None]]) -> None:
            async with self._calls:
                try:
                    await call()
                except Exception as error:  # noqa: BLE001 - raised below
                    failed.append(error)

        async with asyncio.TaskGroup() as tasks:
            for call in calls:
                tasks.create_task(one(call), name="fanout lease call")
        if failed:
            raise failed[0]

    # What this member says of itself.

    async def _reports(self) -> None:
        while True:
            await asyncio.sleep(self._failover_time * _LOOK)
            await self._attempt(self._report)

    async def _report(self) -> None:
        """Say that this member is there; the KCL reads the time."""
        changes: Attributes = {
            KIND: WORKER_KIND,
            PROCESS: self._process,
            REPORTED: int(datetime.now(UTC).timestamp()),
            "sup": 1,
        }
        expected: Attributes = {} if self._beat is None else {PROCESS: self._process}
        item = await self._items.update(self._worker, expected, changes, {BEAT: 1})
        if item is not None:
            self._beat = item[BEAT]
        elif await self._items.get(self._worker) is None:
            self._beat = None  # others took this one for dead
        else:
            raise self._replaced()

    def _replaced(self) -> ServiceError:
        return ServiceError(
            f"another process has begun as the worker {self._worker!r} of {self.group}; give each "
            f"process its own name, or none"
        )

    # Looks at the table.

    async def _looks(self) -> None:
        while True:
            await self._attempt(self._look)
            pause = self._failover_time * _LOOK
            if self._sightings.awaited:
                pause = min(pause, _AWAITING)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._hurry.wait()
            self._hurry.clear()

    async def _look(self) -> None:
        await self._see()
        if self._clock() - self._synced >= _SYNCING:
            await self._create_missing()
        if self._sightings.unknown:
            await self._list_shards()
        for held in self._held.values():
            lease = self._sightings.leases.get(held.shard_id)
            if lease is not None and lease.giver == self._worker:
                self._ask(held)
        take, ask = self._sightings.wanted(self._held)
        given = self._sightings.assigned(self._held)
        await self._together(
            [
                *(partial(self._take, lease) for lease in take),
                *(partial(self._acquire, lease) for lease in given),
                *(partial(self._ask_for, lease) for lease in ask),
            ]
        )
        await self._grant()
        await self._clean()

    async def _see(self) -> None:
        items = await self._items.scan()
        self._sightings.see(items, self._clock())
        self._sightings.check(self._connection.identity, self.group)
        if self._sightings.process_of(self._worker) not in {self._process, None}:
            raise self._replaced()

    async def _create_missing(self) -> None:
        """Create the leases of shards that no member has read yet."""
        for split in missing(await self._list_shards(), self._sightings.leases):
            if not self._sightings.is_recent(self._clock()):
                return  # others may have read it meanwhile
            await self._create(split, self._starts.get(split.id, Horizon()))
        self._synced = self._clock()
        await self._see()

    async def _list_shards(self) -> Sequence[Split]:
        """List the shards, and learn which of them came from which."""
        listed = await self._connection.splits()
        expired = dict.fromkeys(self._sightings.unknown, ())
        found = {split.id: split.parents for split in listed}
        self._sightings.lineage = {**self._sightings.lineage, **expired, **found}
        return listed

    async def _create(self, split: Split, position: Position) -> None:
        shard = self._connection.shards.get(split.id)
        await self._items.create(
            new_lease(split, position, shard, stream=self._connection.identity)
        )

    async def _take(self, lease: Lease) -> None:
        """Take a lease that nobody has who lives."""
        await self._own(lease, _as_seen(lease), {COUNTER: 1, SWITCHES: 1})

    async def _acquire(self, lease: Lease) -> None:
        """Begin to renew a lease that another member has given to this one."""
        await self._own(lease, _as_seen(lease), {COUNTER: 1})

    async def _own(self, lease: Lease, expected: Attributes, add: Mapping[str, int]) -> None:
        changes: Attributes = {
            OWNER: self._worker,
            GIVER: None,
            PROCESS: self._process,
            KIND: LEASE_KIND,
        }
        began = self._clock()
        item = await self._items.update(lease.shard_id, expected, changes, add)
        if item is None or item[CHECKPOINT] == ENDED:
            return
        held = HeldLease(self._items, self._worker, self._process, item, began)
        self._held[held.shard_id] = held
        self._set_validity()
        self._keeping[held.shard_id] = self._spawn(self._keep, held)

    async def _ask_for(self, lease: Lease) -> None:
        """Ask the member that has a lease to hand it over; the counter stays."""
        expected: Attributes = {OWNER: lease.owner, GIVER: None}
        changes: Attributes = {OWNER: self._worker, GIVER: lease.owner}
        await self._items.update(lease.shard_id, expected, changes, {})

    async def _grant(self) -> None:
        """Have the shards read whose leases this member has, and whose parents are read."""
        for held in [*self._held.values()]:
            if held.granted or held.asked or not self._sightings.is_ready(held.lease):
                continue
            if held.shard_id not in self._connection.shards:
                await self._list_shards()  # its hash keys say which sub-records are its own
            if self._held.get(held.shard_id) is held and self._is_valid(held):
                held.granted = True
                self._measured[held.shard_id] = (self._clock(), 0)
                split = Split(held.shard_id, held.lease.parents)
                self._holder.grant(split, self._start_of(held.lease))

    def _start_of(self, lease: Lease) -> Position:
        position = lease.position()
        if position is not None:
            return position
        # The KCL stores that a shard begins at a time, and not which.
        start = self._starts.get(lease.shard_id)
        if lease.checkpoint == NEWEST:
            return Timestamp.at(self._connection.stream.server_time)
        if isinstance(start, Timestamp):
            return start
        raise ServiceError(
            f"the lease of {lease.shard_id} in {self.group!r} begins at the time that its KCL "
            f"application was configured with; pass that time as start of the source"
        )

    async def _clean(self) -> None:
        """Delete the leases of shards that are read, and the items of members that are dead."""
        for shard_id in self._sightings.cleanable:
            await self._items.delete(shard_id, {CHECKPOINT: ENDED})
        for worker, item in self._sightings.forgotten.items():
            await self._items.delete(worker, {BEAT: item[BEAT]})

    # The leases that this member has.

    async def _keep(self, held: HeldLease) -> None:
        """Write a lease in time, until it is lost or given away."""
        failures = 0
        while not held.gone:
            await self._due(held, failures)
            stores = held.position is not None or held.end is not None
            try:
                if held.end is not None:
                    await self._create_children(held, held.end)
                self._measure(held)
                async with self._calls:
                    await held.write()
            except LeaseLostError:
                await self._lose(held)
                return
            except Exception as error:  # noqa: BLE001 - the table of errors judges it
                await self._judge(error)
                failures += 1
                self._failed += stores
                if failures == 1:
                    log.warning("cannot renew the lease of %s: %s", held.shard_id, text_of(error))
                continue
            failures = 0
            self._set_validity()
            self._succeeded += stores
            if held.stored is not None:
                self._committed = {**self._committed, held.shard_id: held.stored}
            if held.lease.giver == self._worker:
                self._ask(held)
        self._forget(held)
        self._hurry.set()  # shards behind it may be read

    async def _due(self, held: HeldLease, failures: int) -> None:
        """Wait until a lease is to be written."""
        if failures:
            await asyncio.sleep(min(self._jitter.delay(failures), self._failover_time * _LOOK))
            return
        renewal = self._failover_time * _RENEWAL
        while not held.leaving and held.end is None:
            longest = renewal if held.position is None else min(_STORING, renewal)
            due = held.renewed + longest
            if self._clock() >= due:
                return
            held.wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await held.wake.wait()

    async def _create_children(self, held: HeldLease, end: End) -> None:
        """Create the leases behind a shard before its own says that it is read."""
        if any(child.id not in self._connection.shards for child in end.children):
            await self._connection.splits()
        for child in end.children:
            if not self._is_valid(held):
                raise LeaseLostError
            await self._create(child, Horizon())
        held.has_children = True

    def _measure(self, held: HeldLease) -> None:
        """Estimate the KB a second of a shard, from what was delivered of it."""
        now, until = self._clock(), self._holder.delivered_bytes(held.shard_id)
        before, count = self._measured.get(held.shard_id, (now, until))
        if now - before >= _STORING:
            rate = max(until - count, 0) / 1024 / (now - before)
            held.rate += (1 - math.exp((before - now) / _AVERAGED)) * (rate - held.rate)
            self._measured[held.shard_id] = (now, until)

    def _ask(self, held: HeldLease) -> None:
        if not held.asked:
            held.asked = True
            self._spawn(self._hand_over, held)

    async def _hand_over(self, held: HeldLease) -> None:
        """Stop reading a shard that another member waits for, and give its lease away."""
        if held.granted:
            until = self._clock() + self._handover_timeout
            await self._holder.hand_over([held.shard_id], until)
        held.leaving = True
        held.wake.set()

    async def _lose(self, held: HeldLease) -> None:
        self._forget(held)
        await self._holder.lose([held.shard_id])

    def _forget(self, held: HeldLease) -> None:
        if self._held.get(held.shard_id) is held:
            del self._held[held.shard_id]
            self._keeping.pop(held.shard_id, None)
            self._measured.pop(held.shard_id, None)
            self._set_validity()

    # Time.

    def _is_valid(self, held: HeldLease) -> bool:
        return self._clock() < held.renewed + self._failover_time * _VALID

    def _set_validity(self) -> None:
        oldest = min((held.renewed for held in self._held.values()), default=math.inf)
        self.valid_until = oldest + self._failover_time * _VALID

    async def _expiry(self) -> None:
        """Give up the leases that others may take, as they were not renewed in time."""
        while True:
            await asyncio.sleep(max(min(self.valid_until - self._clock(), _STORING), 0))
            for held in [*self._held.values()]:
                if self._is_valid(held) or self._held.get(held.shard_id) is not held:
                    continue
                log.warning(
                    "the lease of %s was not renewed for %g s: other members may have it",
                    held.shard_id,
                    self._failover_time * _VALID,
                )
                self._keeping[held.shard_id].cancel()
                await self._lose(held)

    # Errors.

    async def _attempt(self, step: Callable[[], Awaitable[None]]) -> None:
        """Make a step that is made again later anyway; an error that stays is raised."""
        try:
            await step()
        except Exception as error:  # noqa: BLE001 - the table of errors judges it
            await self._judge(error, first=step not in self._worked)
            log.warning("cannot use the lease table %s: %s", self.group, text_of(error))
        else:
            self._worked.add(step)

    async def _judge(self, error: Exception, *, first: bool = False) -> None:
        prefer_cancellation(error)
        if isinstance(error, FanOutError):
            raise error
        match judge(error, Phase.DISCOVER, first=first):
            case Fatal():
                raise table_failure(self.group, error) from error
            case KinesisRemedy.REFRESH:
                with suppress(Exception):
                    await self._items.renew_credentials()
            case _:
                return


def _as_seen(lease: Lease) -> Attributes:
    """Return the condition that nobody has written a lease since it was read."""
    return {COUNTER: lease.counter, OWNER: lease.owner, GIVER: lease.giver}
