"""Compare what was read with what was sent. Pure: no files, no Spark, no service."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ("Proof", "ReadRecord", "Restart", "SentRecord", "misplaced", "prove", "verify")


@final
class SentRecord(msgspec.Struct, frozen=True):
    """A record as its producer knows it.

    Args:
        number: Its number.
        key: Its partition key.
        split: The split that the service put it into.
        sequence: The sequence number that the service gave it.
        digest: Of its data.
        time: Its event time in milliseconds since the Unix epoch; None where it has none.
    """

    number: int
    key: str
    split: str
    sequence: int
    digest: str
    time: int | None = None


@final
class ReadRecord(msgspec.Struct, frozen=True):
    """A record as the query wrote it.

    Args:
        batch: The id of the batch that it came in.
        number: The number in its data; None where the data has none.
        key: Its partition key.
        split: Its split.
        sequence: Its sequence number.
        digest: Of its data.
        time: Its event time in milliseconds since the Unix epoch; None where it has none.
    """

    batch: int
    number: int | None
    key: str
    split: str
    sequence: int
    digest: str
    time: int | None = None


@final
class Restart(msgspec.Struct, frozen=True):
    """A restart of the query that was to meet splits it never saw.

    Args:
        killed_in: The id of the batch in which the query was killed; its content was sealed.
        born: The splits that were made before the query was started again.
    """

    killed_in: int
    born: tuple[str, ...]


@final
class Proof(msgspec.Struct, frozen=True):
    """What the comparison found.

    Args:
        records_sent: Records that the service accepted.
        records_read: Records in the output.
        batches: Batches in the output.
        lost: Records that were sent and never read.
        duplicated: Records that were read more often than once, counted without the first time.
        altered: Records that nobody sent: of an unknown number, or another key, place or data.
        out_of_order: Records in a later batch than one that follows them in their split, or in an
            earlier batch than one of a parent split; None where a service promises no order.
        second_generation: Records of splits that were made between a kill and the restart, in
            batches after the one that was killed; None without a kill.
        watermark_violations: Records with an event time that a watermark had excluded which was
            reported before, and watermarks below one that was reported before; None without a
            shuffle.
        watermark_passed: Records with an event time that the last watermark had excluded; None
            without a shuffle.
    """

    records_sent: int
    records_read: int
    batches: int
    lost: int
    duplicated: int
    altered: int
    out_of_order: int | None
    second_generation: int | None
    watermark_violations: int | None = None
    watermark_passed: int | None = None

    @property
    def holds(self) -> bool:
        """Whether every record came through once, as it was, and in order where there is one.

        After a kill, some must have come from splits that the restart met for the first time, and
        behind a shuffle a watermark must have passed some: otherwise the run shows nothing about
        them.
        """
        broken = self.lost or self.duplicated or self.altered or self.out_of_order
        shown = self.second_generation != 0 and self.watermark_passed != 0
        return shown and not broken and not self.watermark_violations


def verify(
    sent: Iterable[SentRecord],
    read: Sequence[ReadRecord],
    parents: Mapping[str, Sequence[str]] | None,
    restart: Restart | None,
) -> Proof:
    """Compare the output with what was sent.

    Order is checked between batches: Spark does not order rows within one, and there both the
    split and the sequence number are columns to sort by.

    Args:
        sent: What the producer sent.
        read: What the query wrote, in any order.
        parents: The parents of every split that has any; None where splits have no order.
        restart: The restart of the query; None if it was not killed.
    """
    expected = {record.number: record for record in sent}
    return prove(
        expected,
        read,
        altered=sum(not _same(record, expected) for record in read),
        out_of_order=None if parents is None else misplaced(read, parents),
        second_generation=None if restart is None else _second_generation(read, restart),
    )


def prove(
    expected: Mapping[int, SentRecord],
    read: Sequence[ReadRecord],
    *,
    altered: int,
    out_of_order: int | None,
    second_generation: int | None,
    watermark_violations: int | None = None,
    watermark_passed: int | None = None,
) -> Proof:
    """Count what is lost and what is duplicated; the other counts are given."""
    seen = Counter(record.number for record in read if record.number in expected)
    return Proof(
        records_sent=len(expected),
        records_read=len(read),
        batches=len({record.batch for record in read}),
        lost=len(expected) - len(seen),
        duplicated=seen.total() - len(seen),
        altered=altered,
        out_of_order=out_of_order,
        second_generation=second_generation,
        watermark_violations=watermark_violations,
        watermark_passed=watermark_passed,
    )


def _same(record: ReadRecord, expected: Mapping[int, SentRecord]) -> bool:
    sent = None if record.number is None else expected.get(record.number)
    return sent is not None and (record.key, record.split, record.sequence, record.digest) == (
        sent.key,
        sent.split,
        sent.sequence,
        sent.digest,
    )


def _second_generation(read: Iterable[ReadRecord], restart: Restart) -> int:
    born = frozenset(restart.born)
    return sum(record.split in born and record.batch > restart.killed_in for record in read)


def misplaced(read: Sequence[ReadRecord], parents: Mapping[str, Sequence[str]]) -> int:
    """Count the records in a batch behind, or before, where the order of their split has them.

    Args:
        read: What was read, in any order.
        parents: The parents of every split that has any.
    """
    last_batch: dict[str, int] = {}
    for record in read:
        last_batch[record.split] = max(record.batch, last_batch.get(record.split, 0))
    ready = {
        split: max((last_batch.get(each, 0) for each in _ancestors(split, parents)), default=0)
        for split in last_batch
    }
    count = 0
    newest: dict[str, int] = {}
    for batch, group in groupby(sorted(read, key=attrgetter("batch")), attrgetter("batch")):
        records = list(group)
        count += sum(
            batch < ready[record.split] or record.sequence < newest.get(record.split, 0)
            for record in records
        )
        for record in records:
            newest[record.split] = max(record.sequence, newest.get(record.split, 0))
    return count


def _ancestors(split: str, parents: Mapping[str, Sequence[str]]) -> set[str]:
    found: set[str] = set()
    left = [split]
    while left:
        new = set(parents.get(left.pop(), ())) - found
        found |= new
        left += new
    return found
