"""The log of a simulated stream: every record that will ever be put, and when.

The whole log is made from a seed before the run and never changes, so what the service would
answer at any moment is a function of that moment, and what a reader must get is known beforehand.
"""

from __future__ import annotations

import base64
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal, final

from fanout.kinesis.writing.kpl_format import encode_aggregate, seal_aggregate
from fanout.testing.kinesis.frames import encode_record
from tests.provers.simulation.service_clock import EPOCH_MILLIS

if TYPE_CHECKING:
    from fanout.kinesis.aws.api import HashRange

__all__ = (
    "RECORD_STRIDE",
    "KinesisRow",
    "SourceLog",
    "SourceRecord",
    "SourceShard",
    "SubRecord",
    "number_of",
    "shard_id_of",
)

# The service's sequence numbers have 56 decimal digits. A child's exceed all of its parents', and
# those of a later moment exceed those of an earlier one.
_ORIGIN: Final = 49680412602923508161381989364352061050721676279901323266
_SHARD_STRIDE: Final = 1 << 140
# The numbers of a stream exceed those of every stream before it under its name.
_STREAM_STRIDE: Final = 1 << 160
_MILLI_STRIDE: Final = 1 << 80
RECORD_STRIDE: Final = 1 << 40
"""By how much the numbers of two records differ that arrive in the same millisecond."""

# A field of 9 bytes in a message of 2.
_BROKEN: Final = b"\x0a\x09"


@final
@dataclass(frozen=True, slots=True)
class KinesisRow:
    """One record as a reader has to get it.

    Args:
        sequence: Its sequence number.
        sub: Its number within an aggregated record, else 0.
        key: Its partition key; None where the producer gave none.
        data: Its bytes.
        arrival: When it arrived, in milliseconds since the Unix epoch.
        foreign: Whether it is of another shard, by its hash key: a reader that knows the shard's
            hash keys leaves it out, as its producer puts it again.
    """

    sequence: int
    sub: int
    key: str | None
    data: bytes = field(repr=False)
    arrival: int
    foreign: bool = False


@final
@dataclass(frozen=True, slots=True)
class SubRecord:
    """The content put as one record: a record of its own, or one of those in an aggregated record.

    Args:
        key: Its partition key.
        data: Its bytes.
        hash_key: Its explicit hash key; None where it has none.
        foreign: Whether it is of another shard, by its hash key.
    """

    key: str
    data: bytes = field(repr=False)
    hash_key: int | None = None
    foreign: bool = False


@final
@dataclass(frozen=True)
class SourceRecord:
    """One record as it was put.

    Args:
        sequence: Its sequence number.
        arrival: When it arrived, in milliseconds since the Unix epoch.
        key: Its partition key; None where the producer gave none.
        parts: What was put.
        form: Whether it is aggregated; such a record may have a checksum that is wrong, so that it
            is taken for a plain one, or a message that is.
    """

    sequence: int
    arrival: int
    key: str | None
    parts: tuple[SubRecord, ...]
    form: Literal["plain", "aggregated", "wrong checksum", "broken"]

    @property
    def rows(self) -> list[KinesisRow]:
        """The rows that a reader gets of it."""
        match self.form:
            case "broken":
                return []
            case "plain" | "wrong checksum":
                return [KinesisRow(self.sequence, 0, self.key, self.data, self.arrival)]
            case "aggregated":
                return [
                    KinesisRow(self.sequence, sub, part.key, part.data, self.arrival, part.foreign)
                    for sub, part in enumerate(self.parts)
                ]

    @cached_property
    def row_count(self) -> int:
        """The least number of rows that a reader gets of it."""
        return sum(not row.foreign for row in self.rows)

    @cached_property
    def data(self) -> bytes:
        """Its bytes, as they were put."""
        match self.form:
            case "plain":
                return self.parts[0].data
            case "broken":
                return seal_aggregate(_BROKEN)
            case "wrong checksum":
                right = self._aggregate()
                return right[:-1] + bytes([right[-1] ^ 1])
            case "aggregated":
                return self._aggregate()

    def _aggregate(self) -> bytes:
        records = [(part.key, part.data) for part in self.parts]
        return encode_aggregate(records, [part.hash_key for part in self.parts])

    @cached_property
    def size(self) -> int:
        """The bytes of its data and its key, by which the service limits events."""
        return len(self.data) + len((self.key or "").encode())

    @cached_property
    def encoded(self) -> bytes:
        """It, as events and answers carry it."""
        return encode_record(self.arrival, base64.b64encode(self.data), self.key, self.sequence)


@final
@dataclass(frozen=True)
class SourceShard:
    """One shard, from its beginning to its end.

    Args:
        index: Its number; a child's is above its parents'.
        parents: The shards that it continues.
        hash_range: The hash keys whose records it takes.
        opened: When it began, in milliseconds since the Unix epoch.
        closed: When a reshard ended it; None where none does.
        records: What is put into it, in order.
        generation: Which of the streams of this name it is of, from 0.
    """

    index: int
    parents: tuple[str, ...]
    hash_range: HashRange
    opened: int
    closed: int | None
    records: tuple[SourceRecord, ...] = field(repr=False)
    generation: int = 0

    @cached_property
    def shard_id(self) -> str:
        """Its id."""
        return shard_id_of(self.index)

    @property
    def first(self) -> int:
        """The sequence number that it began with."""
        return self.number_at(self.opened)

    @property
    def last(self) -> int | None:
        """The sequence number that it is closed with."""
        return None if self.closed is None else self.number_at(self.closed)

    def number_at(self, moment: int) -> int:
        """Return a number above those of every record that arrived before a moment."""
        return number_of(self.index, moment, self.generation)

    @cached_property
    def numbers(self) -> list[int]:
        """The sequence numbers of its records."""
        return [record.sequence for record in self.records]

    @cached_property
    def broken(self) -> frozenset[int]:
        """The sequence numbers of its aggregated records that cannot be read."""
        return frozenset(r.sequence for r in self.records if r.form == "broken")

    @cached_property
    def arrivals(self) -> list[int]:
        """When its records arrive, in milliseconds since the Unix epoch."""
        return [record.arrival for record in self.records]

    @cached_property
    def rows(self) -> list[KinesisRow]:
        """Everything that a reader has to get, in order."""
        return [row for record in self.records for row in record.rows]

    def closed_at(self, moment: int) -> bool:
        """Say whether it has ended by a moment."""
        return self.closed is not None and self.closed <= moment

    def after(self, number: int) -> int:
        """Return the place of the first record after a sequence number."""
        return bisect_right(self.numbers, number)

    def arrived(self, moment: int) -> int:
        """Return how many records arrived before a moment."""
        return bisect_left(self.arrivals, moment)


@final
@dataclass(frozen=True)
class SourceLog:
    """Every shard that a stream ever has.

    Args:
        shards: The shards by id, parents before children.
    """

    shards: dict[str, SourceShard]

    def children(self, shard_id: str) -> list[SourceShard]:
        """Return the shards that continue one."""
        return [shard for shard in self.shards.values() if shard_id in shard.parents]


def number_of(index: int, moment: int, generation: int = 0) -> int:
    """Return a sequence number of a shard at a moment.

    Args:
        index: The number of the shard.
        moment: When, in milliseconds since the Unix epoch.
        generation: How many streams of its name there were before.
    """
    beginning = _ORIGIN + generation * _STREAM_STRIDE + index * _SHARD_STRIDE
    return beginning + (moment - EPOCH_MILLIS + 10**9) * _MILLI_STRIDE


def shard_id_of(index: int) -> str:
    """Return the id of a shard by its number."""
    return f"shardId-{index:012}"
