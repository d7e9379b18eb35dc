"""What the looks at a lease table show: whose leases live, and which of them to take.

What has not changed for the failover time, as seen here, belongs to nobody who lives.
"""

from __future__ import annotations

import math
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Final, final

from fanout.errors import ServiceError
from fanout.kinesis.leases.balance import plan
from fanout.kinesis.leases.lease import (
    BEAT,
    KEY,
    KIND,
    LEADER_KIND,
    LEASE_KIND,
    OLDEST,
    PROCESS,
    WORKER_KIND,
    Lease,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from fanout.core.events import Split
    from fanout.kinesis.leases.lease import Item

# Failover times after which the item of a member that is dead is deleted, and a lease whose shard
# is read. A process that stood still may create a lease late that it found missing: while there is
# one, nothing comes of it.
_FORGOTTEN: Final = 30.0
_LEADERS_LOCK: Final = 120_000.0  # milliseconds, the KCL's default


@final
class Sightings:
    """Remember since when each item of the table is as it is."""

    def __init__(self, worker: str, failover_time: float) -> None:
        self.leases: Mapping[str, Lease] = {}
        # The parents of each shard that was listed; none for one that is known to have expired.
        self.lineage: Mapping[str, Sequence[str]] = {}
        self._worker = worker
        self._failover_time = failover_time
        self._seen: dict[str, tuple[object, float]] = {}
        self._moved: set[str] = set()  # the leases whose counter was seen moving
        self._workers: Mapping[str, Item] = {}
        self._leader: Item | None = None
        self._without_kind: set[str] = set()  # leases in the layout of the KCL before 3.5
        self._now = -math.inf
        # What a process of the same name has left, or still has.
        self._former: frozenset[str] | None = None

    def see(self, items: Sequence[Item], now: float) -> None:
        """Take in all items of the table, as they were read by a moment on the loop's clock."""
        leases, workers = {}, {}
        blind = now - self._now > self._failover_time
        self._now, self._leader, self._without_kind = now, None, set()
        for item in items:
            key = str(item[KEY])
            match item.get(KIND, LEASE_KIND):
                case kind if kind == LEASE_KIND:
                    leases[key] = lease = Lease.of(item)
                    if KIND not in item:
                        self._without_kind.add(key)
                    self._note(key, (lease.counter, lease.holder))
                case kind if kind == WORKER_KIND:
                    self._note(key, token := item.get(BEAT))
                    if token is not None:
                        workers[key] = item
                        if blind:  # nobody is dead only because nothing was seen of him
                            self._seen[key] = (token, now)
                case kind if kind == LEADER_KIND:
                    self._leader = item
                    self._note(key, item.get("recordVersionNumber"))
        self.leases, self._workers = leases, workers
        mine = frozenset(id_ for id_, each in leases.items() if each.holder == self._worker)
        self._former = mine if self._former is None else self._former & mine
        keys = {str(item[KEY]) for item in items}
        self._seen = {key: seen for key, seen in self._seen.items() if key in keys}

    def _note(self, key: str, token: object) -> None:
        before = self._seen.get(key)
        if before is None or before[0] != token:
            self._seen[key] = (token, self._now)
            if before is not None:
                self._moved.add(key)

    def check(self, stream: str, table: str) -> None:
        """Check that the table is one of this stream, in a layout that can be shared.

        Raises:
            ServiceError: If it is not.
        """
        for id_, lease in self.leases.items():
            if ":" in id_:
                raise ServiceError(
                    f"the table {table!r} has leases of several streams, such as {id_}; a group "
                    f"reads one stream, with a table of its own"
                )
            if lease.stream not in {None, stream}:
                raise ServiceError(
                    f"the table {table!r} has leases of {lease.stream}, not of {stream}; name "
                    f"another table, or delete it to begin anew"
                )
            if id_ in self._without_kind & self._moved and self._is_strange(lease):
                raise ServiceError(
                    f"{lease.holder} renews leases in the table {table!r} in the layout of the KCL "
                    f"before 3.5, which cannot be shared while it runs; stop the workers of the "
                    f"KCL first"
                )

    def _is_strange(self, lease: Lease) -> bool:
        return lease.holder not in {None, self._worker, *self._workers}

    def is_old(self, key: str, seconds: float) -> bool:
        """Return whether an item has not changed for some seconds."""
        return key in self._seen and self._now - self._seen[key][1] > seconds

    def is_recent(self, now: float) -> bool:
        """Return whether what was seen last still holds."""
        return now - self._now <= self._failover_time

    @property
    def follows(self) -> bool:
        """Whether a worker of the KCL leads, which decides who has what."""
        if self._leader is None:
            return False
        lock = float(self._leader.get("leaseDuration", _LEADERS_LOCK)) / 1000  # type: ignore[arg-type]
        return not self.is_old(str(self._leader[KEY]), lock)

    @property
    def forgotten(self) -> Mapping[str, Item]:
        """The items of members that have been dead for long."""
        old = self._failover_time * _FORGOTTEN
        return {name: item for name, item in self._workers.items() if self.is_old(name, old)}

    def process_of(self, worker: str) -> object:
        """Return the process that has begun last as a worker; None for nobody."""
        return self._workers[worker].get(PROCESS) if worker in self._workers else None

    @property
    def cleanable(self) -> Collection[str]:
        """The leases of shards that are read, as are the beginnings of all shards after them."""
        old = self._failover_time * _FORGOTTEN
        return [
            lease.shard_id
            for lease in self.leases.values()
            if lease.ended and lease.children and all(map(self._has_begun, lease.children))
            if self.is_old(lease.shard_id, old)
        ]

    def _has_begun(self, shard_id: str) -> bool:
        return shard_id in self.leases and self.leases[shard_id].checkpoint != OLDEST

    def is_ready(self, lease: Lease) -> bool:
        """Return whether a shard may be read: all shards before it are.

        One without a lease is read if all before it are: its lease was cleaned up. Otherwise it is
        still to get one, from the end of a shard before it.
        """
        before, seen = [*lease.parents], set()
        while before:
            id_ = before.pop()
            if id_ in self.leases:
                if not self.leases[id_].ended:
                    return False
            elif id_ not in seen:
                seen.add(id_)
                before += self.lineage.get(id_, ())
        return True

    @property
    def unknown(self) -> Collection[str]:
        """The shards that are named as parents, and about which nothing is known here."""
        named = {parent for lease in self._unended() for parent in lease.parents}
        return named - self.leases.keys() - self.lineage.keys()

    def assigned(self, held: Collection[str]) -> Sequence[Lease]:
        """Return the leases that others have given to this member, which has not taken them."""
        return [
            lease
            for lease in self._unended()
            if lease.holder == self._worker
            and lease.shard_id not in held
            and not self._is_former(lease)
        ]

    def _is_former(self, lease: Lease) -> bool:
        former = self._former is not None and lease.shard_id in self._former
        return former and not self._is_free(lease)

    def _unended(self) -> Iterable[Lease]:
        return (lease for lease in self.leases.values() if not lease.ended)

    def _is_free(self, lease: Lease) -> bool:
        return lease.holder is None or self.is_old(lease.shard_id, self._failover_time)

    def wanted(self, held: Collection[str]) -> tuple[Sequence[Lease], Sequence[Lease]]:
        """Return the leases to take, and those to ask their holders for."""
        members = {name for name in self._workers if not self.is_old(name, self._failover_time)}
        members.add(self._worker)
        if self.follows:
            return (), ()
        ready = [lease for lease in self._unended() if self.is_ready(lease)]
        owners = {
            lease.shard_id: None if self._is_free(lease) else lease.owner
            for lease in ready
            if self._is_free(lease) or not self._is_strange(lease)
        }
        rates = {id_: self.leases[id_].rate for id_ in owners}
        mine = [
            self.leases[id_]
            for id_, member in plan(rates, owners, members).items()
            if member == self._worker and id_ not in held
        ]
        take = [lease for lease in mine if self._is_free(lease)]
        ask = [
            lease
            for lease in mine
            if not self._is_free(lease) and lease.giver is None and lease.owner != self._worker
        ]
        return take, ask

    @property
    def awaited(self) -> Sequence[Lease]:
        """The leases that are on their way to this member."""
        return [each for each in self._unended() if each.owner == self._worker and each.giver]


def missing(listed: Sequence[Split], leases: Mapping[str, Lease]) -> Sequence[Split]:
    """Return the shards that no member has ever read, nor will by reading on; parents first.

    A shard behind one that has a lease gets its own when that one ends. A shard before one that has
    a lease is read, and its lease was cleaned up.
    """
    parents = {split.id: split.parents for split in listed}
    parents |= {lease.shard_id: lease.parents for lease in leases.values()}
    covered: set[str] = set()
    before = [*leases]
    while before:
        if (id_ := before.pop()) not in covered:
            covered.add(id_)
            before += parents.get(id_, ())
    splits = {split.id: split for split in sorted(listed, key=lambda split: split.id)}
    before_them = {id_: split.parents for id_, split in splits.items()}
    found = []
    for id_ in TopologicalSorter(before_them).static_order():
        if id_ in covered or not covered.isdisjoint(parents.get(id_, ())):
            covered.add(id_)
        elif id_ in splits:
            found.append(splits[id_])
    return found
