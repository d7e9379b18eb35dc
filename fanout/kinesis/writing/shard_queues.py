"""Queue entries by the shard of their key, and choose what is put next.

PutRecords may refuse a record and take later ones of the same call. So that the records of a key
keep their order, one record of a key is under way at a time; with aggregation it holds many.

Where the service distributes the records, keys have no order and shards are not known before. The
records are queued for all open shards in turn there, so that as many calls are under way.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, defaultdict, deque
from dataclasses import dataclass
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

from fanout.kinesis.writing.entries import hash_key_of_entry
from fanout.kinesis.writing.kpl_format import encode_aggregate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fanout.kinesis.aws.api import ShardDescription
    from fanout.kinesis.writing.entries import KeyOfEntry, QueuedRecord

    # The records of one are put one after the other: those of a key, or one alone.
    _Order: TypeAlias = KeyOfEntry | QueuedRecord

# The service's own limit (AWS API reference, PutRecords).
MAX_RECORDS: Final = 500
# A call is for one shard, which takes 1 MiB a second: it would refuse a part of a larger call. The
# service's limit is 10 MiB. A single record may be larger.
MAX_CALL_BYTES: Final = 512 * 1024
# The default of the KPL, AggregationMaxSize.
_MAX_AGGREGATE_BYTES: Final = 50 * 1024
# What an entry takes in an aggregate besides its data, at most: tags, lengths and indexes.
_ENTRY_IN_AGGREGATE: Final = 24


@final
class OpenShards:
    """The open shards of a listing by their hash keys."""

    def __init__(self, shards: Sequence[ShardDescription]) -> None:
        found = [shard for shard in shards if shard.last is None]
        found.sort(key=lambda shard: shard.hash_range.start)
        self.ids = [shard.shard_id for shard in found] or [""]
        self._starts = [shard.hash_range.start for shard in found]

    def shard_of(self, key: KeyOfEntry) -> str:
        """Return the shard of a key; any name while no shard is known."""
        place = bisect_right(self._starts, hash_key_of_entry(key)) - 1
        return self.ids[max(place, 0)]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Put:
    """One record of a call: an entry, or several of one key in an aggregate."""

    shard: str  # for which it was queued
    order: _Order
    entries: Sequence[QueuedRecord]
    data: bytes

    @property
    def key(self) -> KeyOfEntry:
        """The key of its entries."""
        return self.entries[0].key

    @property
    def nbytes(self) -> int:
        """The bytes that the service counts for it."""
        return len(self.data) + len((self.key[0] or "").encode())

    def to_request(self) -> dict[str, Any]:
        """Return the record as the AWS API has it."""
        partition_key, explicit = self.key
        request: dict[str, Any] = {"Data": self.data}
        if partition_key is not None:
            request["PartitionKey"] = partition_key
        if explicit is not None:
            request["ExplicitHashKey"] = str(explicit)
        return request


@final
class ShardQueues:
    """The entries that are not confirmed, by key, and the keys that may be put, by shard.

    With `automatic` the service distributes them.
    """

    def __init__(self, shards: OpenShards, *, aggregate: bool, automatic: bool = False) -> None:
        self._aggregate = aggregate
        self._entries: dict[_Order, deque[QueuedRecord]] = {}
        self._under_way: set[_Order] = set()
        self._ready: defaultdict[str, OrderedDict[_Order, None]] = defaultdict(OrderedDict)
        self._distribute(shards, automatic=automatic)

    @property
    def ready(self) -> list[str]:
        """The shards for which something may be put."""
        return [shard for shard, keys in self._ready.items() if keys]

    def add(self, entry: QueuedRecord) -> str:
        """Queue an entry behind those of its key, and return the shard of the key."""
        order = entry if self.automatic else entry.key
        shard = self._shard_of(entry.key)
        self._entries.setdefault(order, deque()).append(entry)
        if order not in self._under_way:
            self._ready[shard][order] = None
        return shard

    def take(self, shard: str) -> list[Put]:
        """Return what the next call for a shard puts; the keys are under way until `settle`."""
        taken: list[Put] = []
        room = MAX_CALL_BYTES
        ready = self._ready[shard]
        for order in list(islice(ready, MAX_RECORDS)):
            put = self._next(shard, order)
            room -= put.nbytes
            if room < 0 and taken:
                break
            taken.append(put)
            del ready[order]
            self._under_way.add(order)
        return taken

    def settle(self, put: Put, *, confirmed: bool) -> None:
        """Take the result of a put."""
        # If it failed, its entries stay first of their key, and their key comes before the others:
        # their time has begun.
        order = put.order
        self._under_way.discard(order)
        entries = self._entries[order]
        if confirmed:
            for _ in put.entries:
                entries.popleft()
        if entries:
            # The sender of a shard waits after a failure, whoever distributes the records.
            ready = self._ready[put.shard if self.automatic else self._shard_of(put.key)]
            ready[order] = None
            ready.move_to_end(order, last=confirmed)
        else:
            del self._entries[order]

    def reroute(self, shards: OpenShards) -> None:
        """Queue all keys again after a listing of the shards, for which their hash keys decide."""
        self._distribute(shards, automatic=False)

    def let_service_distribute(self) -> None:
        """Take the order of keys and the listing for nothing from now on."""
        if not self.automatic:
            self._distribute(self._shards, automatic=True)

    def _distribute(self, shards: OpenShards, *, automatic: bool) -> None:
        # What was queued before keeps its order, or stays on its own.
        self._shards = shards
        self.automatic = automatic
        self._in_turn = cycle(shards.ids)
        self._ready.clear()
        for order, entries in self._entries.items():
            if order not in self._under_way:
                self._ready[self._shard_of(entries[0].key)][order] = None

    def _shard_of(self, key: KeyOfEntry) -> str:
        return next(self._in_turn) if self.automatic else self._shards.shard_of(key)

    def _next(self, shard: str, order: _Order) -> Put:
        entries = self._entries[order]
        # The KCL drops aggregates that the service has distributed (developer guide, "Aggregation
        # is not supported on service-managed streams").
        many = self._aggregate and not self.automatic
        chosen = [*_fitting(entries)] if many else [entries[0]]
        if len(chosen) == 1:
            return Put(shard, order, chosen, chosen[0].data)
        partition_key, explicit = entries[0].key
        data = encode_aggregate(
            [(partition_key or "", entry.data) for entry in chosen], [explicit] * len(chosen)
        )
        return Put(shard, order, chosen, data)


def _fitting(entries: deque[QueuedRecord]) -> Iterator[QueuedRecord]:
    """Yield the first entries, as many as fit into an aggregate, and one at least."""
    room = _MAX_AGGREGATE_BYTES
    for number, entry in enumerate(entries):
        room -= len(entry.data) + _ENTRY_IN_AGGREGATE
        if room < 0 and number:
            return
        yield entry
