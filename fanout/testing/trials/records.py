"""The records of a trial: numbered, and each with a value that shows whether it was altered."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

# Hexadecimal digits that only this record has.
_DIGITS = 128
# A longer number is none of a trial, and takes Python long to read.
_MOST_DIGITS = 18


class Record(NamedTuple):
    """A record to put into a stream; its number is its place among all records, from 0."""

    number: int
    key: str
    value: bytes


def value_of(stream: str, key: str, number: int) -> bytes:
    """Return the value of a record: its number, and digits that only this record has."""
    seed = f"{stream}/{key}/{number}".encode()
    return f"{number}:{hashlib.blake2b(seed, digest_size=_DIGITS // 2).hexdigest()}".encode()


def read_number(stream: str, key: str, value: bytes, suffix: bytes = b"") -> int | None:
    """Return the number of a record with a suffix; None if it is no record of the stream."""
    number, found, _ = value.partition(b":")
    if not found or not number.isdigit() or len(number) > _MOST_DIGITS:
        return None
    return int(number) if value == value_of(stream, key, int(number)) + suffix else None


@final
@dataclass(slots=True)
class RecordProducer:
    """Make the records of a stream, and remember which ones the service has taken."""

    stream: str
    random: Random
    keys: int = 40
    total: int = 0  # records that the service has taken
    newest: dict[str, int] = field(default_factory=dict)  # the last number of each key

    def make(self, count: int) -> list[Record]:
        """Make the records that follow those that were taken."""
        keys = [f"key-{self.random.randrange(self.keys)}" for _ in range(count)]
        return [
            Record(number, key, value_of(self.stream, key, number))
            for number, key in enumerate(keys, self.total)
        ]

    def taken(self, records: Sequence[Record]) -> None:
        """Note that the service has taken the records that were made last."""
        self.total += len(records)
        self.newest.update((record.key, record.number) for record in records)
