"""Many messages of Protobuf as columns: each kind of value is read for all of them at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from fanout.decoding.avro_cursors import Cursors
from fanout.decoding.protobuf_fields import LENGTH, VARINT, FieldFinder, Found

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fanout.decoding.avro_cursors import Ints

_MORE: Final = 0x80
_LIMITS: Final = {"i4": (-(1 << 31), (1 << 31) - 1), "u4": (0, (1 << 32) - 1), "bool": (0, 1)}
_MICROS: Final = 1_000_000
_NANOS: Final = 1_000_000_000
_MOST_SECONDS: Final = (1 << 63) // _MICROS - 1
_NOTHING: Final = Found(*[np.empty(0, np.int64)] * 3)


@dataclass(slots=True, kw_only=True)
class Values(ABC):
    """How values of a kind are read; `wire` is the form that they have in the bytes."""

    path: str
    type: pa.DataType
    wire: int

    @abstractmethod
    def read(self, cursors: Cursors) -> pa.Array:
        """Read the value that is from the position of each cursor to its end; none is null."""


@dataclass(slots=True, kw_only=True)
class Numbers(Values):
    """Numbers of a type of numpy, in the fewest bytes or in those of the type."""

    dtype: str
    is_zigzag: bool = False

    def read(self, cursors: Cursors) -> pa.Array:
        values = self._numbers(cursors)
        if pa.types.is_decimal(self.type):
            halves = np.zeros((len(values), 2), np.uint64)
            halves[:, 0] = values
            return pa.Array.from_buffers(self.type, len(values), [None, pa.py_buffer(halves)])
        return pa.array(values.astype(self.type.to_pandas_dtype(), copy=False))

    def _numbers(self, cursors: Cursors) -> np.ndarray:
        if self.wire != VARINT:
            size = int(self.dtype[1])
            places = cursors.advance(size, self.path)[:, None] + np.arange(size)
            return cursors.data.take(places, mode="clip").view(f"<{self.dtype}").reshape(-1)
        if self.dtype == "u8":
            return cursors.unsigned(self.path)
        if self.is_zigzag:
            values = cursors.varints(self.path)
        else:
            values = cursors.unsigned(self.path).view(np.int64)
        if self.dtype in _LIMITS:
            least, most = _LIMITS[self.dtype]
            bad = (values < least) | (values > most)
            cursors.fail(bad, f"{self.path} is too large for {self.type}")
            values[bad] = 0
        return values


@dataclass(slots=True, kw_only=True)
class Enums(Numbers):
    """The names of numbers; a number without one is its own name."""

    names: Mapping[int, str]

    def read(self, cursors: Cursors) -> pa.Array:
        numbers = self._numbers(cursors)
        known = np.array(sorted(self.names), np.int64)
        near = known.take(np.searchsorted(known, numbers), mode="clip")
        known = np.union1d(known, numbers[near != numbers])
        names = [self.names.get(number, str(number)) for number in known.tolist()]
        return pa.array(names, pa.string()).take(pa.array(np.searchsorted(known, numbers)))


@dataclass(slots=True, kw_only=True)
class Bytes(Values):
    """Bytes; as text they are UTF-8."""

    def read(self, cursors: Cursors) -> pa.Array:
        values = cursors.spans(cursors.positions, cursors.ends)
        return values if self.type == pa.binary() else cursors.texts(values, self.path)


@dataclass(slots=True, kw_only=True)
class Field:
    """A field with one value, or none: that is null, `default`, or an empty message."""

    number: int
    values: Values
    default: pa.Scalar | None = None
    is_required: bool = False
    is_always: bool = False  # the value of a map, which is a message

    @property
    def type(self) -> pa.DataType:
        """The type of the column."""
        return self.values.type

    @property
    def wires(self) -> frozenset[int]:
        """The forms that the values may have in the bytes."""
        return frozenset({self.values.wire})

    def read(self, found: Found, cursors: Cursors) -> pa.Array:
        """Return the value of each message; the last one of several, and messages merged."""
        messages, begins, ends = found
        count = len(cursors)
        if len(messages) == count and bool((messages[1:] > messages[:-1]).all()):
            return self._read(found, cursors)
        last = np.full(count, -1)
        last[messages] = np.arange(len(messages))
        is_there = last >= 0
        there = np.flatnonzero(is_there)
        if self.is_required:
            cursors.fail(~is_there, f"{self.values.path} is required, and not there")
        if len(there) < len(messages) and isinstance(self.values, Messages):
            return self._merged(found, cursors)
        if self.is_always:
            begins, ends = (
                np.where(is_there, np.append(each, 0)[last], cursors.ends)
                for each in (begins, ends)
            )
            return self._read(Found(np.arange(count), begins, ends), cursors)
        chosen = last[there]
        array = self._read(Found(there, begins[chosen], ends[chosen]), cursors)
        if len(there) == count:
            return array
        array = array.take(pa.array(np.cumsum(is_there) - 1, mask=~is_there))
        return array if self.default is None else array.fill_null(self.default)

    def _read(self, found: Found, cursors: Cursors) -> pa.Array:
        return self.values.read(_cursors(found, cursors))

    def _merged(self, found: Found, cursors: Cursors) -> pa.Array:
        """Read messages that are in pieces, as if each were one behind the other."""
        messages, begins, ends = _in_order(found)
        sizes = ends - begins
        bounds = np.concatenate(([0], np.cumsum(sizes)))
        places = np.repeat(begins - bounds[:-1], sizes) + np.arange(bounds[-1])
        data = np.append(cursors.data[places], np.uint8(0))
        there, first = np.unique(messages, return_index=True)
        stops = bounds[np.append(first, len(messages))]
        ends = np.full(len(cursors), len(data))
        others = Cursors(data, ends, ends, cursors.rows, cursors.failures)
        return self.read(Found(there, stops[:-1], stops[1:]), others)


@dataclass(slots=True, kw_only=True)
class Repeated(Field):
    """A field with any number of values; numbers are there one by one or many at once."""

    @property
    def type(self) -> pa.DataType:
        return pa.list_(self.values.type)

    @property
    def wires(self) -> frozenset[int]:
        more = {LENGTH} if isinstance(self.values, Numbers) else set()
        return frozenset({self.values.wire} | more)

    def read(self, found: Found, cursors: Cursors) -> pa.Array:
        found = _in_order(found)
        if isinstance(self.values, Numbers):
            found = _unpacked(found, cursors, self.values)
        return self._column(found.messages, len(cursors), self._read(found, cursors))

    def _column(self, messages: Ints, count: int, values: pa.Array) -> pa.Array:
        return pa.ListArray.from_arrays(_offsets(messages, count), values, type=self.type)


@dataclass(slots=True, kw_only=True)
class Maps(Repeated):
    """A map, whose entries are messages of a key and a value; the last one of a key counts."""

    @property
    def type(self) -> pa.DataType:
        key, value = self.values.type
        return pa.map_(key.type, value.type)

    def _column(self, messages: Ints, count: int, values: pa.Array) -> pa.Array:
        keys = values.field(0).dictionary_encode()
        pairs = messages * max(len(keys.dictionary), 1) + keys.indices.to_numpy()
        last = len(pairs) - 1 - np.unique(pairs[::-1], return_index=True)[1]
        if len(last) < len(pairs):
            last.sort()
            values, messages = values.take(pa.array(last)), messages[last]
        offsets = _offsets(messages, count)
        return pa.MapArray.from_arrays(offsets, *values.flatten(), type=self.type)


@dataclass(slots=True, kw_only=True)
class Messages(Values):
    """Messages as structs; or as a time, as the value in a wrapper, or as true where empty."""

    fields: Sequence[Field]
    oneofs: Sequence[Sequence[int]] = ()
    form: str = "struct"
    finder: FieldFinder = field(init=False)

    def __post_init__(self) -> None:
        wires = {each.number: (each.values.path, each.wires) for each in self.fields}
        self.finder = FieldFinder(self.path, wires)

    def read(self, cursors: Cursors) -> pa.Array:
        found = self.finder.find(cursors)
        for numbers in self.oneofs:
            _settle(found, [each for each in numbers if each in found], len(cursors))
        arrays = [each.read(found.get(each.number, _NOTHING), cursors) for each in self.fields]
        match self.form:
            case "struct":
                return pa.StructArray.from_arrays(arrays, fields=list(self.type))
            case "empty":
                return pa.array(np.ones(len(cursors), bool))
            case "wrapper":
                return arrays[0]
        return self._times(cursors, *arrays)

    def _times(self, cursors: Cursors, seconds: pa.Array, nanos: pa.Array) -> pa.Array:
        whole, rest = seconds.to_numpy(), nanos.to_numpy()
        # Both have one sign, and a timestamp counts on from its second.
        bad = np.sign(whole) * np.sign(rest) < 0 if self.form == "duration" else rest < 0
        bad |= (rest >= _NANOS) | (rest <= -_NANOS)
        bad |= (whole > _MOST_SECONDS) | (whole < -_MOST_SECONDS)
        cursors.fail(bad, f"{self.path} is no {self.form}, or a too large one")
        cursors.fail(rest % 1000 != 0, f"{self.path} has nanoseconds, which {self.type} has not")
        return pa.array(np.where(bad, 0, whole) * _MICROS + rest // 1000).cast(self.type)


def _cursors(found: Found, cursors: Cursors) -> Cursors:
    """Return cursors for values of a field."""
    rows = cursors.rows[found.messages]
    return Cursors(cursors.data, found.begins.copy(), found.ends, rows, cursors.failures)


def _in_order(found: Found) -> Found:
    """Return values in the order of their messages."""
    order = np.argsort(found.messages, kind="stable")
    return Found(*(array[order] for array in found))


def _offsets(messages: Ints, count: int) -> pa.Array:
    """Return where the values of each message begin among all of them, which are in order."""
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(messages, minlength=count), out=offsets[1:])
    return pa.array(offsets)


def _unpacked(found: Found, cursors: Cursors, values: Numbers) -> Found:
    """Return each number of those that are there many at once."""
    messages, begins, ends = found
    sizes = ends - begins
    width = 1 if values.wire == VARINT else int(values.dtype[1])
    bad = sizes % width != 0
    if values.wire == VARINT:
        bad = (sizes > 0) & (cursors.data.take(ends - 1, mode="clip") >= _MORE)
    _cursors(found, cursors).fail(bad, f"{values.path} ends within a number")
    counts = np.where(bad, 0, sizes // width)
    owners = np.repeat(np.arange(len(messages)), counts)
    places = np.arange(len(owners)) - (np.cumsum(counts) - counts)[owners]
    places = begins[owners] + places * width
    if values.wire != VARINT or not len(places):
        return Found(messages[owners], places, places + width)
    is_last = cursors.data[places] < _MORE
    is_first = np.append(True, is_last[:-1])  # noqa: FBT003 - no flag
    return Found(messages[owners[is_first]], places[is_first], places[is_last] + 1)


def _settle(found: dict[int, Found], numbers: Sequence[int], count: int) -> None:
    """Leave the last field of a oneof: one that comes behind another one replaces it."""
    if len(numbers) < 2:  # noqa: PLR2004 - nothing to replace
        return
    last = np.full((len(numbers), count), -1)
    for place, number in enumerate(numbers):
        last[place, found[number].messages] = found[number].begins
    replaced = np.sort(last, axis=0)[-2]
    for number in numbers:
        stays = found[number].begins > replaced[found[number].messages]
        found[number] = Found(*(array[stays] for array in found[number]))
