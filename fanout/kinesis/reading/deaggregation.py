"""Replace the aggregated records of the Kinesis Producer Library (KPL) by their sub-records.

The KPL packs many records into one: four magic bytes, a protobuf `AggregatedRecord`, and the MD5 of
that message. A record without the magic bytes or with another MD5 is not aggregated.
https://github.com/awslabs/amazon-kinesis-producer/blob/master/aggregation-format.md
The message is parsed here and not by the protobuf package: limits hold while it is parsed, and the
user's environment stays free to choose a version of that package.

After a reshard some sub-records come in a shard whose range does not hold their hash key. The KPL
aggregates what it expects in one shard. If the aggregate lands in a child of that shard, the KPL
counts only those sub-records as put whose hash key is in the child's range, and puts the others
again; while it does not know the child yet, it puts all of them again.
https://github.com/awslabs/amazon-kinesis-producer/blob/master/aws/kinesis/core/retrier.cc

The KCL, its reader, drops the whole aggregate if one of its sub-records is outside of the shard's
range, by the explicit hash key or else by the MD5 of the partition key.
https://github.com/awslabs/amazon-kinesis-client (AggregatorUtil.deaggregate)
This loses the sub-records that the KPL counts as put, and all records of aggregating libraries that
ignore shards and put nothing again:
https://github.com/awslabs/kinesis-aggregation/blob/master/potential_data_loss.md

This module drops a sub-record only if the KPL is certain to put it again: its hash key is outside
of the range, the shard came from a reshard, and the aggregate has the KPL's own partition key. If
that second put fails, the KPL reports to its caller that the sub-record was not put.

Where the service distributes the records, an aggregate is in any shard, and the KPL may count all
of it as put (developer guide, "Aggregation is not supported on service-managed streams"). Nothing
of it is dropped there.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING, Final, Literal, final

import pyarrow as pa
import pyarrow.compute as pc

from fanout.errors import MalformedEventError
from fanout.kinesis.aws.api import hash_key_of, parse_hash_key
from fanout.kinesis.reading.decode import FEW_ROWS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fanout.core.events import Split
    from fanout.kinesis.aws.api import HashRange

log = logging.getLogger(__name__)

MAGIC: Final = b"\xf3\x89\x9a\xc2"
# Also the limit of each table's entries. The smallest sub-record takes 6 bytes: a record of 1 MiB
# could hold 175,000 of them, while the KPL by default ends an aggregate at 50 KiB.
MAX_SUB_RECORDS: Final = 100_000
# A sub-record may name a key of 1 KiB in 6 bytes, so the rows of one event have a limit too.
_MAX_EXPANDED_BYTES = 256 * 1024 * 1024
# The partition key of every aggregate of the KPL, which places it by an explicit hash key.
# https://github.com/awslabs/amazon-kinesis-producer/blob/master/aws/kinesis/core/kinesis_record.cc
_KPL_KEY: Final = "a"

_DIGEST_BYTES = 16
# The columns of a row that come from its aggregated record.
_ROW_BYTES = 256
# The service's own limit of a partition key.
_MAX_KEY_CHARACTERS = 256

# Field numbers of AggregatedRecord, and of the Record within it.
_KEY_TABLE, _HASH_KEY_TABLE, _RECORDS = 1, 2, 3
_KEY_INDEX, _HASH_KEY_INDEX, _DATA = 1, 2, 3

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10
# The bit of a varint's byte that says that more follow.
_MORE = 0x80


@final
@dataclass(frozen=True, slots=True)
class SubRecords:
    """The rows of an event after deaggregation."""

    records: pa.RecordBatch  # those of other shards included
    belongs: pa.BooleanArray | None = None  # whether each row belongs to the shard; None if all do
    # The aggregated records that cannot be parsed, in order: the row of each in the event, and what
    # is wrong, as a clause.
    lost: Sequence[tuple[int, str]] = ()

    def after(self, count: int) -> pa.RecordBatch:
        """Return the rows of the shard without the first `count` of all rows."""
        rest = self.records.slice(count)
        return rest if self.belongs is None else rest.filter(self.belongs.slice(count))


@final
class Deaggregator:
    """Deaggregate the records of one stream, over all its subscriptions.

    An aggregated record that breaks its format or a limit is an error, or is listed in
    `SubRecords.lost` where `on_bad` is `"gap"`. Where the service distributes the records, the
    stream is `automatic`.
    """

    def __init__(self, on_bad: Literal["fail", "gap"] = "fail", *, automatic: bool = False) -> None:
        self._on_bad = on_bad
        self._automatic = automatic
        self._hash_ranges: dict[str, HashRange] = {}
        self._damaged: Counter[str] = Counter()

    def set_hash_range(self, shard_id: str, hash_range: HashRange) -> None:
        """Set the hash keys of a shard; without them no sub-record of the shard is dropped."""
        self._hash_ranges[shard_id] = hash_range

    def has_hash_range(self, shard_id: str) -> bool:
        """Return whether the hash keys of a shard were set."""
        return shard_id in self._hash_ranges

    def deaggregate(self, records: pa.RecordBatch, split: Split) -> SubRecords:
        """Put the sub-records of each aggregated record in its place.

        A sub-record has its own partitionKey, data and subSequenceNumber (0, 1, ..., those of other
        shards counted too); the other columns are those of the aggregated record. Explicit hash
        keys and tags have no column. Rows without aggregated records are returned as they are. The
        message of a MalformedEventError has the shard and the sequence number, and no data.
        """
        if not _any_aggregated(records.column("data")):
            return SubRecords(records)
        rows = _Rows(self._range_to_keep(split))
        lost: list[tuple[int, str]] = []
        columns = (records.column(name).to_pylist() for name in ("partitionKey", "data"))
        for row, (key, data) in enumerate(zip(*columns, strict=True)):
            try:
                aggregate = parse_aggregate(data)
                if aggregate is None:
                    rows.add_record(row, key, data)
                else:
                    rows.add_aggregate(row, key, aggregate)
            except MalformedEventError as error:
                clause = f"the aggregated record {_number(records, row)} of {split} {error}"
                if self._on_bad == "fail":
                    raise MalformedEventError(clause) from error
                lost.append((row, clause))
            else:
                if aggregate is None and data.startswith(MAGIC):
                    self._log_damage(records, row, split)
        return SubRecords(*rows.build(records), lost)

    def _range_to_keep(self, split: Split) -> HashRange | None:
        """Return the range outside of which a sub-record is dropped; None to drop none."""
        if self._automatic or not split.parents:
            return None
        hash_range = self._hash_ranges.get(split.id)
        return None if hash_range is None or hash_range.is_whole else hash_range

    def _log_damage(self, records: pa.RecordBatch, row: int, split: Split) -> None:
        self._damaged[split.id] += 1
        count = self._damaged[split.id]
        if str(count).rstrip("0") == "1":  # the first, the tenth, the hundredth
            log.warning(
                "the record %s of %s in the stream %s begins like an aggregated record but has "
                "another MD5, so it is delivered as it is; records of this kind in the shard so "
                "far: %d",
                _number(records, row),
                split,
                records.column("stream")[row],
                count,
            )


def _any_aggregated(data: pa.BinaryArray) -> bool:
    if len(data) <= FEW_ROWS:
        return any(value.as_buffer()[: len(MAGIC)].to_pybytes() == MAGIC for value in data)
    return bool(pc.starts_with(data, pattern=MAGIC).true_count)


def _number(records: pa.RecordBatch, row: int) -> str:
    return str(records.column("sequenceNumber")[row])


@final
@dataclass(slots=True)
class _Rows:
    """Collect rows: each has the row of its record in the event, and its own values."""

    hash_range: HashRange | None
    parents: list[int] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    data: list[bytes] = field(default_factory=list)
    subs: list[int] = field(default_factory=list)
    belongs: list[bool] = field(default_factory=list)
    expanded: int = 0

    def add_record(self, parent: int, key: str | None, data: bytes) -> None:
        self.parents.append(parent)
        self.keys.append(key)
        self.data.append(data)
        self.subs.append(0)
        self.belongs.append(True)

    def add_aggregate(self, parent: int, key: str | None, aggregate: Aggregate) -> None:
        if self.expanded + aggregate.nbytes > _MAX_EXPANDED_BYTES:
            raise MalformedEventError(
                f"makes the rows of its event take more than {_MAX_EXPANDED_BYTES} bytes"
            )
        count = len(aggregate.data)
        # Other libraries take the key of the first sub-record, which may be the same.
        is_kpl = key == _KPL_KEY and aggregate.partition_keys[:1] != [key]
        if self.hash_range is None or not is_kpl:
            self.belongs += [True] * count
        else:
            self.belongs += _belonging(aggregate, self.hash_range)
        self.parents.extend(repeat(parent, count))
        self.keys += aggregate.partition_keys
        self.data += aggregate.data
        self.subs += range(count)
        self.expanded += aggregate.nbytes

    def build(self, records: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.BooleanArray | None]:
        """Return the rows, and which of them belong to the shard; None if all do."""
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


@dataclass(frozen=True, slots=True)
class Aggregate:
    """The sub-records of one aggregated record, in their order."""

    partition_keys: Sequence[str]
    hash_keys: Sequence[bytes | None]  # explicit ones as they were written, not checked yet
    data: Sequence[bytes]
    nbytes: int  # about the bytes that they take as rows


def parse_aggregate(data: bytes) -> Aggregate | None:
    """Parse one record's data; return None for a record that is not aggregated.

    It is aggregated if magic bytes and MD5 are right. A message that then breaks its format or a
    limit is a MalformedEventError, whose text is a clause that follows the name of the record.
    """
    message, digest = data[len(MAGIC) : -_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if not (data.startswith(MAGIC) and message):
        return None
    if hashlib.md5(message, usedforsecurity=False).digest() != digest:
        return None
    keys: list[bytes] = []
    hash_keys: list[bytes] = []
    records: list[bytes] = []
    for field_number, value in _fields(message):
        if field_number not in {_KEY_TABLE, _HASH_KEY_TABLE, _RECORDS}:
            continue
        if isinstance(value, int):
            raise MalformedEventError(f"has a number as field {field_number}")
        if field_number == _KEY_TABLE:
            keys.append(value)
        elif field_number == _HASH_KEY_TABLE:
            hash_keys.append(value)
        else:
            records.append(value)
        if max(len(keys), len(hash_keys), len(records)) > MAX_SUB_RECORDS:
            raise MalformedEventError(
                f"has more than {MAX_SUB_RECORDS} entries as field {field_number}"
            )
    return _aggregate(keys, hash_keys, records)


def _aggregate(
    keys: Sequence[bytes], hash_keys: Sequence[bytes], records: Sequence[bytes]
) -> Aggregate:
    names = [_partition_key(key) for key in keys]
    partition_keys: list[str] = []
    explicit: list[bytes | None] = []
    data: list[bytes] = []
    nbytes = 0
    for record in records:
        # Protobuf: the last value of a repeated scalar field counts.
        fields = dict(_fields(record))
        index, value = fields.get(_KEY_INDEX), fields.get(_DATA)
        if not (isinstance(index, int) and isinstance(value, bytes)):
            raise MalformedEventError("has a sub-record without a key or data")
        hash_index = fields.get(_HASH_KEY_INDEX, -1)
        if not (isinstance(hash_index, int) and index < len(keys) and hash_index < len(hash_keys)):
            raise MalformedEventError("has a sub-record that points outside of a table")
        partition_keys.append(names[index])
        explicit.append(None if hash_index < 0 else hash_keys[hash_index])
        data.append(value)
        nbytes += len(keys[index]) + len(value) + _ROW_BYTES
    return Aggregate(partition_keys, explicit, data, nbytes)


def _partition_key(raw: bytes) -> str:
    try:
        key = raw.decode()
    except UnicodeDecodeError:
        # The text and attributes of this error quote the key, so it is not chained.
        raise MalformedEventError("has a partition key that is not UTF-8") from None
    if len(key) > _MAX_KEY_CHARACTERS:
        raise MalformedEventError(
            f"has a partition key of more than {_MAX_KEY_CHARACTERS} characters"
        )
    return key


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and the value of each field of a protobuf message."""
    # https://protobuf.dev/programming-guides/encoding/
    at, end = 0, len(message)
    while at < end:
        tag, at = _varint(message, at)
        kind, field_number = tag & 7, tag >> 3
        value: int | bytes
        if kind == _VARINT:
            value, at = _varint(message, at)
        else:
            if kind == _BYTES:
                length, at = _varint(message, at)
            elif kind in {_FIXED64, _FIXED32}:
                length = 8 if kind == _FIXED64 else 4
            else:
                raise MalformedEventError(f"has a field of the unknown type {kind}")
            if length > end - at:
                raise MalformedEventError("has a field that is longer than what holds it")
            value = message[at : at + length]
            at += length
        yield field_number, value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the number at an offset, and the offset after it."""
    if at < len(message) and message[at] < _MORE:  # nearly always a single byte
        return message[at], at + 1
    value = shift = 0
    for byte in message[at : at + _MAX_VARINT_BYTES]:
        at += 1
        value |= (byte & ~_MORE) << shift
        if byte < _MORE:
            return value, at
        shift += 7
    raise MalformedEventError("has a number that does not end")
