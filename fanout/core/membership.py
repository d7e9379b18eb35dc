"""Share the splits of a stream with other processes, each of which reads some of them.

A `Group` is what a user writes down; a `Membership` is one process's part in it. The service is the
referee: it grants splits and takes them back, and stores a position only for the process that has
the split. `SharedSplits` is what the stream does with them.
"""

from __future__ import annotations

import asyncio
import inspect
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, final

from fanout.core.cancellation import prefer_cancellation
from fanout.core.positions import reaches
from fanout.core.statistics import MembershipStatistics
from fanout.errors import FanOutError, OptionError, ServiceError, SplitLostError

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterator,
        Awaitable,
        Callable,
        Collection,
        Iterator,
        Mapping,
        Sequence,
    )
    from contextlib import AbstractAsyncContextManager

    from fanout.core.backoff import FullJitter
    from fanout.core.events import End, Split
    from fanout.core.lifecycle_log import LifecycleLog
    from fanout.core.positions import Position
    from fanout.core.progress import Progress, SplitProgress
    from fanout.core.source import Connection, Source
    from fanout.core.statistics import CommitStatistics
    from fanout.core.subscribers import Subscribers

# Seconds between two looks at whether splits are lost whose time has run out.
_DECISION: Final = 1.0

OnRevoked: TypeAlias = "Callable[[tuple[Split, ...]], Awaitable[None]]"
"""What a user wants to do with splits before another process gets them."""


class SplitHolder(Protocol):
    """What a membership does to the stream."""

    def grant(self, split: Split, position: Position) -> None:
        """Read a split from a position on."""

    async def hand_over(self, split_ids: Collection[str], until: float) -> None:
        """Stop reading splits, and wait until all that was delivered of them is acknowledged.

        It ends at `until` on the loop's clock, and when the splits are lost meanwhile. No record of
        them is delivered any more from the call on.
        """

    async def lose(self, split_ids: Collection[str]) -> None:
        """Stop reading splits that other processes may have already."""

    def delivered_bytes(self, split_id: str) -> int:
        """Return how many bytes of a split were delivered here since it was granted."""


class Membership(Protocol):
    """One process's part in a group.

    The rules: a split is delivered by one process at a time; a process that cannot renew its part
    stops delivering before another one may begin; a position is stored only by the process that has
    the split.
    """

    @property
    def group(self) -> str:
        """Name the group, for the log."""

    @property
    def valid_until(self) -> float:
        """Return the moment on the loop's clock at which other processes may get the splits.

        It moves with each renewal, counted from where the renewal *began*.
        """

    @property
    def commits(self) -> CommitStatistics:
        """Return which positions the group has stored; from any thread."""

    async def take_part(self, holder: SplitHolder) -> None:
        """Join, and grant, hand over and lose splits until cancelled.

        Raises:
            ServiceError: If the service refuses this process for good.
        """

    def store(self, positions: Mapping[str, Position]) -> None:
        """Have acknowledged positions of splits that this process has stored soon."""

    def finish(self, end: End) -> None:
        """Have it stored soon that a split is read to its end, and all of it acknowledged."""


class Group(Protocol):
    """A group of processes that share a stream, as a value."""

    def join(
        self, source: Source, connection: Connection, jitter: FullJitter
    ) -> AbstractAsyncContextManager[Membership]:
        """Prepare to take part; leaving the block stores what is acknowledged, and leaves.

        Raises:
            OptionError: If the group is not one of such a source.
            ServiceError: If the service offers no groups, or we may not join this one.
        """


def check_on_revoked(value: object, group: object) -> None:
    """Check the option `on_revoked`."""
    if value is None:
        return
    call = type(value).__call__ if callable(value) else None
    if not inspect.iscoroutinefunction(value) and not inspect.iscoroutinefunction(call):
        raise OptionError(f"on_revoked={value!r} must be an async function of a tuple of splits")
    if group is None:
        raise OptionError("on_revoked is about a group: pass group, or leave it out")


