"""A moto stream whose shards keep their records, and that takes puts from many threads.

moto 5 moves a parent's records into its children, numbers the records of every shard from 1, walks
over all records of a shard for a put, and finds no shard for the last hash key of a range.
"""

from __future__ import annotations

import hashlib
import threading
from bisect import bisect_right
from collections import defaultdict
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import moto.kinesis.exceptions
import moto.kinesis.models
from moto.core.exceptions import JsonRESTError

from fanout.testing.kinesis.polling import PollMeter
from fanout.testing.kinesis.server_state import now_in_millis
from fanout.testing.kinesis.shard import Shard

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fanout.testing.faults import RefuseRecords
    from fanout.testing.kinesis.consumers import Consumer, Refusal
    from fanout.testing.kinesis.rules import KinesisRules

HASH_KEYS = 2**128
MAX_TAGS = 50
# The largest page of DescribeStream in the API reference, which is also the default one.
_MAX_DESCRIBED_SHARDS = 100
# moto's types stay outside: they describe the stream that this one replaces.
_models: Any = moto.kinesis.models
_exceptions: Any = moto.kinesis.exceptions


class PutEntry(NamedTuple):
    """A checked record on its way in: `data` is in base64, `size` counts its bytes and the key."""

    partition_key: str | None
    hash_key: int | None
    data: bytes
    size: int


def invalid_argument(message: str) -> Exception:
    """Return the service's answer to an argument that it cannot use."""
    error: Exception = JsonRESTError("InvalidArgumentException", message)
    return error


def refuse_dry_run() -> Exception:
    """Return the answer to a call that would have succeeded."""
    error: Exception = JsonRESTError(
        "DryRunOperationException",
        "The request was rejected because the DryRun parameter was specified.",
    )
    return error


