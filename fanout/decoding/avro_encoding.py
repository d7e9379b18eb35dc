"""Columns as values of Avro: https://avro.apache.org/docs/1.12.0/specification/#binary-encoding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fanout.decoding.avro_plan import arrow_type, below
from fanout.decoding.pieces import exact, items_of, joined, matrix, of_values, spread, there
from fanout.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from fanout.decoding.avro_schema import AvroType
    from fanout.decoding.pieces import Ints, Piece, Rows

_NO_NULL: Final = "is null, and the schema has no null there"


def avro_pieces(kind: AvroType, values: pa.Array, path: str, rows: Rows) -> list[Piece]:
    """Return the bytes of values; a value that is not one of the type makes its row bad."""
    if kind.kind == "union":
        return _union(kind, values, path, rows)
    if kind.kind == "null":
        rows.fail(there(values), f"{path} is not null, and the schema has nothing else")
        return []
    values = exact(values, arrow_type(kind), path, rows)
    rows.fail(~there(values), f"{path} {_NO_NULL}")
    return of_values(values, rows, lambda some, of_it: _PIECES[kind.kind](kind, some, path, of_it))


def _record(kind: AvroType, values: pa.StructArray, path: str, rows: Rows) -> list[Piece]:
    names = [field.name for field in values.type]
    pieces: list[Piece] = []
    for field in kind.fields:
        where = below(path, field)
        if names.count(field.name) != 1:
            raise OptionError(f"{where} is in the schema, and no column of the records")
        pieces += avro_pieces(field.type, values.field(names.index(field.name)), where, rows)
    return pieces


def _integer(kind: AvroType, values: pa.Array, path: str, rows: Rows) -> list[Piece]:
    numbers = values.cast(pa.int32() if kind.kind == "int" else pa.int64()).to_numpy()
    numbers = numbers.astype(np.int64)
    if (kind.logical or "").endswith("-millis"):
        rows.fail(numbers % 1000 != 0, f"{path} has microseconds, and the schema milliseconds")
        numbers = numbers // 1000
    return [_varints(numbers)]


def _number(_: AvroType, values: pa.Array, __: str, ___: Rows) -> list[Piece]:
    """Write a boolean as one byte, or a float with the lowest byte first."""
    numbers = values.to_numpy(zero_copy_only=False)
    raw = numbers.astype(numbers.dtype.newbyteorder("<")).view(np.uint8)
    return [matrix(raw.reshape(len(numbers), numbers.itemsize))]


def _bytes(kind: AvroType, values: pa.Array, path: str, rows: Rows) -> list[Piece]:
    if kind.logical == "decimal":
        return _decimal(kind, values, path, rows)
    values = values.cast(pa.binary())
    sizes = pc.binary_length(values).to_numpy().astype(np.int64)
    if kind.kind == "fixed":
        rows.fail(sizes != kind.size, f"{path} has not {kind.size} bytes, as in the schema")
        return [values]
    return [_varints(sizes), values]


def _decimal(kind: AvroType, values: pa.Array, path: str, rows: Rows) -> list[Piece]:
    """Write the highest byte first; those that only repeat the sign are left out."""
    data = np.frombuffer(values.buffers()[1] or b"", np.uint8)[16 * values.offset :]
    digits = data[: 16 * len(values)].reshape(-1, 16)[:, ::-1]
    signs = np.where(digits[:, :1] >= 0x80, 0xFF, 0).astype(np.uint8)  # noqa: PLR2004 - the sign
    repeated = (digits[:, :-1] == signs) & ((digits[:, 1:] ^ signs) < 0x80)  # noqa: PLR2004
    sizes = 16 - np.logical_and.accumulate(repeated, axis=1).sum(axis=1)
    if kind.kind == "fixed":
        rows.fail(sizes > kind.size, f"{path} has more digits than {kind.size} bytes have")
        more = np.repeat(signs, max(kind.size - 16, 0), axis=1)
        return [matrix(np.concatenate((more, digits), axis=1)[:, 16 + more.shape[1] - kind.size :])]
    shifted = np.take_along_axis(digits, (np.arange(16) - sizes[:, None]) % 16, axis=1)
    return [_varints(sizes), matrix(shifted, sizes)]


def _enum(kind: AvroType, values: pa.StringArray, path: str, rows: Rows) -> list[Piece]:
    numbers = pc.index_in(values, pa.array(kind.symbols, pa.string()))
    rows.fail(~there(numbers), f"{path} is no symbol of the schema")
    return [_varints(pc.fill_null(numbers, 0).to_numpy().astype(np.int64))]


def _list(kind: AvroType, values: pa.Array, path: str, rows: Rows) -> list[Piece]:
    items, keys, counts = items_of(values, path, rows)
    assert kind.items is not None, "an array or a map"
    of_items = rows.repeat(counts)
    pieces = avro_pieces(kind.items, items, f"{path}[]", of_items)
    if keys is not None:
        texts = keys.cast(pa.binary())
        pieces = [_varints(pc.binary_length(texts).to_numpy().astype(np.int64)), texts, *pieces]
    some = counts > 0
    block = spread(joined(pieces, len(of_items)), counts)
    return [spread(_varints(counts[some]), some), block, b"\0"]


def _union(kind: AvroType, values: pa.Array, path: str, rows: Rows) -> list[Piece]:
    others = [(n, each) for n, each in enumerate(kind.branches) if each.kind != "null"]
    null = next((n for n, each in enumerate(kind.branches) if each.kind == "null"), -1)
    if len(others) > 1 and not pa.types.is_null(values.type):
        if not pa.types.is_struct(values.type) or values.type.num_fields != len(others):
            raise OptionError(
                f"{path or 'it'} is {values.type}, and the schema has {arrow_type(kind)}"
            )
        members = values.flatten()
    else:
        members = [values] * len(others)
    valid = [there(member) for member in members]
    count = np.zeros(len(rows), np.int64)
    for chosen in valid:
        count += chosen
    rows.fail(count > 1, f"{path} has several members of the union")
    if null < 0:
        rows.fail(count == 0, f"{path} {_NO_NULL}")
    if not others:
        rows.fail(there(values), f"{path} is not null, and the schema has nothing else")
    numbers = np.full(len(rows), max(null, 0))
    pieces: list[Piece] = []
    for (number, branch), member, chosen in zip(others, members, valid, strict=True):
        numbers[chosen] = number
        some = member.filter(pa.array(chosen))
        found = avro_pieces(branch, some, path, rows.take(chosen))
        pieces += [spread(piece, chosen) for piece in found]
    return [_varints(numbers), *pieces]


def _varints(numbers: Ints) -> pa.BinaryArray:
    """Write each number with 7 bits in a byte, the lowest first; the sign is the last bit."""
    left = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    most = int(left.max()) if len(left) else 0
    if most < 0x80:  # noqa: PLR2004 - all have a byte
        return matrix(left.astype(np.uint8)[:, None])
    width = (most.bit_length() + 6) // 7
    shifts = np.arange(width, dtype=np.uint64) * np.uint64(7)
    parts = left[:, None] >> shifts
    digits = (parts & np.uint64(0x7F)).astype(np.uint8)
    sizes = np.maximum((parts > 0).sum(axis=1), 1)
    digits[np.arange(width) < sizes[:, None] - 1] |= 0x80
    return matrix(digits, sizes)


_PIECES: Final[dict[str, Callable[[AvroType, pa.Array, str, Rows], list[Piece]]]] = {
    **dict.fromkeys(("int", "long"), _integer),
    **dict.fromkeys(("boolean", "float", "double"), _number),
    **dict.fromkeys(("bytes", "string", "fixed"), _bytes),
    "enum": _enum,
    "record": _record,
    **dict.fromkeys(("array", "map"), _list),
}
