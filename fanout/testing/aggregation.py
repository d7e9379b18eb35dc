"""Encode records as the Kinesis Producer Library aggregates them.

https://github.com/awslabs/amazon-kinesis-producer/blob/master/aggregation-format.md
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ("encode_aggregate", "seal_aggregate")

_MAGIC = b"\xf3\x89\x9a\xc2"


def encode_aggregate(records: Iterable[tuple[str, bytes]]) -> bytes:
    """Encode many records as the data of one.

    Args:
        records: Partition keys and data, in order; a key that comes again is written once.

    Returns:
        What to put as the data of one record, under any partition key.
    """
    table: dict[str, int] = {}
    parts = []
    for key, data in records:
        index = table.setdefault(key, len(table))
        parts.append(_field(3, b"\x08" + _varint(index) + _field(3, data)))
    encoded = b"".join(_field(1, key.encode()) for key in table)
    return seal_aggregate(encoded + b"".join(parts))


def seal_aggregate(message: bytes) -> bytes:
    """Put the magic before a message, and its MD5 after it.

    Args:
        message: A protobuf `AggregatedRecord`, or what a test wants in its place.
    """
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
