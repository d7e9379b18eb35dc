"""The aggregated records of a stream, replaced by their sub-records.

After a reshard some sub-records come in a shard that is not theirs. The Kinesis Producer Library
(KPL) aggregates what it expects in one shard. Where the aggregate lands in a child of that shard,
the KPL takes those sub-records alone for put whose hash key is in the child's range, and puts the
others again; while it does not know the child yet, it puts all of them again.
https://github.com/awslabs/amazon-kinesis-producer/blob/master/aws/kinesis/core/retrier.cc

Its reader, the KCL, drops a whole aggregate one of whose sub-records is outside of the shard's
range, both ends included: by the explicit hash key, or else by the MD5 of the partition key.
https://github.com/awslabs/amazon-kinesis-client (AggregatorUtil.deaggregate)
That loses the sub-records that the KPL took for put, and everything from aggregating libraries that
look at no shard and put nothing again:
https://github.com/awslabs/kinesis-aggregation/blob/master/potential_data_loss.md

So here a sub-record is dropped only if it is certain to be put again: its hash key is outside of
the range, the shard came of a reshard, and the aggregate's own key is the KPL's. Nothing is lost
by that: of a sub-record whose second put fails, the KPL tells its caller that it was not put.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING, Final, Literal, final

import pyarrow as pa
import pyarrow.compute as pc

from fanout.errors import MalformedEventError
from fanout.kinesis.hash_keys import hash_key_of, parse_hash_key
from fanout.kinesis.reading.kpl_format import MAGIC, parse_aggregate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanout.core.events import Split
    from fanout.kinesis.hash_keys import HashRange
    from fanout.kinesis.reading.kpl_format import Aggregate

__all__ = ("Disaggregator", "SubRecords")

log = logging.getLogger(__name__)

# A sub-record may name a key of 1 KiB in 6 bytes, so what a whole event grows to has a limit too.
_MAX_EXPANDED_BYTES = 256 * 1024 * 1024
# The partition key of every aggregate of the KPL, which places it by an explicit hash key.
# https://github.com/awslabs/amazon-kinesis-producer/blob/master/aws/kinesis/core/kinesis_record.cc
_KPL_KEY: Final = "a"


@final
@dataclass(frozen=True, slots=True)
class SubRecords:
    """Hold the rows of an event whose aggregated records have been taken apart.

    Args:
        records: The rows, with those of other shards.
        belongs: Whether each row belongs to the shard; None where all do.
        lost: The aggregated records that cannot be read, in order: the row of each in the event,
            and what is wrong, a clause.
    """

    records: pa.RecordBatch
    belongs: pa.BooleanArray | None = None
    lost: Sequence[tuple[int, str]] = ()

    def after(self, count: int) -> pa.RecordBatch:
        """Return the rows of the shard but the first `count` of all rows."""
        rest = self.records.slice(count)
        return rest if self.belongs is None else rest.filter(self.belongs.slice(count))


@final
class Disaggregator:
    """Take apart the aggregated records of one stream, over all its subscriptions.

    Args:
        on_bad: What to do with an aggregated record that breaks its format or a limit: `"fail"`
            raises, `"gap"` leaves it out and tells.
    """

    def __init__(self, on_bad: Literal["fail", "gap"] = "fail") -> None:
        self._on_bad = on_bad
        self._hash_ranges: dict[str, HashRange] = {}
        self._damaged: Counter[str] = Counter()

    def learn(self, shard_id: str, hash_range: HashRange) -> None:
        """Remember the hash keys of a shard; nothing is dropped of a shard whose are not known."""
        self._hash_ranges[shard_id] = hash_range

    def take_apart(self, records: pa.RecordBatch, split: Split) -> SubRecords:
        """Put the sub-records of each aggregated record in its place.

        A sub-record has its own partitionKey, data and subSequenceNumber (0, 1, ..., those of other
        shards counted too); everything else is its parent's. Explicit hash keys and tags have no
        column. Rows without aggregated records are returned as they are.

        Args:
            records: Rows with the columns of SCHEMA.
            split: The shard that they came in.

        Raises:
            MalformedEventError: If an aggregated record breaks its format or a limit and is not to
                be left out; the message has its shard and sequence number, and none of its data.
        """
        if not _any_aggregated(records.column("data")):
            return SubRecords(records)
        rows = _Rows(self._foreign_to(split))
        lost: list[tuple[int, str]] = []
        parts = (records.column(name).to_pylist() for name in ("partitionKey", "data"))
        for row, (key, data) in enumerate(zip(*parts, strict=True)):
            try:
                aggregate = parse_aggregate(data)
                if aggregate is None:
                    rows.add_plain(row, key, data)
                else:
                    rows.add(row, key, aggregate)
            except MalformedEventError as error:
                clause = f"the aggregated record {_number(records, row)} of {split} {error}"
                if self._on_bad == "fail":
                    raise MalformedEventError(clause) from error
                lost.append((row, clause))
            else:
                if aggregate is None and data.startswith(MAGIC):
                    self._note_damage(_number(records, row), split)
        return SubRecords(*rows.build(records), lost)

    def _foreign_to(self, split: Split) -> HashRange | None:
        """Return the range outside of which a sub-record is dropped; None where none can be."""
        hash_range = self._hash_ranges.get(split.id) if split.parents else None
        return None if hash_range is None or hash_range.is_whole else hash_range

    def _note_damage(self, number: str, split: Split) -> None:
        self._damaged[split.id] += 1
        seen = self._damaged[split.id]
        if str(seen).rstrip("0") == "1":  # the first, the tenth, the hundredth
            log.warning(
                "the record %s of %s begins as an aggregated one, but its MD5 is another, so it is "
                "delivered as it is; the shard has had %d of them",
                number,
                split,
                seen,
            )


def _any_aggregated(data: pa.BinaryArray) -> bool:
    return len(data) > 0 and bool(pc.starts_with(data, pattern=MAGIC).true_count)


def _number(records: pa.RecordBatch, row: int) -> str:
    return str(records.column("sequenceNumber")[row])


@final
@dataclass(slots=True)
class _Rows:
    """Collect rows: each with the row of its parent in the event, and its own values."""

    hash_range: HashRange | None
    parents: list[int] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    data: list[bytes] = field(default_factory=list)
    subs: list[int] = field(default_factory=list)
    belongs: list[bool] = field(default_factory=list)
    expanded: int = 0

    def add_plain(self, parent: int, key: str, data: bytes) -> None:
        self.parents.append(parent)
        self.keys.append(key)
        self.data.append(data)
        self.subs.append(0)
        self.belongs.append(True)

    def add(self, parent: int, key: str, aggregate: Aggregate) -> None:
        if self.expanded + aggregate.nbytes > _MAX_EXPANDED_BYTES:
            raise MalformedEventError(
                f"makes the rows of its event take more than {_MAX_EXPANDED_BYTES} bytes"
            )
        count = len(aggregate.data)
        if self.hash_range is None or key != _KPL_KEY:
            self.belongs += [True] * count
        else:
            self.belongs += _belonging(aggregate, self.hash_range)
        self.parents.extend(repeat(parent, count))
        self.keys += aggregate.partition_keys
        self.data += aggregate.data
        self.subs += range(count)
        self.expanded += aggregate.nbytes

    def build(self, records: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.BooleanArray | None]:
        """Return the rows, and which of them belong to the shard if not all do."""
        own = {"partitionKey": self.keys, "data": self.data, "subSequenceNumber": self.subs}
        parents = pa.array(self.parents, pa.int64())
        columns = [
            pa.array(own[field.name], field.type)
            if field.name in own
            else records.column(field.name).take(parents)
            for field in records.schema
        ]
        rows = pa.RecordBatch.from_arrays(columns, schema=records.schema)
        return rows, None if all(self.belongs) else pa.array(self.belongs, pa.bool_())


def _belonging(aggregate: Aggregate, hash_range: HashRange) -> list[bool]:
    return [
        (hash_key_of(key) if explicit is None else parse_hash_key(explicit)) in hash_range
        for key, explicit in zip(aggregate.partition_keys, aggregate.hash_keys, strict=True)
    ]
