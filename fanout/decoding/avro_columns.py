"""Many Avro values as columns: each kind of value is read, or skipped, for all records at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fanout.decoding.avro_cursors import EARLY, Cursors
from fanout.decoding.decoder import check_items, last_entries, width

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanout.decoding.avro_cursors import Ints

# Arrays that are left when going through them one by one takes less time.
_FEW: Final = 12
_LONG: Final = 10 * 7
_BYTE: Final = 0x80


@dataclass(slots=True, kw_only=True)
class Column(ABC):
    """How values are read; `size` is the number of their bytes where that is known."""

    path: str
    type: pa.DataType
    size: int | None = None
    least: int = 1  # the fewest bytes of a value

    @abstractmethod
    def read(self, cursors: Cursors) -> pa.Array:
        """Read a value at each cursor, and go behind it."""

    def skip(self, cursors: Cursors) -> None:
        """Go behind a value at each cursor."""
        if self.size is None:
            cursors.varints(self.path)
        else:
            cursors.advance(self.size, self.path)

    def skip_one(self, data: memoryview, at: int) -> int:
        """Return where a single value ends; it may be behind its record."""
        return _varint(data, at)[1] if self.size is None else at + self.size


@dataclass(slots=True, kw_only=True)
class Nulls(Column):
    """The type null, and fields that nobody has written, whose default is `constant`."""

    size: int | None = 0
    least: int = 0
    constant: pa.Array | None = None

    def read(self, cursors: Cursors) -> pa.Array:
        if self.constant is None:
            return pa.nulls(len(cursors), self.type)
        return self.constant.take(pa.array(np.zeros(len(cursors), np.int64)))


@dataclass(slots=True, kw_only=True)
class Booleans(Column):
    """One byte, 0 or 1."""

    size: int | None = 1

    def read(self, cursors: Cursors) -> pa.Array:
        values = cursors.data.take(cursors.advance(1, self.path), mode="clip")
        cursors.fail(values > 1, f"{self.path} is no boolean")
        return pa.array(values == 1)


@dataclass(slots=True, kw_only=True)
class Integers(Column):
    """An int or a long; milliseconds become microseconds by `factor`."""

    bits: int
    factor: int = 1

    def read(self, cursors: Cursors) -> pa.Array:
        values = cursors.varints(self.path)
        if self.bits == 64 and self.factor == 1:  # noqa: PLR2004 - all of them fit
            return pa.array(values).cast(self.type)
        most = ((1 << (self.bits - 1)) - 1) // self.factor
        bad = (values > most) | (values < (-most if self.factor > 1 else -most - 1))
        cursors.fail(bad, f"{self.path} is too large for {self.type}")
        values[bad] = 0
        if self.bits == 32:  # noqa: PLR2004 - an int
            return pa.array(values.astype(np.int32)).cast(self.type)
        return pa.array(values * self.factor).cast(self.type)


@dataclass(slots=True, kw_only=True)
class Floats(Column):
    """A float or a double, of 4 bytes or 8."""

    def read(self, cursors: Cursors) -> pa.Array:
        places = cursors.advance(self.least, self.path)[:, None] + np.arange(self.least)
        values = cursors.data.take(places, mode="clip").view(f"<f{self.least}")
        return pa.array(values.reshape(-1)).cast(self.type)


@dataclass(slots=True, kw_only=True)
class Bytes(Column):
    """Bytes with their length, or as many as `size`; as text they are UTF-8."""

    is_text: bool = False

    def read(self, cursors: Cursors) -> pa.Array:
        begins = self._begins(cursors)
        values = cursors.spans(begins, cursors.positions)
        if not self.is_text:
            return values
        try:
            return values.cast(pa.string())
        except pa.ArrowInvalid:
            rows = values.to_pylist()
            bad = np.array([row != row.decode(errors="ignore").encode() for row in rows])
            cursors.fail(bad, f"{self.path} is not UTF-8")
            return pc.if_else(pa.array(bad), b"", values).cast(pa.string())

    def skip(self, cursors: Cursors) -> None:
        self._begins(cursors)

    def _begins(self, cursors: Cursors) -> Ints:
        sizes = cursors.varints(self.path) if self.size is None else self.size
        return cursors.advance(sizes, self.path)

    def skip_one(self, data: memoryview, at: int) -> int:
        if self.size is not None:
            return at + self.size
        size, at = _varint(data, at)
        if size < 0:
            raise IndexError(self.path)
        return at + size


@dataclass(slots=True, kw_only=True)
class Converted(Column):
    """Values of a narrower type than the reader's."""

    raw: Column

    def read(self, cursors: Cursors) -> pa.Array:
        return self.raw.read(cursors).cast(self.type, safe=False)

    def skip(self, cursors: Cursors) -> None:
        self.raw.skip(cursors)

    def skip_one(self, data: memoryview, at: int) -> int:
        return self.raw.skip_one(data, at)


