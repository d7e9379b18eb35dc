"""Sets of records by partition and offset, kept as ranges: neighbours take no room of their own."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fanout.kafka.partitions import Partition

__all__ = ("Piece", "RecordSet", "count_records")

Piece = tuple["Partition", int, int]
"""Records of a partition: from an offset to the one behind the last."""


def count_records(pieces: Iterable[Piece]) -> int:
    """Return how many records some pieces have together."""
    return sum(end - begin for _, begin, end in pieces)


@final
class RecordSet:
    """Records, as ranges of offsets; every operation takes a range from `begin` up to `end`.

    How many they are may be asked from any thread.
    """

    def __init__(self) -> None:
        self._count = 0
        self._ranges: dict[Partition, _Ranges] = {}

    def __iter__(self) -> Iterator[Piece]:
        for partition, ranges in self._ranges.items():
            for begin, end in zip(ranges.begins, ranges.ends, strict=True):
                yield partition, begin, end

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def add(self, partition: Partition, begin: int, end: int) -> None:
        """Put records in, some of which may be in already."""
        self._count += self._ranges.setdefault(partition, _Ranges()).add(begin, end)

    def remove(self, partition: Partition, begin: int, end: int) -> None:
        """Take records out, if they are in."""
        ranges = self._ranges.get(partition)
        if ranges is not None:
            self._count -= ranges.remove(begin, end)
            if not ranges.begins:
                del self._ranges[partition]

    def overlaps(self, partition: Partition, begin: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of a range that are in."""
        ranges = self._ranges.get(partition)
        return [] if ranges is None else ranges.overlaps(begin, end)


@final
class _Ranges:
    """Ranges of whole numbers, in order; between two of them is at least one number.

    `begins` and `ends` have an entry for each, the second behind its last number.
    """

    def __init__(self) -> None:
        self.begins: list[int] = []
        self.ends: list[int] = []

    def add(self, begin: int, end: int) -> int:
        """Put numbers in; return how many of them are new."""
        known = sum(last - first for first, last in self.overlaps(begin, end))
        new = end - begin - known
        first, behind = bisect_left(self.ends, begin), bisect_right(self.begins, end)
        if first < behind:
            begin = min(begin, self.begins[first])
            end = max(end, self.ends[behind - 1])
        self.begins[first:behind], self.ends[first:behind] = [begin], [end]
        return new

    def remove(self, begin: int, end: int) -> int:
        """Take numbers out; return how many of them were in."""
        known = sum(last - first for first, last in self.overlaps(begin, end))
        if not known:
            return 0
        first, behind = bisect_right(self.ends, begin), bisect_left(self.begins, end)
        left, right = self.begins[first], self.ends[behind - 1]
        kept = [(left, begin)] if left < begin else []
        kept += [(end, right)] if end < right else []
        self.begins[first:behind] = [one for one, _ in kept]
        self.ends[first:behind] = [one for _, one in kept]
        return known

    def overlaps(self, begin: int, end: int) -> list[tuple[int, int]]:
        first, behind = bisect_right(self.ends, begin), bisect_left(self.begins, end)
        return [
            (max(begin, self.begins[place]), min(end, self.ends[place]))
            for place in range(first, behind)
        ]
