"""Ranges of offsets in partitions, and sets of records that are kept as such ranges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from fanout.kafka.partitions import Partition

OffsetRange = tuple["Partition", int, int]
"""A partition, the first offset in it, and the offset after the last one."""


def count_records(ranges: Iterable[OffsetRange]) -> int:
    """Return the number of records in some ranges."""
    return sum(end - begin for _, begin, end in ranges)


def describe_ranges(ranges: Sequence[OffsetRange]) -> tuple[str, ...]:
    """Return a name for each range, for messages."""
    return tuple(
        f"{partition} offset {begin}"
        if end == begin + 1
        else f"{partition} offsets {begin} to {end - 1}"
        for partition, begin, end in ranges
    )


@final
class RecordSet:
    """A set of records, by partition and offset.

    Neighbouring records share one range, so the set takes memory by range, not by record. Any
    thread may call `len`.
    """

    def __init__(self) -> None:
        self._count = 0
        self._intervals: dict[Partition, _Intervals] = {}

    def __iter__(self) -> Iterator[OffsetRange]:
        for partition, intervals in self._intervals.items():
            for begin, end in zip(intervals.begins, intervals.ends, strict=True):
                yield partition, begin, end

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        return bool(self._intervals)

    def add(self, piece: OffsetRange) -> None:
        """Add records; some of them may be in the set already."""
        partition, begin, end = piece
        self._count += self._intervals.setdefault(partition, _Intervals()).add(begin, end)

    def remove(self, piece: OffsetRange) -> None:
        """Remove those of some records that are in the set."""
        partition, begin, end = piece
        intervals = self._intervals.get(partition)
        if intervals is not None:
            self._count -= intervals.remove(begin, end)
            if not intervals.begins:
                del self._intervals[partition]

    def overlaps(self, piece: OffsetRange) -> list[OffsetRange]:
        """Return the parts of a range that are in the set."""
        partition, begin, end = piece
        intervals = self._intervals.get(partition)
        parts = [] if intervals is None else intervals.overlaps(begin, end)
        return [(partition, *part) for part in parts]


@final
class _Intervals:
    """Sorted intervals of integers with at least one integer between two of them.

    `begins` holds the first integer of each interval, `ends` the one after its last.
    """

    def __init__(self) -> None:
        self.begins: list[int] = []
        self.ends: list[int] = []

    def add(self, begin: int, end: int) -> int:
        """Add integers; return how many of them are new."""
        known = sum(last - first for first, last in self.overlaps(begin, end))
        new = end - begin - known
        first, behind = bisect_left(self.ends, begin), bisect_right(self.begins, end)
        if first < behind:
            begin = min(begin, self.begins[first])
            end = max(end, self.ends[behind - 1])
        self.begins[first:behind], self.ends[first:behind] = [begin], [end]
        return new

    def remove(self, begin: int, end: int) -> int:
        """Remove integers; return how many of them were present."""
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