@dataclass(slots=True, kw_only=True)
class Decimals(Converted):
    """A decimal in bytes of any length, or in those of a fixed."""

    def read(self, cursors: Cursors) -> pa.Array:
        values = self.raw.read(cursors)
        sizes = pc.binary_length(values).to_numpy()
        ends = np.frombuffer(values.buffers()[1], np.int32)[1 : len(values) + 1].astype(np.int64)
        data = np.frombuffer(values.buffers()[2] or b"", np.uint8)
        if not len(data):
            data = np.zeros(1, np.uint8)
        # 16 bytes, the lowest first; the sign fills those that are not there.
        places = np.arange(16)
        sign = np.where(
            (sizes > 0) & (data[np.maximum(ends - sizes, 0) % len(data)] >= _BYTE), 255, 0
        )
        there = places < sizes[:, None]
        digits = np.where(there, data[np.maximum(ends[:, None] - 1 - places, 0)], sign[:, None])
        bad = self._too_large(values, sizes)
        digits[bad] = 0
        cursors.fail(bad, f"{self.path} has more digits than {self.type}")
        buffer = pa.py_buffer(np.ascontiguousarray(digits.astype(np.uint8)))
        return pa.Array.from_buffers(self.type, len(values), [None, buffer])

    def _too_large(self, values: pa.BinaryArray, sizes: Ints) -> np.ndarray:
        """Return which values have more digits; only long ones can."""
        most = 10**self.type.precision
        bad = np.zeros(len(values), bool)
        for row in np.flatnonzero(sizes >= (most.bit_length() + 7) // 8).tolist():
            number = int.from_bytes(values[row].as_py(), "big", signed=True)
            bad[row] = not -most < number < most
        return bad


@dataclass(slots=True, kw_only=True)
class Enums(Column):
    """The number of a symbol; one that the reader lacks is null here, and bad."""

    symbols: Sequence[str | None]

    def read(self, cursors: Cursors) -> pa.Array:
        numbers = cursors.varints(self.path)
        bad = (numbers < 0) | (numbers >= len(self.symbols))
        numbers[bad] = 0
        texts = pa.array(self.symbols or [None], pa.string()).take(pa.array(numbers))
        bad |= texts.is_null().to_numpy(zero_copy_only=False)
        cursors.fail(bad, f"{self.path} has a symbol that the schema lacks")
        return texts


@dataclass(slots=True, kw_only=True)
class Records(Column):
    """The fields of a record as they were written; each has a place in the reader's, or none."""

    written: Sequence[tuple[Column, int | None]]
    absent: Sequence[tuple[Column, int]] = ()

    def read(self, cursors: Cursors) -> pa.Array:
        fields: dict[int, pa.Array] = {}
        for column, place in self.written:
            if place is None:
                column.skip(cursors)
            else:
                fields[place] = column.read(cursors)
        fields |= {place: column.read(cursors) for column, place in self.absent}
        if not fields:
            return pa.array([{}] * len(cursors), self.type)
        arrays = [fields[place] for place in range(len(fields))]
        return pa.StructArray.from_arrays(arrays, fields=list(self.type))

    def skip(self, cursors: Cursors) -> None:
        for column, _ in self.written:
            column.skip(cursors)

    def skip_one(self, data: memoryview, at: int) -> int:
        for column, _ in self.written:
            at = column.skip_one(data, at)
        return at


@dataclass(slots=True, kw_only=True)
class Unions(Column):
    """One of several types. A branch is a column, None for null, or why the reader lacks it.

    The members of a struct have the values where the reader has several types besides null.
    """

    branches: Sequence[Column | str | None]
    members: Sequence[int | None]

    def read(self, cursors: Cursors) -> pa.Array:
        pieces: dict[int | None, list[tuple[Ints, pa.Array]]] = {}
        for branch, member, chosen in self._chosen(cursors):
            some = cursors.take(chosen)
            pieces.setdefault(member, []).append((chosen, branch.read(some)))
            cursors.positions[chosen] = some.positions
        if not pa.types.is_struct(self.type) or all(each is None for each in self.members):
            return _spread(pieces.get(None, []), len(cursors), self.type)
        arrays = [
            _spread(pieces.get(member, []), len(cursors), field.type)
            for member, field in enumerate(self.type)
        ]
        is_null = pa.array(np.all([array.is_null() for array in arrays], axis=0))
        return pa.StructArray.from_arrays(arrays, fields=list(self.type), mask=is_null)

    def skip(self, cursors: Cursors) -> None:
        for branch, _, chosen in self._chosen(cursors):
            some = cursors.take(chosen)
            branch.skip(some)
            cursors.positions[chosen] = some.positions

    def skip_one(self, data: memoryview, at: int) -> int:
        number, at = _varint(data, at)
        if not 0 <= number < len(self.branches):
            raise IndexError(self.path)
        branch = self.branches[number]
        return branch.skip_one(data, at) if isinstance(branch, Column) else at

    def _chosen(self, cursors: Cursors) -> list[tuple[Column, int | None, Ints]]:
        """Return each branch that is there, its member, and the values that have it."""
        numbers = cursors.varints(self.path)
        bad = (numbers < 0) | (numbers >= len(self.branches))
        cursors.fail(bad, f"{self.path} is of no type of the union")
        numbers[bad] = -1
        chosen = []
        for number, branch in enumerate(self.branches):
            if branch is None:
                continue
            of_it = np.flatnonzero(numbers == number)
            if isinstance(branch, str):
                cursors.fail(numbers == number, branch)
            elif len(of_it):
                chosen.append((branch, self.members[number], of_it))
        return chosen


@dataclass(slots=True, kw_only=True)
class Lists(Column):
    """An array; or a map, whose items are records of a key and a value."""

    item: Column

    def read(self, cursors: Cursors) -> pa.Array:
        begins, owners = self._items(cursors)
        check_items(len(begins) * width(self.item.type))
        values = self.item.read(cursors.at(begins, owners))
        if pa.types.is_map(self.type):
            last = last_entries(values.field(0), owners)
            if len(last) < len(owners):
                values, owners = values.take(pa.array(last)), owners[last]
        offsets = np.zeros(len(cursors) + 1, np.int32)
        np.cumsum(np.bincount(owners, minlength=len(cursors)), out=offsets[1:])
        if pa.types.is_map(self.type):
            keys, items = values.field(0), values.field(1)
            return pa.MapArray.from_arrays(pa.array(offsets), keys, items, self.type)
        return pa.ListArray.from_arrays(pa.array(offsets), values, type=self.type)

    def skip(self, cursors: Cursors) -> None:
        self._items(cursors)

    def skip_one(self, data: memoryview, at: int) -> int:
        return self._each_one(data, at, 0, [])

    def _items(self, cursors: Cursors) -> tuple[Ints, Ints]:
        """Return where items begin, and the number of the array that each is in."""
        begins, owners = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        left = np.zeros(len(cursors), np.int64)
        active = np.arange(len(cursors))
        while len(active := self._with_items(cursors, active, left)):
            if len(active) <= _FEW:
                for number in active.tolist():
                    found = self._rest(cursors, number, int(left[number]))
                    begins.append(found)
                    owners.append(np.full(len(found), number))
                break
            some = cursors.take(active)
            begins.append(some.positions.copy())
            owners.append(active)
            self.item.skip(some)
            left[active] -= 1
            cursors.positions[active] = some.positions
            # An array ends with a zero, so that none ends with its record.
            left[active[some.positions >= some.ends]] = 0
        every = np.concatenate(owners)
        order = np.argsort(every, kind="stable")
        return np.concatenate(begins)[order], every[order]

    def _with_items(self, cursors: Cursors, active: Ints, left: Ints) -> Ints:
        """Begin the next blocks where the last one is read; return the arrays that go on."""
        fresh = active[left[active] == 0]
        if not len(fresh):
            return active
        some = cursors.take(fresh)
        counts = some.varints(self.path)
        if len(sized := np.flatnonzero(counts < 0)):
            others = some.take(sized)
            others.varints(self.path)  # the bytes of the block
            some.positions[sized] = others.positions
            counts = np.abs(counts)
        bad = (counts > (some.ends - some.positions) // self.item.least) | (counts < 0)
        some.fail(bad, f"{self.path}: {EARLY}")
        counts[bad] = 0
        cursors.positions[fresh] = some.positions
        left[fresh] = counts
        return active[left[active] > 0]

    def _rest(self, cursors: Cursors, number: int, left: int) -> Ints:
        """Return where the items of one array begin, from here on."""
        end = int(cursors.ends[number])
        begins: list[int] = []
        data = memoryview(cursors.data)[:end]  # type: ignore[arg-type]
        try:
            at = self._each_one(data, int(cursors.positions[number]), left, begins)
        except IndexError:
            at = end + 1
        cursors.positions[number] = at
        if at > end:
            cursors.fail(np.arange(len(cursors)) == number, f"{self.path}: {EARLY}")
        return np.array([begin for begin in begins if begin <= end], np.int64)

    def _each_one(self, data: memoryview, at: int, left: int, begins: list[int]) -> int:
        while True:
            for _ in range(left):
                begins.append(at)
                at = self.item.skip_one(data, at)
                if at > len(data):
                    return at
            left, at = _varint(data, at)
            if left < 0:
                _, at = _varint(data, at)
                left = -left
            if not left:
                return at
            if left > (len(data) - at) // self.item.least:
                raise IndexError(self.path)


def read_columns(
    column: Column, data: np.ndarray, begins: Ints, ends: Ints
) -> tuple[pa.Array, dict[int, str]]:
    """Return the value of each record, and why others are bad, which have any value."""
    failures: dict[int, str] = {}
    cursors = Cursors(data, begins, ends, np.arange(len(begins)), failures)
    values = column.read(cursors)
    cursors.fail(cursors.positions < ends, "bytes are left behind the last field")
    return values, failures


def _spread(pieces: list[tuple[Ints, pa.Array]], length: int, kind: pa.DataType) -> pa.Array:
    """Return values at their places, and null elsewhere."""
    if not pieces:
        return pa.nulls(length, kind)
    if len(pieces) == 1 and len(pieces[0][0]) == length:
        return pieces[0][1]
    rows = np.full(length, -1)
    values = pa.concat_arrays([array for _, array in pieces])
    rows[np.concatenate([chosen for chosen, _ in pieces])] = np.arange(len(values))
    return values.take(pa.array(rows, mask=rows < 0))


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Read one number, and return where it ends."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < _BYTE:
            return (number >> 1) ^ -(number & 1), at
        shift += 7
        if shift >= _LONG:
            raise IndexError("a number is too long")