def refuse_group(group: object, why: str) -> None:
    """Refuse a group for what has the positions of all splits itself."""
    if group is not None:
        raise OptionError(f"group cannot be used here: {why}")


@final
class SharedSplits:
    """Read the splits that this process has of its group, and nothing of those that it has not."""

    def __init__(
        self,
        membership: Membership,
        progress: Progress,
        subscribers: Subscribers,
        lifecycle: LifecycleLog,
        on_revoked: OnRevoked | None = None,
    ) -> None:
        self._membership = membership
        self._progress = progress
        self._subscribers = subscribers
        self._lifecycle = lifecycle
        self._on_revoked = on_revoked
        self._clock = asyncio.get_running_loop().time
        self._owned: set[str] = set()
        # Up to where splits are acknowledged that were handed over.
        self._stored: dict[str, Position] = {}
        self._acknowledged = asyncio.Event()
        self._on_leaving: Callable[[str], None] = _ignore
        self._ends: dict[str, End] = {}  # of splits that are read to their end
        # Up to where splits were delivered that left before that was acknowledged.
        self._left: dict[str, Position] = {}
        self._again: set[str] = set()  # splits that are about to be delivered again
        self._in_transactions = self._over = False
        self._granted = self._handed_over = self._lost = 0

    @asynccontextmanager
    async def supervise(self) -> AsyncIterator[None]:
        """Take part in the group while the block runs; nothing is read after it."""
        async with self._subscribers.running(self._ended):
            self._subscribers.spawn(self._take_part(), "membership")
            try:
                yield
            finally:
                self._over = True
                for state in self._progress:
                    self._note_left(state)

    async def _take_part(self) -> None:
        try:
            await self._membership.take_part(self)
        except FanOutError as error:
            self._subscribers.fail(error)
        except Exception as error:  # noqa: BLE001 - the reader gets it
            prefer_cancellation(error)
            failure = ServiceError(f"the group {self._membership.group} cannot be used: ", error)
            failure.__cause__ = error
            self._subscribers.fail(failure)

    # What the stream asks.

    @property
    def group(self) -> str:
        """Name the group."""
        return self._membership.group

    @property
    def membership(self) -> Membership:
        """This process's part in the group."""
        return self._membership

    def owns(self, split_id: str) -> bool:
        """Return whether a split may be delivered here, by the last that was heard of it."""
        return split_id in self._owned and split_id not in self._again

    @property
    def valid(self) -> bool:
        """Whether splits are this process's at this moment; else they are going to be lost."""
        return self._clock() < self._membership.valid_until or not any(self._progress)

    @contextmanager
    def collecting(self, drop: Callable[[str], None]) -> Iterator[None]:
        """Call `drop` with each split that leaves while a reader collects what it has not got."""
        self._on_leaving = drop
        try:
            yield
        finally:
            self._on_leaving = _ignore  # it holds what was collected

    async def decided(self) -> None:
        """Wait until splits are lost whose time has run out, as in a process that stood still.

        Raises:
            FanOutError: The failure of the stream, if nobody decides any more.
        """
        while not self.valid:
            self._subscribers.check_open()
            if self._subscribers.failure is not None:
                raise self._subscribers.failure
            self._acknowledged.clear()
            with suppress(TimeoutError):  # a renewal may be answered, or the stream fail
                async with asyncio.timeout(_DECISION):
                    await self._acknowledged.wait()

    async def acknowledge(self, positions: Mapping[str, Position]) -> tuple[str, ...]:
        """Acknowledge what this process still has; return the splits that it has lost."""
        self._subscribers.check_open()
        await self.decided()
        return self._acknowledge(positions)

    def _acknowledge(self, positions: Mapping[str, Position]) -> tuple[str, ...]:
        mine = {id_: at for id_, at in positions.items() if self._may_acknowledge(id_, at)}
        if moved := self._progress.acknowledge(mine):
            self._membership.store(moved)
            self._acknowledged.set()
        self._finish()
        return self._missing(positions)

    def report(self, split_id: str) -> None:
        """Acknowledge what was delivered of a split without records."""
        if not self._in_transactions:  # the next one stores it
            self._acknowledge({split_id: self._progress[split_id].acknowledged})

    # What a transaction asks that stores positions in the group together with what it writes.

    def claim(self, positions: Mapping[str, Position]) -> dict[str, Position]:
        """Return what of delivered positions the group has not stored; from now on nobody else may.

        Raises:
            SplitLostError: If a split has left before all that was delivered of it was stored.
        """
        self._in_transactions = True
        if lost := {*self._missing(positions), *self._left}:
            raise lost_splits(lost, self.group, aborted=True)
        reported = {id_: self._progress[id_].reported for id_ in positions if id_ in self._progress}
        return {
            id_: positions[id_]
            for id_, stored in reported.items()
            if stored is None or not reaches(stored, positions[id_])
        }

    def settle(self, positions: Mapping[str, Position]) -> None:
        """Acknowledge positions that a transaction has stored."""
        mine = {id_: at for id_, at in positions.items() if self._may_acknowledge(id_, at)}
        self._progress.acknowledge(mine)
        self._stored |= {id_: at for id_, at in positions.items() if id_ not in self._progress}
        self._left = {
            id_: at
            for id_, at in self._left.items()
            if id_ not in positions or not reaches(positions[id_], at)
        }
        self._acknowledged.set()

    async def deliver_again(self) -> None:
        """Begin again behind what is acknowledged, after a transaction that was aborted.

        Cancellation: all of it comes again all the same.
        """
        self._left.clear()
        if not self._over:
            behind = [state for state in self._progress if state.acknowledged != state.delivered]
            self._again.update(state.split.id for state in behind)
            beginning = self._begin_again(behind)
            await asyncio.wait([self._subscribers.spawn(beginning, "begins again")])

    async def _begin_again(self, behind: Sequence[SplitProgress]) -> None:
        for state in behind:
            self._on_leaving(state.split.id)
        for state in behind:
            id_ = state.split.id
            if self._follows(state):
                await self._stop([id_])
            state.rewind()
            self._again.discard(id_)
            if self._follows(state) and id_ in self._owned:
                self._subscribers.start(state.split, state.acknowledged)
        self._acknowledged.set()  # what leaves has nothing more to wait for

    def _follows(self, state: SplitProgress) -> bool:
        return state.split.id in self._progress and self._progress[state.split.id] is state

    def _ended(self, end: End) -> None:
        if self.owns(end.split.id):  # a reader may take the end of a split that has just left
            self._ends[end.split.id] = end
            self._lifecycle.ended(end)

    def _finish(self) -> None:
        """Let go of the splits that are read to their end, and acknowledged."""
        for split_id, end in list(self._ends.items()):
            state = self._progress[split_id]
            if state.ended and state.acknowledged == state.delivered:
                self._membership.finish(end)
                self._stored[split_id] = state.acknowledged
                self._forget(split_id)
                self._subscribers.forget(split_id)

    def _missing(self, positions: Mapping[str, Position]) -> tuple[str, ...]:
        return tuple(
            id_
            for id_, at in positions.items()
            if not self._may_acknowledge(id_, at) and not self._is_stored(id_, at)
        )

    def _may_acknowledge(self, split_id: str, position: Position) -> bool:
        if split_id not in self._progress:
            return False
        # What was delivered before the split was lost may be beyond what came since it is back.
        return reaches(self._progress[split_id].delivered, position)

    def _is_stored(self, split_id: str, position: Position) -> bool:
        stored = self._stored.get(split_id)
        return stored is not None and reaches(stored, position)

    @property
    def commits(self) -> CommitStatistics:
        """Return which positions the group has stored; from any thread."""
        return self._membership.commits

    @property
    def statistics(self) -> MembershipStatistics:
        """Count the splits that came and went; from any thread."""
        left = self._membership.valid_until - self._clock()
        return MembershipStatistics(
            group=self._membership.group,
            owned=len(self._owned),
            granted=self._granted,
            handed_over=self._handed_over,
            lost=self._lost,
            valid=max(left, 0.0),
        )

    # What the membership does.

    def grant(self, split: Split, position: Position) -> None:
        """Read a split from a position on."""
        self._progress.add(split, position)
        self._progress[split.id].reported = position  # it is stored already
        self._owned.add(split.id)
        self._granted += 1
        self._lifecycle.granted(split, position)
        self._subscribers.start(split, position)

    async def hand_over(self, split_ids: Collection[str], until: float) -> None:
        """Stop reading splits, and wait until all that was delivered of them is acknowledged."""
        leaving = [id_ for id_ in split_ids if id_ in self._owned]
        self._leave(leaving)
        splits = tuple(self._progress[id_].split for id_ in leaving)
        await self._stop(leaving)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                if splits:
                    await self._tell(splits)
                while self._unacknowledged(leaving):
                    self._acknowledged.clear()
                    await self._acknowledged.wait()
        for split in splits:
            if split.id not in self._progress:  # it was lost meanwhile
                continue
            state = self._progress[split.id]
            complete = state.acknowledged == state.delivered
            self._lifecycle.handed_over(split, state.acknowledged, complete=complete)
            self._handed_over += 1
            self._stored[split.id] = state.acknowledged
            self._note_left(state)
            self._forget(split.id)

    async def _tell(self, splits: tuple[Split, ...]) -> None:
        if self._on_revoked is None:
            return
        try:
            await self._on_revoked(splits)
        except Exception as error:
            prefer_cancellation(error)
            name = type(error).__name__
            raise OptionError(f"the function on_revoked raised {name}") from error

    def _unacknowledged(self, split_ids: Collection[str]) -> bool:
        states = (self._progress[id_] for id_ in split_ids if id_ in self._progress)
        return any(state.acknowledged != state.delivered for state in states)

    async def lose(self, split_ids: Collection[str]) -> None:
        """Stop reading splits that other processes may have already."""
        lost = [id_ for id_ in split_ids if id_ in self._progress]
        self._leave(lost)
        for id_ in lost:
            self._lifecycle.split_lost(self._progress[id_].split, self._progress[id_].acknowledged)
            self._lost += 1
            self._stored.pop(id_, None)  # what was acknowledged last may be stored or not
            self._note_left(self._progress[id_])
            self._forget(id_)
        self._acknowledged.set()  # a hand-over of them is over
        await self._stop(lost)

    def delivered_bytes(self, split_id: str) -> int:
        """Return how many bytes of a split were delivered here since it was granted."""
        return self._progress[split_id].bytes if split_id in self._progress else 0

    def _note_left(self, state: SplitProgress) -> None:
        if state.acknowledged != state.delivered:
            self._left[state.split.id] = state.delivered

    def _forget(self, split_id: str) -> None:
        self._owned.discard(split_id)
        self._ends.pop(split_id, None)
        self._progress.remove(split_id)

    def _leave(self, split_ids: Collection[str]) -> None:
        """Deliver nothing of splits from now on."""
        self._owned.difference_update(split_ids)
        for id_ in split_ids:
            self._on_leaving(id_)

    async def _stop(self, split_ids: Collection[str]) -> None:
        for id_ in split_ids:
            if id_ in self._subscribers.by_split:
                await self._subscribers.stop(id_)


def _ignore(split_id: str) -> None:
    """Do nothing: nobody collects."""


def lost_splits(split_ids: Collection[str], group: str, *, aborted: bool = False) -> SplitLostError:
    """Build the error of an acknowledgement, or a commit, after other processes got the splits."""
    then = "which delivers again what was not acknowledged here in time; go on with the next batch"
    if aborted:
        then = (
            "before the commit, so the transaction is aborted; go on with the next drain, which "
            "delivers again what this process still has of it"
        )
    names = tuple(sorted(split_ids))
    text = f"the group {group} has given {', '.join(names)} to another process, {then}"
    return SplitLostError(text, names)
