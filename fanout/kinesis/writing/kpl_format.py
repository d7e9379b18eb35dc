"""Encode records as the Kinesis Producer Library aggregates them.

https://github.com/awslabs/amazon-kinesis-producer/blob/master/aggregation-format.md
"""

from __future__ import annotations

import hashlib
from itertools import zip_longest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_MAGIC = b"\xf3\x89\x9a\xc2"


def encode_aggregate(
    records: Iterable[tuple[str, bytes]], hash_keys: Sequence[int | None] = ()
) -> bytes:
    """Encode many records as the data of one.

    Args:
        records: Partition keys and data, in order; a key that comes again is written once.
        hash_keys: The explicit hash key of each record, None for one without; nothing for none.

    Returns:
        What to put as the data of one record, under any partition key; the library's own is "a".
    """
    keys: dict[str, int] = {}
    explicit: dict[int, int] = {}
    parts = []
    for (key, data), hash_key in zip_longest(records, hash_keys):
        index = b"\x08" + _varint(keys.setdefault(key, len(keys)))
        if hash_key is not None:
            index += b"\x10" + _varint(explicit.setdefault(hash_key, len(explicit)))
        parts.append(_field(3, index + _field(3, data)))
    tables = [_field(1, key.encode()) for key in keys]
    tables += [_field(2, str(hash_key).encode()) for hash_key in explicit]
    return seal_aggregate(b"".join(tables + parts))


def seal_aggregate(message: bytes) -> bytes:
    """Put the magic before a protobuf `AggregatedRecord`, and its MD5 after it."""
    return _MAGIC + message + hashlib.md5(message, usedforsecurity=False).digest()


def _field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - what seven bits hold
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
