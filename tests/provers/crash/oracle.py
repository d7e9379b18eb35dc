"""Hold what a reader of the output sees against what was produced: by key, order and count."""

from __future__ import annotations

from itertools import starmap
from typing import TYPE_CHECKING, final

import msgspec
from msgspec.structs import astuple

from tests.provers.crash.records import SUFFIX, read_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.provers.crash.moments import Pipeline

__all__ = ("OutputOracle", "OutputVerdict")


@final
class OutputVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a comparison.

    Args:
        produced: Records that were produced.
        read: Records that were read.
        lost: Produced and not read.
        duplicated: Read more often than once, counted without the first time.
        altered: Read and never produced: another key or value.
        out_of_order: Read for the first time after a later one of their key.
        repeated: Left out by the reader, as a sink that may repeat records gives each an id.
    """

    produced: int
    read: int
    lost: int
    duplicated: int
    altered: int
    out_of_order: int
    repeated: int = 0

    @property
    def holds(self) -> bool:
        """Whether the output is exactly the input."""
        return not (self.lost or self.duplicated or self.altered or self.out_of_order)

    def worse(self, other: OutputVerdict) -> OutputVerdict:
        """Return the larger of each count."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return OutputVerdict(**dict(zip(self.__struct_fields__, starmap(max, pairs), strict=True)))


class _Key:
    """The records read of one key: everything below `following`, and `ahead`, which is above."""

    __slots__ = ("ahead", "following")

    def __init__(self) -> None:
        self.following = 0
        self.ahead: set[int] = set()

    def has(self, number: int) -> bool:
        return number < self.following or number in self.ahead

    def add(self, number: int) -> bool:
        """Take a number for the first time; return whether a later one was there already."""
        late = any(number < other for other in self.ahead)
        self.ahead.add(number)
        while self.following in self.ahead:
            self.ahead.remove(self.following)
            self.following += 1
        return late

    def reaches(self, number: int) -> bool:
        return number < self.following or any(number <= other for other in self.ahead)

    def count_below(self, number: int) -> int:
        return min(self.following, number) + sum(other < number for other in self.ahead)


@final
class OutputOracle:
    """Judge the output of one pipeline while it is read.

    Args:
        pipeline: The pipeline.
        suffix: What its transform appends to each value.
        ordered: Whether the records of a key have an order; those of a table have none.
    """

    def __init__(self, pipeline: Pipeline, suffix: str = SUFFIX, *, ordered: bool = True) -> None:
        self._pipeline = pipeline
        self._suffix = suffix
        self._ordered = ordered
        self._keys: dict[str, _Key] = {}
        self._read = 0
        self._duplicated = 0
        self._altered = 0
        self._out_of_order = 0

    def read(self, key: bytes | None, value: bytes | None) -> None:
        """Take a record, in the order of its partition."""
        self._read += 1
        name = (key or b"").decode(errors="replace")
        text = (value or b"").decode(errors="replace")
        number = read_number(self._pipeline, name, text, self._suffix)
        if number is None:
            self._altered += 1
            return
        seen = self._keys.setdefault(name, _Key())
        if seen.has(number):
            self._duplicated += 1
        else:
            self._out_of_order += seen.add(number) and self._ordered

    @property
    def distinct(self) -> int:
        """The number of records that were read, each counted once."""
        return self._read - self._duplicated - self._altered

    def has(self, produced: Mapping[str, int]) -> bool:
        """Say whether the last of each key's records, or a later one, was read.

        Those before it come before it, or are lost: a campaign does not wait for them.
        """
        return all(
            key in self._keys and self._keys[key].reaches(count - 1)
            for key, count in produced.items()
        )

    def verdict(self, produced: Mapping[str, int]) -> OutputVerdict:
        """Compare what was read with what was produced.

        Args:
            produced: How many records of each key were.
        """
        none = _Key()
        read = {key: self._keys.get(key, none) for key in produced}
        return OutputVerdict(
            produced=sum(produced.values()),
            read=self._read,
            lost=sum(count - read[key].count_below(count) for key, count in produced.items()),
            duplicated=self._duplicated,
            altered=self._altered + self._unasked(produced),
            out_of_order=self._out_of_order,
        )

    def _unasked(self, produced: Mapping[str, int]) -> int:
        """Count what was read beyond what was produced: right by its digits, but never sent."""
        return sum(
            seen.following + len(seen.ahead) - seen.count_below(produced.get(key, 0))
            for key, seen in self._keys.items()
        )
