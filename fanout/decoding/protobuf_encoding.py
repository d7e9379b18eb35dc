"""Columns as messages of Protobuf: the raw columns from which a parser writes bytes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fanout.decoding.pieces import Rows, exact, items_of, there
from fanout.decoding.protobuf_columns import ByteStrings, Messages, Numbers, Repeated
from fanout.errors import OptionError

if TYPE_CHECKING:
    from fanout.decoding.protobuf_columns import Field, Values

_MICROS: Final = 1_000_000
_INT32: Final = re.compile("-?[0-9]{1,10}")


def raw_messages(kind: Messages, values: pa.Array, rows: Rows) -> pa.Array:
    """Return what a parser has of messages, null for null; a value that has none is a bad row."""
    valid = there(values)
    if kind.form == "empty":
        values = exact(values, kind.type, kind.path, rows)
        rows.fail(pc.equal(values, False).fill_null(False).to_numpy(False), f"{kind.path} is false")  # noqa: FBT003 - Arrow's
        return pa.array([{} if each else None for each in valid.tolist()], kind.raw)
    if kind.form in {"timestamp", "duration"}:
        columns = _time(kind, exact(values, kind.type, kind.path, rows))
    elif kind.form == "wrapper":
        columns = {kind.fields[0].name: _field(kind.fields[0], values, rows, valid)}
    else:
        columns = _fields(kind, values, rows, valid)
    arrays = [columns[field.name] for field in kind.raw]
    return pa.StructArray.from_arrays(arrays, fields=list(kind.raw), mask=pa.array(~valid))


def _fields(kind: Messages, values: pa.Array, rows: Rows, valid: np.ndarray) -> dict[str, pa.Array]:
    if not pa.types.is_struct(values.type) and not pa.types.is_null(values.type):
        raise OptionError(f"{kind.path or 'it'} is {values.type}, and the message has {kind.type}")
    if pa.types.is_null(values.type):
        values = pa.nulls(len(values), kind.type)
    names, columns_of = [field.name for field in values.type], values.flatten()
    columns: dict[str, pa.Array] = {}
    for field, each in zip(kind.type, kind.fields, strict=True):
        if names.count(field.name) != 1:
            where = each.values.path
            raise OptionError(f"{where} is in the message, and no column of the records")
        column = columns_of[names.index(field.name)]
        columns[each.name] = _field(each, column, rows, valid)
    for oneof in kind.oneofs:
        count = sum(there(columns[name]).astype(int) for name in oneof)
        rows.fail(valid & (count > 1), f"{kind.path or 'it'} has several members of a oneof")
    return columns


def _field(each: Field, column: pa.Array, rows: Rows, valid: np.ndarray) -> pa.Array:
    """Return a field of messages; `valid` are those that are there."""
    path, nulls = each.values.path, valid & ~there(column)
    if each.default is not None or each.is_required or isinstance(each, Repeated):
        rows.fail(nulls, f"{path} is null, and the message has no null there")
    if isinstance(each, Repeated):
        return _repeated(each, column, rows)
    raw = _values(each.values, column, rows)
    if each.is_implicit and each.default is not None:
        # What has no presence is not written where it is the default; -0.0 is another value.
        one = pa.array([each.default.as_py()], each.type)
        is_default = pc.equal(raw, _values(each.values, one, Rows(np.zeros(1, np.int64), {}))[0])
        if pa.types.is_floating(raw.type):
            is_default = pc.and_(is_default, pc.invert(pc.less(pc.divide(1.0, raw), 0.0)))
        if pc.any(is_default).as_py():
            raw = pc.if_else(pc.fill_null(is_default, False), pa.scalar(None, raw.type), raw)  # noqa: FBT003 - Arrow's
    return raw


def _repeated(each: Repeated, column: pa.Array, rows: Rows) -> pa.Array:
    if pa.types.is_null(column.type):
        column = pa.nulls(len(column), each.type)
    is_map = pa.types.is_map(each.type)
    if pa.types.is_map(column.type) != is_map or not pa.types.is_nested(column.type):
        raise OptionError(f"{each.values.path} is {column.type}, and the message has {each.type}")
    if pa.types.is_fixed_size_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    key = each.type.key_type if is_map else pa.string()
    if column.null_count:
        column = pc.coalesce(column, pa.scalar([], column.type))
    items, keys, counts = items_of(column, each.values.path, rows, key)
    if keys is not None:
        items = pa.StructArray.from_arrays([keys, items], [f.name for f in each.values.type])
    of_items = rows.repeat(counts)
    of_items.fail(~there(items), f"{each.values.path} is null, and the message has no null there")
    raw = _values(each.values, items, of_items)
    if raw.null_count:  # the rows are bad
        found = (_nothing(raw.type) if one is None else one for one in raw.to_pylist())
        raw = pa.array(list(found), raw.type)
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), raw, type=each.raw.type)


def _nothing(kind: pa.DataType) -> object:
    """Return a value in place of one that is bad."""
    if pa.types.is_struct(kind):
        return {}
    return b"" if pa.types.is_binary(kind) else "" if pa.types.is_string(kind) else 0


def _values(kind: Values, values: pa.Array, rows: Rows) -> pa.Array:
    if isinstance(kind, Messages):
        return raw_messages(kind, values, rows)
    values = exact(values, kind.type, kind.path, rows)
    if isinstance(kind, ByteStrings):
        return values
    if kind.names is not None:
        return _enum(kind, values, rows)
    if kind.raw == pa.uint64() and pa.types.is_decimal(kind.type):
        least, most = 0, pa.scalar((1 << 64) - 1, kind.type)
    elif kind.raw == pa.uint32():
        least, most = 0, (1 << 32) - 1
    elif kind.limits is not None and kind.type != pa.bool_():
        least, most = kind.limits
    else:
        return values.cast(kind.raw)
    kept = pc.and_(pc.greater_equal(values, least), pc.less_equal(values, most))
    bad = pc.invert(kept).fill_null(False).to_numpy(zero_copy_only=False)  # noqa: FBT003
    rows.fail(bad, f"{kind.path} is too large for the message, or below zero")
    return pc.if_else(kept, values, pa.scalar(None, values.type)).cast(kind.raw)


def _enum(kind: Numbers, names: pa.StringArray, rows: Rows) -> pa.Array:
    """Return the numbers of names; a number without a name is its own."""
    assert kind.names is not None, "it is an enum"
    numbers = {name: number for number, name in kind.names.items()}
    found = names.dictionary_encode()
    known = [numbers.get(name, _number(name, kind)) for name in found.dictionary.to_pylist()]
    raw = pa.array(known, kind.raw).take(found.indices)
    rows.fail(there(names) & ~there(raw), f"{kind.path} is no name of the enum, and no number")
    return raw


def _number(name: str, kind: Numbers) -> int | None:
    assert kind.names is not None, "it is an enum"
    if _INT32.fullmatch(name) is None or str(int(name)) != name or int(name) in kind.names:
        return None
    assert kind.limits is not None, "of 32 bits"
    return int(name) if kind.limits[0] <= int(name) <= kind.limits[1] else None


def _time(kind: Messages, values: pa.Array) -> dict[str, pa.Array]:
    """Return the seconds and nanoseconds of times; those of a duration have one sign."""
    valid = there(values)
    micros = values.cast(pa.int64()).fill_null(0).to_numpy().astype(np.int64)
    seconds = micros // _MICROS
    if kind.form == "duration":
        seconds = seconds + ((micros < 0) & (micros % _MICROS != 0))
    nanos = (micros - seconds * _MICROS) * 1000
    parts = dict(zip((field.name for field in kind.raw), (seconds, nanos), strict=True))
    return {name: pa.array(part, mask=~valid | (part == 0)) for name, part in parts.items()}
