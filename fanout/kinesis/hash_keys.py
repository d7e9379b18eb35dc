"""Hash keys, by which the service sends a record to a shard."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final, final

from fanout.errors import MalformedEventError

__all__ = ("HashRange", "hash_key_of", "parse_hash_key")

_LAST: Final = 2**128 - 1
_MAX_DIGITS: Final = len(str(_LAST))


@final
@dataclass(frozen=True, slots=True)
class HashRange:
    """The hash keys of a shard, both ends included; a shard keeps them for as long as it exists.

    https://docs.aws.amazon.com/kinesis/latest/APIReference/API_HashKeyRange.html

    Args:
        start: The lowest.
        end: The highest.
    """

    start: int = 0
    end: int = _LAST

    def __contains__(self, hash_key: int) -> bool:
        return self.start <= hash_key <= self.end

    @property
    def is_whole(self) -> bool:
        """Whether no hash key is outside."""
        return self.start == 0 and self.end >= _LAST


def hash_key_of(partition_key: str) -> int:
    """Return the hash key of a record that was put without an explicit one.

    It is the MD5 of the partition key:
    https://docs.aws.amazon.com/kinesis/latest/APIReference/API_PutRecord.html
    """
    return int.from_bytes(hashlib.md5(partition_key.encode(), usedforsecurity=False).digest())


def parse_hash_key(digits: bytes) -> int:
    """Read an explicit hash key.

    Raises:
        MalformedEventError: If it is not a decimal number below 2**128. The message is a clause, to
            go on after the name of what holds it.
    """
    if digits.isdigit() and len(digits) <= _MAX_DIGITS and (hash_key := int(digits)) <= _LAST:
        return hash_key
    raise MalformedEventError("has an explicit hash key that is not a number below 2**128")
