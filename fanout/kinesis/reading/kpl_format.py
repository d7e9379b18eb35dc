"""One aggregated record of the Kinesis Producer Library, read.

The library packs many records into one: four magic bytes, a protobuf `AggregatedRecord`, and the
MD5 of that message. A record without the magic or with another MD5 is not aggregated.
https://github.com/awslabs/amazon-kinesis-producer/blob/master/aggregation-format.md

The message is read here, not by the protobuf package: limits hold while it is read rather than
after it was built in memory, and no version of that package is forced on the user's environment.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fanout.errors import MalformedEventError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ("MAGIC", "MAX_SUB_RECORDS", "Aggregate", "parse_aggregate")

MAGIC: Final = b"\xf3\x89\x9a\xc2"
# Also of the entries of each table. The smallest sub-record takes 6 bytes: a record of 1 MiB could
# hold 175,000 of them, while the library by default ends an aggregate at 50 KiB.
MAX_SUB_RECORDS: Final = 100_000

_DIGEST_BYTES = 16
# What a row takes beside its key and data: the columns that it has from its parent.
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


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Hold the sub-records of one aggregated record, in their order.

    Args:
        partition_keys: The key of each.
        hash_keys: The explicit hash key of each as it was written, in decimal if all is well; None
            for one that has none.
        data: The data of each.
        nbytes: About what they take as rows.
    """

    partition_keys: Sequence[str]
    hash_keys: Sequence[bytes | None]
    data: Sequence[bytes]
    nbytes: int


def parse_aggregate(data: bytes) -> Aggregate | None:
    """Read one record's data; return None for a record that is not aggregated.

    Raises:
        MalformedEventError: If magic and MD5 are right, but the message breaks its format or a
            limit. The message is a clause, to go on after the record's name.
    """
    message, digest = data[len(MAGIC) : -_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if not (data.startswith(MAGIC) and message):
        return None
    if hashlib.md5(message, usedforsecurity=False).digest() != digest:
        return None
    keys: list[bytes] = []
    hash_keys: list[bytes] = []
    records: list[bytes] = []
    for field, value in _fields(message):
        if field not in {_KEY_TABLE, _HASH_KEY_TABLE, _RECORDS}:
            continue
        if isinstance(value, int):
            raise MalformedEventError(f"has a number as field {field}")
        if field == _KEY_TABLE:
            keys.append(value)
        elif field == _HASH_KEY_TABLE:
            hash_keys.append(value)
        else:
            records.append(value)
        if max(len(keys), len(hash_keys), len(records)) > MAX_SUB_RECORDS:
            raise MalformedEventError(f"has more than {MAX_SUB_RECORDS} entries as field {field}")
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
        # Of a field that comes twice the last one counts, as protobuf says.
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
        # Its own text and attributes quote the key, so it is not chained.
        raise MalformedEventError("has a partition key that is not UTF-8") from None
    if len(key) > _MAX_KEY_CHARACTERS:
        raise MalformedEventError(
            f"has a partition key of more than {_MAX_KEY_CHARACTERS} characters"
        )
    return key


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a protobuf message: numbers, and bytes of which nothing is known yet.

    https://protobuf.dev/programming-guides/encoding/
    """
    at, end = 0, len(message)
    while at < end:
        tag, at = _varint(message, at)
        kind, field = tag & 7, tag >> 3
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
        yield field, value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the number at a place, and the place after it."""
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
