"""Payloads as pieces: columns of bytes, each with a part of every value, that are joined at last.

A value is written by its pieces one after the other. So Arrow's own functions make the bytes of all
records, and none is made alone.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, TypeAlias, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fanout.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Mask = NDArray[np.bool_]

Piece: TypeAlias = pa.BinaryArray | bytes
"""Bytes of each value, or the same ones of all."""

_NOTHING: Final = pa.scalar(b"", pa.binary())
_TEXT: Final = pa.string()
_DIGITS: Final = 76  # of the widest decimal


@final
class Rows:
    """The row of each of some values, and why rows cannot be encoded."""

    def __init__(self, numbers: Ints, problems: dict[int, str]) -> None:
        self.numbers = numbers
        self.problems = problems

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, chosen: Ints | Mask) -> Rows:
        """Return the rows of some of the values."""
        return Rows(self.numbers[chosen], self.problems)

    def repeat(self, counts: Ints) -> Rows:
        """Return the rows of the items of lists."""
        return Rows(np.repeat(self.numbers, counts), self.problems)

    def fail(self, bad: Mask, reason: str) -> None:
        """Make the rows of some values bad; the first reason stays."""
        if bad.any():
            for row in self.numbers[bad].tolist():
                self.problems.setdefault(row, reason)


def joined(pieces: list[Piece], length: int) -> pa.BinaryArray:
    """Return the bytes of each value."""
    parts: list[Piece] = []
    for piece in filter(lambda each: not isinstance(each, bytes) or each, pieces):
        if parts and isinstance(piece, bytes) and isinstance(parts[-1], bytes):
            parts[-1] += piece
        else:
            parts.append(piece)
    if not any(isinstance(part, pa.Array) for part in parts):
        return pa.repeat(pa.scalar(b"".join(parts), pa.binary()), length)
    if len(parts) == 1:
        return parts[0]
    scalars = [pa.scalar(part, pa.binary()) if isinstance(part, bytes) else part for part in parts]
    return pc.binary_join_element_wise(*scalars, _NOTHING)


def written(
    values: pa.StructArray, frame: bytes, pieces_of: Callable[[pa.StructArray, Rows], list[Piece]]
) -> tuple[pa.BinaryArray, dict[int, str]]:
    """Return a payload for each struct, null for null, and why rows cannot be encoded."""
    valid = there(values)
    rows = Rows(np.arange(len(values)), {})
    payloads = joined([frame, *of_values(values, rows, pieces_of)], len(rows))
    return pc.if_else(pa.array(valid), payloads, None), rows.problems


def of_values(
    values: pa.Array, rows: Rows, make: Callable[[pa.Array, Rows], list[Piece]]
) -> list[Piece]:
    """Return the pieces of those values that are not null, at their places."""
    valid = there(values)
    if valid.all():
        return make(values, rows)
    some = make(values.filter(pa.array(valid)), rows.take(valid))
    return [spread(piece, valid) for piece in some]


def spread(piece: Piece, counts: Ints | Mask) -> pa.BinaryArray:
    """Return at each place the bytes of as many values as are counted there."""
    if isinstance(piece, bytes):
        piece = pa.repeat(pa.scalar(piece, pa.binary()), int(counts.sum()))
    offsets = np.frombuffer(piece.buffers()[1], np.int32)[piece.offset :]
    places = np.concatenate(([0], np.cumsum(counts)))
    return _binary(offsets[places].astype(np.int64), piece.buffers()[2])


def matrix(values: NDArray[np.uint8], sizes: Ints | None = None) -> pa.BinaryArray:
    """Return the bytes of each row, or the first of them, as many as its size."""
    length, width = values.shape
    if sizes is None:
        ends, data = np.arange(length + 1) * width, np.ascontiguousarray(values)
    else:
        ends, data = (
            np.concatenate(([0], np.cumsum(sizes))),
            values[np.arange(width) < sizes[:, None]],
        )
    return _binary(ends, pa.py_buffer(data))


def exact(values: pa.Array, kind: pa.DataType, path: str, rows: Rows) -> pa.Array:
    """Return equal values of another type, and null where there is none; its row is bad then.

    Raises:
        OptionError: If the values are of another sort, such as texts for a number.
    """
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    is_null, is_whole = pa.types.is_null(values.type), pa.types.is_integer(values.type)
    if not (is_null or _sort(values.type) == _sort(kind)) and not (
        is_whole and pa.types.is_floating(kind)
    ):
        raise OptionError(f"{path or 'it'} is {values.type}, and the schema has {kind}")
    if pa.types.is_string(kind):
        return _texts(values.cast(kind), path, rows)
    if values.type == kind or (pa.types.is_nested(kind) and not is_null):
        return values
    is_float = pa.types.is_floating(kind)
    found = values.cast(kind, safe=False) if is_whole and is_float else _cast(values, kind)
    if is_whole and is_float:
        most = 2.0 ** (values.type.bit_width - pa.types.is_signed_integer(values.type))
        fits = pc.less(found.cast(pa.float64()), most)
        back = pc.if_else(fits, found, 0).cast(values.type, safe=False)
        found = pc.if_else(pc.and_(fits, pc.equal(back, values)), found, None)
    elif kind == pa.float32():
        same = pc.equal(found.cast(pa.float64()), values.cast(pa.float64(), safe=False))
        found = pc.if_else(pc.or_(same, pc.is_nan(values)), found, None)
    bad = pc.and_(found.is_null(), values.is_valid()).to_numpy(zero_copy_only=False)
    rows.fail(bad, f"{path} is no {kind}")
    return found


def items_of(
    values: pa.Array, path: str, rows: Rows, key: pa.DataType = _TEXT
) -> tuple[pa.Array, pa.Array | None, Ints]:
    """Return the items of lists, the keys of maps, and the number of each."""
    if not pa.types.is_map(values.type):
        counts = pc.list_value_length(values).to_numpy(zero_copy_only=False).astype(np.int64)
        return values.flatten(), None, counts
    offsets = values.offsets.to_numpy().astype(np.int64)
    first, length, counts = offsets[0], offsets[-1] - offsets[0], np.diff(offsets)
    keys = exact(values.keys.slice(first, length), key, f"{path} (key)", rows)
    of_maps = np.repeat(np.arange(len(values)), counts)
    if len(keys):
        names = keys.dictionary_encode()
        pairs = of_maps * len(names.dictionary) + names.indices.fill_null(0).to_numpy()
        _, firsts = np.unique(pairs, return_index=True)
        again = np.ones(len(pairs), bool)
        again[firsts] = False
        rows.repeat(counts).fail(again, f"{path} has a key twice")
    return values.items.slice(first, length), keys, counts


def there(values: pa.Array) -> Mask:
    """Return which values are not null."""
    return np.asarray(values.is_valid().to_numpy(zero_copy_only=False), bool)


def data_of(texts: pa.Array) -> NDArray[np.uint8]:
    """Return the bytes of all texts together."""
    offsets = np.frombuffer(texts.buffers()[1] or bytes(4), np.int32)[texts.offset :]
    data = np.frombuffer(texts.buffers()[2] or b"", np.uint8)
    return data[offsets[0] : offsets[len(texts)]]


def _binary(offsets: Ints, data: pa.Buffer | None) -> pa.BinaryArray:
    if offsets[-1] > np.iinfo(np.int32).max:
        raise OptionError("the records have more than 2 GiB: encode fewer at once")
    ends = pa.py_buffer(np.ascontiguousarray(offsets, np.int32))
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, ends, data])


def _texts(texts: pa.StringArray, path: str, rows: Rows) -> pa.StringArray:
    """Return texts, and an empty one in place of each that is not UTF-8; its row is bad then."""
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        bodies = texts.cast(pa.binary()).fill_null(b"").to_pylist()
        bad = np.array([body != body.decode(errors="ignore").encode() for body in bodies])
        rows.fail(bad, f"{path} is not UTF-8")
        return pc.if_else(pa.array(bad), "", texts)
    return texts


def _cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return values of another type, null where it has none of them: those are found by halving."""
    try:
        if pa.types.is_decimal128(kind) and pa.types.is_decimal(values.type):
            # At 128 bits more digits wrap around, into another number.
            return values.cast(pa.decimal256(_DIGITS, kind.scale)).cast(kind)
        return values.cast(kind)
    except pa.ArrowInvalid:
        if len(values) == 1:
            return pa.nulls(1, kind)
    half = len(values) // 2
    return pa.concat_arrays([_cast(values[:half], kind), _cast(values[half:], kind)])


def _sort(kind: pa.DataType) -> tuple[str, bool]:
    """Return what values of a type are, such as numbers without a fraction."""
    text = str(kind).replace("double", "float")
    found = _SORTS.match(text)
    return found[1] if found else "", pa.types.is_timestamp(kind) and kind.tz is not None


_SORTS: Final = re.compile(
    "(?:large_|fixed_size_|half|u)?"
    "(string|binary|bool|int|float|decimal|date|timestamp|time|duration|struct|map|list)"
)
