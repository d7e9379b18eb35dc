"""A lease that this member has: written under the condition that nobody else has written since."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, final

from fanout.kinesis.leases.lease import (
    CHILDREN,
    COUNTER,
    END_CHECKPOINT,
    GIVER,
    OWNER,
    PENDING,
    PROCESS,
    RATE,
    SWITCHES,
    Lease,
    checkpoint_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from fanout.core.events import End
    from fanout.core.positions import Position
    from fanout.kinesis.leases.lease import Attributes, Item, Value
    from fanout.kinesis.leases.table import Items

# Writes in a row that are refused although the lease stays ours: others ask for a hand-over.
_TRIES = 3


class LeaseLostError(Exception):
    """Another member has the lease, or may have it."""


@final
class HeldLease:
    """Renew one lease, store positions of its shard, and give it away.

    Its own task makes all of its writes, one at a time. `renewed` is when the last write began that
    was answered well, on the loop's clock.
    """

    def __init__(self, items: Items, worker: str, process: str, item: Item, renewed: float) -> None:
        self.lease = Lease.of(item)
        self.renewed = renewed
        self.position: Position | None = None  # to be stored
        self.stored: Position | None = None
        self.end: End | None = None  # to be stored, when there are leases for the shards behind it
        self.has_children = False  # whether there are
        self.rate = self.lease.rate  # in KB a second
        self.granted = False
        self.asked = False  # whether another member waits for it, and this one stops reading
        self.leaving = False  # whether the next write gives it away
        self.gone = False
        self.wake = asyncio.Event()
        self._items = items
        self._worker = worker
        self._process = process
        self._clock: Callable[[], float] = asyncio.get_running_loop().time
        # Whether a write was made whose answer is not known.
        self._unsure = False

    @property
    def shard_id(self) -> str:
        """The shard."""
        return self.lease.shard_id

    async def write(self) -> None:
        """Renew the lease, and store what there is to be stored with the same write.

        Errors of the service and of the network pass unchanged.

        Raises:
            LeaseLostError: If it is another member's.
        """
        if self._unsure:
            await self._find_out()
        for _ in range(_TRIES):
            position, leaving = self.position, self.leaving
            end = self.end if self.has_children else None
            began = self._clock()
            self._unsure = True
            item = await self._items.update(
                self.shard_id, self._mine(), self._changes(position, end), {COUNTER: 1}
            )
            if item is None:
                await self._find_out()
                continue
            self._unsure = False
            self.lease, self.renewed = Lease.of(item), began
            if position is not None:
                self.stored = position
                if self.position is position:
                    self.position = None
            self.gone = leaving or end is not None
            return
        raise LeaseLostError

    def _mine(self) -> Attributes:
        """Return what the item has while it is as this member wrote it last."""
        if self.lease.giver == self._worker:
            return {COUNTER: self.lease.counter, GIVER: self._worker}
        return {COUNTER: self.lease.counter, OWNER: self._worker, GIVER: None}

    def _changes(self, position: Position | None, end: End | None) -> dict[str, Value | None]:
        changes: dict[str, Value | None] = {RATE: round(self.rate, 3), PROCESS: self._process}
        if end is not None:
            changes |= END_CHECKPOINT
            changes[CHILDREN] = frozenset(child.id for child in end.children) or None
        elif position is not None:
            changes |= checkpoint_of(position)
        if end is not None or position is not None:
            changes |= {SWITCHES: 0, **dict.fromkeys(PENDING)}
        if self.lease.giver == self._worker:
            if self.leaving or end is not None:
                changes[GIVER] = None
        elif self.leaving:
            changes[OWNER] = None
        return changes

    async def _find_out(self) -> None:
        """Read the lease again after a write that was refused, or whose answer is not known.

        With the counter as it was nothing was written. One more, by this process, is its own write.
        """
        item = await self._items.get(self.shard_id)
        if item is None:
            raise LeaseLostError
        found = Lease.of(item)
        writes = found.counter - self.lease.counter
        own = writes == 0 or (writes == 1 and found.process == self._process)
        if found.holder != self._worker or not own:
            raise LeaseLostError
        self.lease = found
        self._unsure = False
