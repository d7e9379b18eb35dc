"""Where many Avro values are in the bytes of a batch, one position for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Mask = NDArray[np.bool_]

EARLY: Final = "the record ends early"
_MOST_VARINT_BYTES: Final = 10
_MORE: Final = 0x80


class Cursors:
    """A position for each of some values, in the order of the bytes; `ends` are those of records.

    A value that cannot be read makes its record bad, and leaves its position at the end.
    """

    def __init__(
        self,
        data: NDArray[np.uint8],
        positions: Ints,
        ends: Ints,
        rows: Ints,
        failures: dict[int, str],
    ) -> None:
        self.data = data
        self.buffer = pa.py_buffer(data)
        self.positions = positions
        self.ends = ends
        self.rows = rows
        self.failures = failures

    def __len__(self) -> int:
        return len(self.positions)

    def take(self, chosen: Ints) -> Cursors:
        """Return cursors for some of the values."""
        return self.at(self.positions[chosen], chosen)

    def at(self, positions: Ints, owners: Ints) -> Cursors:
        """Return cursors for other values of the same records."""
        return Cursors(self.data, positions, self.ends[owners], self.rows[owners], self.failures)

    def fail(self, bad: Mask, reason: str) -> None:
        """Make the records of some values bad."""
        if bad.any():
            for row in self.rows[bad].tolist():
                self.failures.setdefault(row, reason)
            self.positions[bad] = self.ends[bad]

    def advance(self, sizes: Ints | int, path: str) -> Ints:
        """Go past values of known sizes; return where they begin, the end where that fails."""
        begins = self.positions
        self.positions = begins + sizes
        bad = (self.positions > self.ends) | (self.positions < begins)
        if bad.any():
            self.fail(bad, f"{path}: {EARLY}")
            begins = np.where(bad, self.ends, begins)
        return begins

    def varints(self, path: str) -> Ints:
        """Read numbers of variable length; 0 where one cannot be read."""
        data, at = self.data, self.positions
        first = data.take(at, mode="clip")
        numbers = first.astype(np.uint64)
        at = at + 1
        rest = np.flatnonzero(first >= _MORE)
        if len(rest):
            at, numbers = self._long_varints(rest, at, numbers)
        values = (numbers >> np.uint64(1)).view(np.int64) ^ -(numbers & np.uint64(1)).view(np.int64)
        self.positions = at
        bad = at > self.ends
        self.fail(bad, f"{path}: {EARLY}")
        values[bad] = 0
        return values

    def _long_varints(
        self, rest: Ints, at: Ints, numbers: NDArray[np.uint64]
    ) -> tuple[Ints, NDArray[np.uint64]]:
        numbers[rest] &= np.uint64(0x7F)
        for count in range(1, _MOST_VARINT_BYTES):
            byte = self.data.take(at[rest], mode="clip")
            numbers[rest] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * count)
            at[rest] += 1
            if count == _MOST_VARINT_BYTES - 1:
                wrong = rest[byte > 1]
                at[wrong] = np.iinfo(np.int64).max
            rest = rest[byte >= _MORE]
            if not len(rest):
                break
        return at, numbers

    def spans(self, begins: Ints, ends: Ints) -> pa.BinaryArray:
        """Copy bytes; each value begins where the one before it ends, or later."""
        offsets = np.empty(2 * len(begins), np.int32)
        offsets[0::2] = begins
        offsets[1::2] = ends
        between = pa.Array.from_buffers(
            pa.binary(), max(len(offsets) - 1, 0), [None, pa.py_buffer(offsets), self.buffer]
        )
        return between.take(pa.array(np.arange(0, len(offsets), 2)))