class EmbeddedStream(_models.Stream):  # type: ignore[misc] # moto is untyped here
    """Keep shards, consumers, what was polled, and the one lock that guards all of them."""

    shards: dict[str, Shard]
    consumers: list[Consumer]

    def __init__(self, *args: Any, generation: int = 0, **kwargs: Any) -> None:
        self.lock = threading.RLock()
        self._generation = generation
        self._shards_ever = 0
        self.meters: defaultdict[str, PollMeter] = defaultdict(PollMeter)
        self._put_meters: defaultdict[str, _PutMeter] = defaultdict(_PutMeter)
        self.max_record_bytes = 1 << 20
        self.strategy = "USER_PARTITION_KEY"
        self.warm_throughput: int | None = None
        self._next_shard = 0
        self.created = datetime.now(UTC)
        self.queues: list[Any] = []  # each is an EmbeddedQueue, which knows its stream
        super().__init__(*args, **kwargs)

    def init_shards(self, shard_count: int) -> None:
        """Divide the hash keys evenly."""
        self.shard_count = shard_count
        bounds = [HASH_KEYS * index // shard_count for index in range(shard_count + 1)]
        for start, following in pairwise(bounds):
            self._add_shard((start, following - 1), ())
        self._route()

    def append(self, entries: Iterable[PutEntry]) -> list[tuple[str, int]]:
        """Store records, wake the subscriptions of their shards; return shard ids and numbers."""
        now = now_in_millis()
        placed = []
        touched = {}
        with self.lock:
            for entry in entries:
                shard = self._shard_of(entry)
                number = self._store(entry, shard, now)
                placed.append((shard.shard_id, number))
                touched[shard.shard_id] = shard
            for shard in touched.values():
                shard.changed.notify_all()
            for queue in self.queues:
                queue.changed.notify_all()
        return placed

    def put(
        self, entries: Iterable[PutEntry], rules: KinesisRules, refusal: RefuseRecords | None
    ) -> list[dict[str, Any]]:
        """Store the entries that their shards take; return the results as PutRecords does."""
        # A refusal says which records are refused all the same.
        limited = rules.put_records_per_second or rules.put_bytes_per_second
        if refusal is None and not limited:
            return [
                {"SequenceNumber": str(number), "ShardId": shard_id}
                for shard_id, number in self.append(entries)
            ]
        with self.lock:
            results = []
            of_refusal = 0
            for entry in entries:
                shard = self._shard_of(entry)
                shard_id, code = shard.shard_id, None
                if refusal is not None and refusal.shard in {None, shard_id}:
                    code = refusal.code if of_refusal % refusal.every == 0 else None
                    of_refusal += 1
                if code is None and not self._put_meters[shard_id].takes(entry.size, rules):
                    code = "ProvisionedThroughputExceededException"
                if code is None:
                    number = self._store(entry, shard, now_in_millis())
                    shard.changed.notify_all()
                    results.append({"SequenceNumber": str(number), "ShardId": shard_id})
                else:
                    message = f"refused for shard {shard_id} in stream {self.stream_name}"
                    results.append({"ErrorCode": code, "ErrorMessage": message})
            for queue in self.queues:
                queue.changed.notify_all()
            return results

    @property
    def open_shards(self) -> list[Shard]:
        """The shards that take records, by their hash keys."""
        return list(self._open)

    @property
    def is_on_demand(self) -> bool:
        """Whether the service scales the stream."""
        return bool(self.stream_mode.get("StreamMode") == "ON_DEMAND")

    @property
    def is_automatic(self) -> bool:
        """Whether the service distributes the records, whatever keys they have."""
        return self.is_on_demand and self.strategy == "AUTO"

    @property
    def consumer_count(self) -> int:
        """How many consumers there are; a queue counts as one."""
        return len(self.consumers) + len(self.queues)

    def check_provisioned(self) -> None:
        """Refuse to change the shards of an on-demand stream."""
        if self.is_on_demand:
            raise _exceptions.StreamCannotBeUpdatedError(self.stream_name, self.account_id)

    def check_no_queues(self) -> None:
        """Refuse what cannot be done while there are queues."""
        if self.queues:
            raise JsonRESTError(
                "ResourceInUseException",
                f"Stream {self.stream_name} under account {self.account_id} has queues: delete "
                "them first.",
            )

    def set_strategy(self, strategy: str) -> None:
        """Choose who distributes the records from now on."""
        if strategy == "AUTO" and not self.is_on_demand:
            raise invalid_argument(
                f"Stream {self.stream_name} under account {self.account_id} is in Provisioned "
                "mode, which has no RecordDistributionStrategy AUTO."
            )
        self.strategy = strategy

    def add_tags(self, tags: Mapping[str, str]) -> None:
        """Add tags; a stream has 50 at most."""
        if len(self.tags | dict(tags)) > MAX_TAGS:
            raise invalid_argument(
                f"Failed to add tags to stream {self.stream_name} under account {self.account_id} "
                f"because a given stream cannot have more than {MAX_TAGS} tags associated with it."
            )
        self.tags.update(tags)

    def get_shard(self, shard_id: str) -> Shard:
        """Find a shard; moto's error does not name the stream."""
        if shard_id not in self.shards:
            raise _exceptions.ResourceNotFoundError(
                f"Shard {shard_id} in stream {self.stream_name} under account {self.account_id} "
                "does not exist"
            )
        return self.shards[shard_id]

    def split_shard(self, shard_to_split: str, new_starting_hash_key: str) -> None:
        """Close a shard and open two that share its range."""
        with self.lock:
            shard = self._reshardable(shard_to_split)
            start = int(new_starting_hash_key)
            if not shard.starting_hash < start <= shard.ending_hash:
                raise invalid_argument(
                    f"NewStartingHashKey {start} used in SplitShard() on shard {shard.shard_id} "
                    f"in stream {self.stream_name} is not inside the shard's range."
                )
            ranges = ((shard.starting_hash, start - 1), (start, shard.ending_hash))
            self._reshard((shard,), ranges)

    def merge_shards(self, shard_to_merge: str, adjacent_shard_to_merge: str) -> None:
        """Close two neighbours, in either order, and open one for both ranges."""
        with self.lock:
            first = self._reshardable(shard_to_merge)
            second = self._reshardable(adjacent_shard_to_merge)
            low, high = sorted((first, second), key=lambda shard: shard.starting_hash)
            if low.ending_hash + 1 != high.starting_hash:
                raise invalid_argument(
                    f"Shards {first.shard_id} and {second.shard_id} in stream "
                    f"{self.stream_name} are not an adjacent pair of shards eligible for merging."
                )
            self._reshard((first, second), ((low.starting_hash, high.ending_hash),))

    def expire(self) -> None:
        """Drop every record, and the shards that are closed."""
        with self.lock:
            for shard in self.shards.values():
                shard.expire()
            self.shards = {id_: shard for id_, shard in self.shards.items() if shard.is_open}

    def update_shard_count(self, target_shard_count: int) -> None:
        """Split and merge until all ranges are equal, in one step for everybody else."""
        self.check_provisioned()
        with self.lock:
            current = len(self._open)
            counts = f"Current open shard count: {current} Target shard count: {target_shard_count}"
            if target_shard_count > 2 * current:
                raise invalid_argument(
                    "UpdateShardCount cannot scale up over double your current open shard count. "
                    + counts
                )
            if 2 * target_shard_count < current:
                raise invalid_argument(
                    "UpdateShardCount cannot scale down below half your current open shard count. "
                    + counts
                )
            starts = {HASH_KEYS * n // target_shard_count for n in range(target_shard_count)}
            for start in sorted(starts):
                shard = self._open[bisect_right(self._starts, start) - 1]
                if shard.starting_hash != start:
                    self.split_shard(shard.shard_id, str(start))
            while extra := [shard for shard in self._open if shard.starting_hash not in starts]:
                low = self._open[self._open.index(extra[0]) - 1]
                self.merge_shards(low.shard_id, extra[0].shard_id)

    def to_json(self, shard_limit: int | None = None, after: str = "") -> dict[str, Any]:
        """Describe the stream with its mode and a page of its shards, which moto leaves out."""
        description: dict[str, Any] = super().to_json()
        following = [shard for shard in self.shards.values() if shard.shard_id > after]
        page = following[: min(shard_limit or _MAX_DESCRIBED_SHARDS, _MAX_DESCRIBED_SHARDS)]
        description["StreamDescription"] |= {
            "StreamModeDetails": self.stream_mode,
            "Shards": [shard.to_json() for shard in page],
            "HasMoreShards": len(page) < len(following),
        }
        return description

    def to_json_summary(self) -> dict[str, Any]:
        """Describe the stream with the open shards and the consumers that it has now."""
        description: dict[str, Any] = super().to_json_summary()
        description["StreamDescriptionSummary"] |= {
            "OpenShardCount": len(self._open),
            "ConsumerCount": self.consumer_count,
            "MaxRecordSizeInKiB": self.max_record_bytes // 1024,
        }
        if self.is_on_demand:
            description["StreamDescriptionSummary"]["RecordDistributionStrategy"] = self.strategy
        if self.warm_throughput is not None:
            description["StreamDescriptionSummary"]["WarmThroughput"] = self.warmth()
        return description

    def warmth(self) -> dict[str, int | None]:
        """Describe the warm throughput, which is there at once."""
        return {"TargetMiBps": self.warm_throughput, "CurrentMiBps": self.warm_throughput}

    def end_subscriptions(self, refusal: Refusal | None) -> None:
        """End every subscription of every consumer."""
        with self.lock:
            for consumer in self.consumers:
                consumer.end_all(refusal)
            for queue in self.queues:
                queue.changed.notify_all()

    def _store(self, entry: PutEntry, shard: Shard, now: int) -> int:
        encryption = self.encryption_type
        return shard.append(entry.partition_key, entry.data, entry.size, now, encryption=encryption)

    def _shard_of(self, entry: PutEntry) -> Shard:
        if self.is_automatic:
            self._next_shard += 1
            return self._open[self._next_shard % len(self._open)]
        if entry.hash_key is not None:
            key = entry.hash_key
        elif entry.partition_key is not None:
            key = _hash(entry.partition_key.encode())
        else:
            key = _hash(entry.data)  # spread over the shards
        return self._open[bisect_right(self._starts, key) - 1]

    def _reshardable(self, shard_id: str) -> Shard:
        shard = self.shards[shard_id]
        if not shard.is_open:
            raise invalid_argument(
                f"Shard {shard_id} in stream {self.stream_name} has already been merged or split, "
                "and thus is not eligible for merging or splitting."
            )
        return shard

    def _reshard(self, parents: Sequence[Shard], ranges: Iterable[tuple[int, int]]) -> None:
        now = now_in_millis()
        children = [self._add_shard(hash_range, parents) for hash_range in ranges]
        for parent in parents:
            parent.close(children, now)
        self._route()

    def _add_shard(self, hash_range: tuple[int, int], parents: Sequence[Shard]) -> Shard:
        shard = Shard(
            self._shards_ever,
            hash_range,
            self.lock,
            parents,
            now_in_millis(),
            generation=self._generation,
        )
        self._shards_ever += 1
        self.shards[shard.shard_id] = shard
        return shard

    def _route(self) -> None:
        open_shards = (shard for shard in self.shards.values() if shard.is_open)
        self._open = sorted(open_shards, key=lambda shard: shard.starting_hash)
        self._starts = [shard.starting_hash for shard in self._open]


class _PutMeter:
    """Count what a shard has taken in the running second."""

    def __init__(self) -> None:
        self._second = self._records = self._bytes = 0

    def takes(self, nbytes: int, rules: KinesisRules) -> bool:
        """Return whether the shard takes one more record, and count it if so."""
        second = now_in_millis() // 1000
        if second != self._second:
            self._second, self._records, self._bytes = second, 0, 0
        most_records, most_bytes = rules.put_records_per_second, rules.put_bytes_per_second
        if (most_records and self._records + 1 > most_records) or (
            most_bytes and self._bytes and self._bytes + nbytes > most_bytes
        ):
            return False
        self._records += 1
        self._bytes += nbytes
        return True


def _hash(value: bytes) -> int:
    digest = hashlib.md5(value, usedforsecurity=False).digest()
    return int.from_bytes(digest, "big")
