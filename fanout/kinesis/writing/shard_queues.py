"""Queue entries by the shard of their key, and choose what is put next.

PutRecords may refuse a record and take later ones of the same call. So that the records of a key
keep their order, one record of a key is under way at a time; with aggregation it holds many.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, defaultdict, deque
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, final

from fanout.kinesis.writing.entries import hash_key_of_entry
from fanout.kinesis.writing.kpl_format import encode_aggregate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fanout.kinesis.aws.api import ShardDescription
    from fanout.kinesis.writing.entries import KeyOfEntry, QueuedRecord

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
        self._ids = [shard.shard_id for shard in found]
        self._starts = [shard.hash_range.start for shard in found]

    def shard_of(self, key: KeyOfEntry) -> str:
        """Return the shard of a key; any name while no shard is known."""
        place = bisect_right(self._starts, hash_key_of_entry(key)) - 1
        return self._ids[max(place, 0)] if self._ids else ""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Put:
    """One record of a call: an entry, or several of one key in an aggregate."""

    key: KeyOfEntry
    entries: Sequence[QueuedRecord]
    data: bytes

    @property
    def nbytes(self) -> int:
        """The bytes that the service counts for it."""
        return len(self.data) + len(self.key[0].encode())

    def to_request(self) -> dict[str, Any]:
        """Return the record as the AWS API has it."""
        partition_key, explicit = self.key
        request: dict[str, Any] = {"PartitionKey": partition_key, "Data": self.data}
        if explicit is not None:
            request["ExplicitHashKey"] = str(explicit)
        return request


@final
class ShardQueues:
    """The entries that are not confirmed, by key, and the keys that may be put, by shard."""

    def __init__(self, shards: OpenShards, *, aggregate: bool) -> None:
        self._shards = shards
        self._aggregate = aggregate
        self._entries: dict[KeyOfEntry, deque[QueuedRecord]] = {}
        self._under_way: set[KeyOfEntry] = set()
        self._ready: defaultdict[str, OrderedDict[KeyOfEntry, None]] = defaultdict(OrderedDict)

    @property
    def ready(self) -> list[str]:
        """The shards for which something may be put."""
        return [shard for shard, keys in self._ready.items() if keys]

    def add(self, entry: QueuedRecord) -> str:
        """Queue an entry behind those of its key, and return the shard of the key."""
        shard = self._shards.shard_of(entry.key)
        self._entries.setdefault(entry.key, deque()).append(entry)
        if entry.key not in self._under_way:
            self._ready[shard][entry.key] = None
        return shard

    def take(self, shard: str) -> list[Put]:
        """Return what the next call for a shard puts; the keys are under way until `settle`."""
        taken: list[Put] = []
        room = MAX_CALL_BYTES
        ready = self._ready[shard]
        for key in list(islice(ready, MAX_RECORDS)):
            put = self._next(key)
            room -= put.nbytes
            if room < 0 and taken:
                break
            taken.append(put)
            del ready[key]
            self._under_way.add(key)
        return taken

    def settle(self, put: Put, *, confirmed: bool) -> None:
        """Take the result of a put."""
        # If it failed, its entries stay first of their key, and their key comes before the others:
        # their time has begun.
        key = put.key
        self._under_way.discard(key)
        entries = self._entries[key]
        if confirmed:
            for _ in put.entries:
                entries.popleft()
        if entries:
            ready = self._ready[self._shards.shard_of(key)]
            ready[key] = None
            ready.move_to_end(key, last=confirmed)
        else:
            del self._entries[key]

    def reroute(self, shards: OpenShards) -> None:
        """Queue all keys again after a listing of the shards."""
        self._shards = shards
        self._ready.clear()
        for key in self._entries:
            if key not in self._under_way:
                self._ready[shards.shard_of(key)][key] = None

    def _next(self, key: KeyOfEntry) -> Put:
        entries = self._entries[key]
        if not self._aggregate or len(entries) == 1:
            return Put(key, (entries[0],), entries[0].data)
        chosen = [*_fitting(entries)]
        partition_key, explicit = key
        if len(chosen) == 1:
            return Put(key, chosen, chosen[0].data)
        data = encode_aggregate(
            [(partition_key, entry.data) for entry in chosen], [explicit] * len(chosen)
        )
        return Put(key, chosen, data)


def _fitting(entries: deque[QueuedRecord]) -> Iterator[QueuedRecord]:
    """Yield the first entries, as many as fit into an aggregate, and one at least."""
    room = _MAX_AGGREGATE_BYTES
    for number, entry in enumerate(entries):
        room -= len(entry.data) + _ENTRY_IN_AGGREGATE
        if room < 0 and number:
            return
        yield entry
