"""The records of a campaign: numbered by key, and each with the value that it must have become."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from random import Random

    from tests.provers.crash.moments import Pipeline

__all__ = ("SUFFIX", "RecordProducer", "read_number", "value_of")

# What the job's transform appends to each value.
SUFFIX = "!"

_KEYS = 40
# Hexadecimal digits that only this record has, over and over until the value has its size.
_DIGITS = 128


def value_of(pipeline: Pipeline, key: str, number: int) -> str:
    """Return the value of a record: its number, and digits that only this record has."""
    seed = f"{pipeline}/{key}/{number}".encode()
    return f"{number}:{hashlib.blake2b(seed, digest_size=_DIGITS // 2).hexdigest()}"


def read_number(pipeline: Pipeline, key: str, value: str, suffix: str) -> int | None:
    """Return the number of a record with a suffix; None if it is no record of the campaign."""
    number, found, _ = value.partition(":")
    if not found or not number.isdecimal() or not number.isascii():
        return None
    return int(number) if value == value_of(pipeline, key, int(number)) + suffix else None


@final
@dataclass(slots=True)
class RecordProducer:
    """Make the records of one pipeline: the numbers of a key follow each other, from 0.

    Args:
        pipeline: The pipeline.
        random: What keys are drawn from.
        produced: How many records of each key the service has taken.
    """

    pipeline: Pipeline
    random: Random
    produced: dict[str, int] = field(default_factory=dict)
    _made: dict[str, int] = field(default_factory=dict)

    def make(self, count: int) -> list[tuple[str, bytes]]:
        """Make the next records: keys and values."""
        return [self._next(f"key-{self.random.randrange(_KEYS)}") for _ in range(count)]

    def taken(self) -> None:
        """Note that the service has taken everything that was made."""
        self.produced.update(self._made)

    @property
    def total(self) -> int:
        """The number of records that the service has taken."""
        return sum(self.produced.values())

    def _next(self, key: str) -> tuple[str, bytes]:
        number = self._made.get(key, 0)
        self._made[key] = number + 1
        return key, value_of(self.pipeline, key, number).encode()
