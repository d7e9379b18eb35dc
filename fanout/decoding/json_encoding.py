"""Columns as JSON documents."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fanout.decoding.ddl import sql_name
from fanout.decoding.pieces import data_of, exact, items_of, joined, of_values, spread, there
from fanout.errors import OptionError

if TYPE_CHECKING:
    from fanout.decoding.pieces import Piece, Rows

_ESCAPED: Final = b'\\"'
_SPACE: Final = 0x20
_LAST_YEAR: Final = 9999
# The days of the years 1 to 9999, from 1970 on, and how many units a day has.
_FIRST_DAY: Final = -719_162
_LAST_DAY: Final = 2_932_896
_A_DAY: Final = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


def json_pieces(field: pa.Field, values: pa.Array, path: str, rows: Rows) -> list[Piece]:
    """Return the text of values; a value that has none makes its row bad."""
    values = exact(values, field.type, path, rows)
    valid = there(values)
    if not field.nullable:
        rows.fail(~valid, f"{path} is NOT NULL, and is null")
    pieces = of_values(values, rows, lambda some, of_it: _pieces(field.type, some, path, of_it))
    return pieces if valid.all() else [spread(b"null", ~valid), *pieces]


def _pieces(kind: pa.DataType, values: pa.Array, path: str, rows: Rows) -> list[Piece]:
    """Return the text of values that are not null."""
    if pa.types.is_struct(kind):
        return _object(kind, values, path, rows)
    if pa.types.is_nested(kind):
        return _list(kind, values, path, rows)
    if pa.types.is_string(kind):
        return [b'"', _escaped(values), b'"']
    if pa.types.is_temporal(kind):
        return [b'"', _time(values, path, rows), b'"']
    if pa.types.is_floating(kind):
        finite = pc.is_finite(values).to_numpy(zero_copy_only=False)
        rows.fail(~finite, f"{path} is NaN or infinite, which JSON has not")
    return [values.cast(pa.string()).cast(pa.binary())]


def _object(kind: pa.StructType, values: pa.StructArray, path: str, rows: Rows) -> list[Piece]:
    names = [field.name for field in values.type]
    pieces: list[Piece] = []
    for number, field in enumerate(kind):
        where = f"{path}.{field.name}" if path else field.name
        if names.count(field.name) != 1:
            raise OptionError(f"{where} is in the schema, and no column of the records")
        begin = ("," if number else "{") + json.dumps(field.name) + ":"
        value = json_pieces(field, values.field(names.index(field.name)), where, rows)
        pieces += [begin.encode(), *value]
    return [*pieces, b"}"]


def _list(kind: Any, values: pa.Array, path: str, rows: Rows) -> list[Piece]:
    items, keys, counts = items_of(values, path, rows)
    item = kind.value_field if keys is None else kind.item_field
    of_items = rows.repeat(counts)
    pieces = json_pieces(item, items, f"{path}[]", of_items)
    if keys is not None:
        pieces = [b'"', _escaped(keys), b'":', *pieces]
    later = np.ones(len(of_items), bool)
    later[(np.cumsum(counts) - counts)[counts > 0]] = False
    texts = spread(joined([spread(b",", later), *pieces], len(of_items)), counts)
    begin, end = (b"[", b"]") if keys is None else (b"{", b"}")
    return [begin, texts, end]


def _escaped(texts: pa.StringArray) -> pa.BinaryArray:
    """Return texts as they stand between the quotes of JSON."""
    found = data_of(texts)
    escapes = {code: f"\\u{code:04x}" for code in np.unique(found[found < _SPACE]).tolist()}
    for code in _ESCAPED:  # the backslash is the first
        if (found == code).any():
            texts = pc.replace_substring(texts, chr(code), f"\\{code:c}")
    for code, escape in escapes.items():
        texts = pc.replace_substring(texts, chr(code), escape)
    return texts.cast(pa.binary())


def _time(values: pa.Array, path: str, rows: Rows) -> pa.BinaryArray:
    """Return times as ISO 8601 has them, in UTC where they have a zone."""
    # The years of Arrow wrap around.
    raw = values.cast(pa.int32() if values.type == pa.date32() else pa.int64()).fill_null(0)
    days = raw.to_numpy().astype(np.int64) // _A_DAY.get(getattr(values.type, "unit", ""), 1)
    bad = (days < _FIRST_DAY) | (days > _LAST_DAY)
    rows.fail(bad, f"{path} is no {sql_name(values.type)} of the years 1 to {_LAST_YEAR}")
    values = pc.if_else(pa.array(bad), pa.scalar(0, values.type), values)
    if pa.types.is_date(values.type):
        return values.cast(pa.string()).cast(pa.binary())
    if values.type.tz is not None:
        values = values.cast(pa.timestamp(values.type.unit, "UTC"))
    texts = values.cast(pa.string())
    return pc.utf8_replace_slice(texts, 10, 11, "T").cast(pa.binary())
