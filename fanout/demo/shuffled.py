"""Compare what was read from a shuffle with what was sent. Pure: no files, no Spark, no service."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

from fanout.demo.verification import misplaced, prove

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fanout.demo.verification import Proof, ReadRecord, Restart, SentRecord

__all__ = ("Reported", "verify_shuffled")

Reported: TypeAlias = "tuple[int, int | None]"
"""A batch, and the watermark behind it in milliseconds since the Unix epoch; None for none."""

# A record that was read, and what its producer knows of it.
_Pair: TypeAlias = "tuple[ReadRecord, SentRecord]"


def verify_shuffled(
    sent: Iterable[SentRecord],
    read: Sequence[ReadRecord],
    reported: Sequence[Reported],
    restart: Restart | None,
) -> Proof:
    """Compare the output of a query that reads a shuffle with what was sent to the one before it.

    Records of a key are to be in one partition, and those that came from one split in its order: a
    key that moved to another split, because there are more of them, has no order between the two.

    Args:
        sent: What the producer sent.
        read: What the query wrote, in any order.
        reported: The watermark behind each batch, in the order in which they were reported.
        restart: The restart of the query that writes the shuffle; None if it was not killed.
    """
    expected = {record.number: record for record in sent}
    pairs = [(record, known) for record in read if (known := _known(record, expected))]
    return prove(
        expected,
        read,
        altered=len(read) - len(pairs),
        out_of_order=misplaced(read, {}) + _keys_misplaced(pairs),
        second_generation=None if restart is None else _second_generation(pairs, restart),
        watermark_violations=_late(read, reported) + _backwards(reported),
        watermark_passed=_passed(read, reported),
    )


def _known(record: ReadRecord, expected: Mapping[int, SentRecord]) -> SentRecord | None:
    """Return what the producer knows of a record; None if nobody sent it as it is."""
    if record.number is None or (sent := expected.get(record.number)) is None:
        return None
    same = (record.key, record.digest, record.time) == (sent.key, sent.digest, sent.time)
    return sent if same else None


def _keys_misplaced(pairs: Iterable[_Pair]) -> int:
    """Count the records in another partition than the first of their key, or behind a later one."""
    count = 0
    partitions: dict[str, str] = {}
    newest: dict[tuple[str, str], int] = {}
    for record, sent in sorted(pairs, key=lambda pair: (pair[0].split, pair[0].sequence)):
        origin = (sent.key, sent.split)
        before = newest.get(origin, 0)
        partition = partitions.setdefault(sent.key, record.split)
        count += record.split != partition or sent.sequence < before
        newest[origin] = max(sent.sequence, before)
    return count


def _second_generation(pairs: Iterable[_Pair], restart: Restart) -> int:
    born = frozenset(restart.born)
    return sum(sent.split in born for _, sent in pairs)


def _late(read: Iterable[ReadRecord], reported: Iterable[Reported]) -> int:
    """Count the records that came behind a watermark which had excluded them."""
    heights = {batch: _height(watermark) for batch, watermark in reported}
    batches = {record.batch for record in read}
    excluded = {
        batch: max((heights[other] for other in heights if other < batch), default=-math.inf)
        for batch in batches
    }
    return sum(record.time is not None and record.time <= excluded[record.batch] for record in read)


def _backwards(reported: Iterable[Reported]) -> int:
    """Count the watermarks below one that was reported before."""
    heights = [_height(watermark) for _, watermark in reported]
    highest = accumulate(heights, max)
    return sum(height < before for before, height in zip(highest, heights[1:], strict=False))


def _passed(read: Iterable[ReadRecord], reported: Sequence[Reported]) -> int:
    """Count the records that the last watermark excludes."""
    last = _height(reported[-1][1]) if reported else -math.inf
    return sum(record.time is not None and record.time <= last for record in read)


def _height(watermark: int | None) -> float:
    return -math.inf if watermark is None else watermark
