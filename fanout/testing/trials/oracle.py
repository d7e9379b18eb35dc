"""Compare an output with the records that were produced: by number, key, value and order."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import msgspec

from fanout.testing.trials.records import read_number

if TYPE_CHECKING:
    from collections.abc import Mapping


@final
class OutputVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a comparison."""

    produced: int
    read: int
    lost: int
    duplicated: int  # without the first time
    altered: int  # read and never produced: another key or value
    out_of_order: int  # read for the first time after a later one of their key
    repeated: int = 0  # left out by the reader, as a sink that may repeat records gives each an id

    @property
    def holds(self) -> bool:
        """Whether the output is exactly the input."""
        return not (self.lost or self.duplicated or self.altered or self.out_of_order)


@final
class OutputOracle:
    """Judge the output of a stream while it is read; the records of a table have no order."""

    def __init__(self, stream: str, suffix: bytes = b"", *, ordered: bool = True) -> None:
        self._stream = stream
        self._suffix = suffix
        self._ordered = ordered
        # What was read: every number below `_following`, and `_ahead`, which is above.
        self._following = 0
        self._ahead: set[int] = set()
        self._newest: dict[str, int] = {}
        self._read = 0
        self._duplicated = 0
        self._altered = 0
        self._out_of_order = 0

    def read(self, key: bytes | None, value: bytes | None) -> int | None:
        """Take a record, in the order of its partition; return its number unless it was altered."""
        self._read += 1
        name = (key or b"").decode(errors="replace")
        number = read_number(self._stream, name, value or b"", self._suffix)
        if number is None:
            self._altered += 1
        elif number < self._following or number in self._ahead:
            self._duplicated += 1
        else:
            newest = self._newest.get(name, -1)
            self._out_of_order += self._ordered and number < newest
            self._newest[name] = max(number, newest)
            self._ahead.add(number)
            while self._following in self._ahead:
                self._ahead.remove(self._following)
                self._following += 1
        return number

    @property
    def distinct(self) -> int:
        """The number of records that were read, each counted once."""
        return self._read - self._duplicated - self._altered

    def has(self, newest: Mapping[str, int]) -> bool:
        """Say whether the newest record of each key, or a later one, was read.

        Those before it come before it, or are lost: nobody waits for them.
        """
        return all(self._newest.get(key, -1) >= number for key, number in newest.items())

    def verdict(self, produced: int) -> OutputVerdict:
        """Compare what was read with so many records that were produced."""
        found = min(self._following, produced) + sum(each < produced for each in self._ahead)
        return OutputVerdict(
            produced=produced,
            read=self._read,
            lost=produced - found,
            duplicated=self._duplicated,
            # What is right by its digits, but was never produced, was altered too.
            altered=self._altered + self.distinct - found,
            out_of_order=self._out_of_order,
        )
