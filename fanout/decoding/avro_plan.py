"""From the schema of a writer to the columns of a reader, by Avro's rules of resolution.

https://avro.apache.org/docs/1.12.0/specification/#schema-resolution. The types of the columns are
those that `from_avro` of Spark gives.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np
import pyarrow as pa

from fanout.decoding.avro_columns import (
    Booleans,
    Bytes,
    Column,
    Converted,
    Decimals,
    Enums,
    Floats,
    Integers,
    Lists,
    Nulls,
    Records,
    Unions,
    read_columns,
)
from fanout.decoding.avro_cursors import PADDING
from fanout.decoding.avro_schema import MISSING, AvroField, AvroType
from fanout.errors import OptionError

_PRIMITIVES: Final = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
_LOGICAL: Final = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
}
# What a writer's type may be read as, besides itself.
_PROMOTIONS: Final = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "string": {"bytes"},
    "bytes": {"string"},
}
_MOST_DIGITS: Final = 38


class UnresolvedError(ValueError):
    """What a writer has written has no place in the reader's schema."""


def arrow_type(kind: AvroType, path: str = "") -> pa.DataType:
    """Return the type of the column of a type.

    Raises:
        OptionError: If there is none, which names the place.
    """
    if kind.logical == "decimal":
        if kind.precision > _MOST_DIGITS:
            raise OptionError(f"{path} has more than {_MOST_DIGITS} digits")
        return pa.decimal128(kind.precision, kind.scale)
    if kind.logical is not None:
        return _LOGICAL[kind.logical]
    if kind.kind == "record":
        return pa.struct([(f.name, arrow_type(f.type, _below(path, f))) for f in kind.fields])
    if kind.kind == "union":
        return _union_type(kind, path)
    if kind.items is not None:
        inner = arrow_type(kind.items, f"{path}[]")
        return pa.list_(inner) if kind.kind == "array" else pa.map_(pa.string(), inner)
    return _PRIMITIVES[kind.kind]


def plan(writer: AvroType, reader: AvroType, path: str = "") -> Column:
    """Return what reads what a writer has written as columns of a reader.

    Raises:
        UnresolvedError: If the two do not fit.
    """
    kind = arrow_type(reader, path)
    if writer.kind == "union":
        return _from_union(writer, reader, path)
    if reader.kind == "union":
        return _into_union(writer, reader, path)
    if writer.kind != reader.kind:
        if reader.kind not in _PROMOTIONS.get(writer.kind, ()) or reader.logical == "decimal":
            raise UnresolvedError(
                f"{path or 'it'} is {writer.kind}, and the schema has {reader.kind}"
            )
        if {writer.kind, reader.kind} == {"string", "bytes"}:
            return Bytes(path=path, type=kind, is_text=reader.kind == "string")
        return Converted(path=path, type=kind, raw=plan(writer, _plain(writer), path))
    if reader.kind == "record":
        return _record(writer, reader, path)
    if reader.kind in {"array", "map"}:
        return _list(writer, reader, path)
    if reader.kind in {"enum", "fixed"} and not _same_name(writer, reader):
        raise UnresolvedError(f"{path} is {writer.name}, and the schema has {reader.name}")
    return _leaf(writer, reader, path)


def _leaf(writer: AvroType, reader: AvroType, path: str) -> Column:
    kind = arrow_type(reader, path)
    match reader.kind:
        case "null":
            return Nulls(path=path, type=kind)
        case "boolean":
            return Booleans(path=path, type=kind)
        case "int" | "long":
            factor = 1000 if (reader.logical or "").endswith("-millis") else 1
            return Integers(path=path, type=kind, bits=_bits(reader.kind), factor=factor)
        case "float" | "double":
            size = _bits(reader.kind) // 8
            return Floats(path=path, type=kind, size=size, least=size)
        case "enum":
            default = None if reader.default is MISSING else reader.default
            known = set(reader.symbols)
            symbols = [each if each in known else default for each in writer.symbols]
            return Enums(path=path, type=kind, symbols=symbols)
    size = reader.size if reader.kind == "fixed" else None
    if reader.kind == "fixed" and writer.size != reader.size:
        raise UnresolvedError(f"{path} has {writer.size} bytes, and the schema {reader.size}")
    least = 1 if size is None else size
    raw = Bytes(
        path=path, type=pa.binary(), size=size, least=least, is_text=reader.kind == "string"
    )
    if reader.logical != "decimal":
        raw.type = kind
        return raw
    if (writer.logical, writer.scale) != ("decimal", reader.scale):
        raise UnresolvedError(f"{path} is no decimal of the same scale")
    return Decimals(path=path, type=kind, raw=raw, size=size, least=least)


def _record(writer: AvroType, reader: AvroType, path: str) -> Column:
    written, found = [], set()
    for each in writer.fields:
        place = _place(each, writer, reader)
        where = _below(path, each)
        target = each.type if place is None else reader.fields[place].type
        written.append(
            (
                _skippable(each.type, where) if place is None else plan(each.type, target, where),
                place,
            )
        )
        found.add(place)
    absent = [
        (_default(each, _below(path, each)), place)
        for place, each in enumerate(reader.fields)
        if place not in found
    ]
    least = sum(column.least for column, _ in written)
    return Records(
        path=path, type=arrow_type(reader, path), written=written, absent=absent, least=least
    )


def _place(each: AvroField, writer: AvroType, reader: AvroType) -> int | None:
    """Return the place of a writer's field; by its name, or else by an alias of the reader's."""
    names = [field.name for field in reader.fields]
    if each.name in names:
        return names.index(each.name)
    written = {field.name for field in writer.fields}
    for place, field in enumerate(reader.fields):
        if each.name in field.aliases and field.name not in written:
            return place
    return None


def _skippable(kind: AvroType, path: str) -> Column:
    """Return what skips a type that the reader lacks; decimals of any length are bytes here."""
    return plan(_plain(kind), _plain(kind), path)


def _plain(kind: AvroType) -> AvroType:
    """Return a type without the logical types in it, of which some have no columns."""
    fields = [AvroField(each.name, _plain(each.type)) for each in kind.fields]
    return AvroType(
        kind.kind,
        kind.name,
        size=kind.size,
        symbols=kind.symbols,
        fields=fields,
        items=None if kind.items is None else _plain(kind.items),
        branches=[_plain(each) for each in kind.branches],
    )


def _default(each: AvroField, path: str) -> Column:
    if each.default is MISSING:
        raise UnresolvedError(f"{path} is not there, and has no default")
    kind = each.type
    try:
        data = _encoded(each.default, kind)
    except (TypeError, ValueError, KeyError, AttributeError, struct.error) as error:
        raise OptionError(f"{path} has a default of another type") from error
    padded = np.frombuffer(data + bytes(PADDING), np.uint8)
    values, problems = read_columns(
        plan(kind, kind, path), padded, np.zeros(1, np.int64), np.array([len(data)], np.int64)
    )
    if problems:
        raise OptionError(f"{path} has a default of another type")
    return Nulls(path=path, type=values.type, constant=values)


def _encoded(value: Any, kind: AvroType) -> bytes:
    """Return a default as a record has it; in JSON bytes are characters."""
    match kind.kind:
        case "null":
            return b""
        case "boolean":
            return bytes([bool(value)])
        case "int" | "long":
            return _number(int(value))
        case "float" | "double":
            return struct.pack("<f" if kind.kind == "float" else "<d", float(value))
        case "string":
            return _number(len(value.encode())) + value.encode()
        case "bytes":
            return _number(len(value)) + value.encode("latin-1")
        case "fixed":
            return bytes(value.encode("latin-1"))
        case "enum":
            return _number(list(kind.symbols).index(value))
        case "record":
            parts = (_encoded(value.get(f.name, f.default), f.type) for f in kind.fields)
            return b"".join(parts)
        case "union":
            return _encoded_branch(value, kind)
    assert kind.items is not None, "only arrays and maps are left"
    items = [
        _encoded(each, kind.items) for each in (value if kind.kind == "array" else value.values())
    ]
    if kind.kind == "map":
        text = AvroType("string")
        items = [_encoded(name, text) + item for name, item in zip(value, items, strict=True)]
    return (_number(len(items)) + b"".join(items) if items else b"") + b"\0"


def _encoded_branch(value: Any, kind: AvroType) -> bytes:
    """Return a default of a union, which is one of its first branch, or of a later one."""
    for number, branch in enumerate(kind.branches):
        if (value is None) == (branch.kind == "null"):
            try:
                return _number(number) + _encoded(value, branch)
            except (TypeError, ValueError, KeyError, AttributeError, struct.error):
                continue
    raise ValueError(kind.kind)


def _number(value: int) -> bytes:
    rest, written = (value << 1) ^ (value >> 63), bytearray()
    while rest > 0x7F:  # noqa: PLR2004 - seven bits
        written.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes(written) + bytes([rest])


def _list(writer: AvroType, reader: AvroType, path: str) -> Column:
    assert writer.items is not None, "an array or a map"
    assert reader.items is not None, "an array or a map"
    item = plan(writer.items, reader.items, f"{path}[]")
    if reader.kind == "map":
        key = Bytes(path=f"{path}[]", type=pa.string(), is_text=True)
        kind = pa.struct([pa.field("key", pa.string(), nullable=False), ("value", item.type)])
        item = Records(path=path, type=kind, written=[(key, 0), (item, 1)], least=1 + item.least)
    return Lists(path=path, type=arrow_type(reader, path), item=item)


def _members(reader: AvroType) -> list[int | None]:
    """Return the member of the struct for each branch; none where one type is left besides null."""
    several = pa.types.is_struct(arrow_type(reader)) and _count(reader) > 1
    members: list[int | None] = []
    for branch in reader.branches:
        is_null = branch.kind == "null"
        members.append(sum(m is not None for m in members) if several and not is_null else None)
    return members


def _count(reader: AvroType) -> int:
    return sum(branch.kind != "null" for branch in reader.branches)


def _union_type(kind: AvroType, path: str) -> pa.DataType:
    """Return the only type besides null, or the struct that Spark makes of several."""
    others = [each for each in kind.branches if each.kind != "null"]
    if not others:
        return pa.null()
    if len(others) == 1:
        return arrow_type(others[0], path)
    return pa.struct([(f"member{n}", arrow_type(each, path)) for n, each in enumerate(others)])


def _from_union(writer: AvroType, reader: AvroType, path: str) -> Column:
    kind = arrow_type(reader, path)
    branches: list[Column | str | None] = []
    members: list[int | None] = []
    for branch in writer.branches:
        member = None
        try:
            if reader.kind == "union":
                place = _branch(branch, reader, path)
                member = _members(reader)[place]
                target = reader.branches[place]
            else:
                target = reader
            branches.append(None if target.kind == "null" else plan(branch, target, path))
        except UnresolvedError as error:
            branches.append(str(error))
        members.append(member)
    if all(isinstance(each, str) for each in branches):
        raise UnresolvedError(f"{path or 'it'} is of no type of the schema")
    return Unions(path=path, type=kind, branches=branches, members=members)


def _into_union(writer: AvroType, reader: AvroType, path: str) -> Column:
    """Return a column for a single type, which the reader has as one of several."""
    place = _branch(writer, reader, path)
    column = plan(writer, reader.branches[place], path)
    member = _members(reader)[place]
    if member is None:
        return column
    fields = list(arrow_type(reader, path))
    others = [
        (Nulls(path=path, type=field.type), number)
        for number, field in enumerate(fields)
        if number != member
    ]
    return Records(
        path=path,
        type=pa.struct(fields),
        written=[(column, member)],
        absent=others,
        least=column.least,
    )


def _branch(writer: AvroType, reader: AvroType, path: str) -> int:
    """Return the place of the branch that a type is read as: the same type, or one that fits."""
    for place, branch in enumerate(reader.branches):
        if branch.kind == writer.kind and (not writer.name or _same_name(writer, branch)):
            return place
    for place, branch in enumerate(reader.branches):
        try:
            plan(writer, branch, path)
        except UnresolvedError:
            continue
        return place
    raise UnresolvedError(f"{path or 'it'} is {writer.kind}, and the schema has no such type")


def _same_name(writer: AvroType, reader: AvroType) -> bool:
    names = {each.rpartition(".")[2] for each in (reader.name, *reader.aliases)}
    return writer.name.rpartition(".")[2] in names


def _below(path: str, field: AvroField) -> str:
    return f"{path}.{field.name}" if path else field.name


def _bits(kind: str) -> int:
    return 32 if kind in {"int", "float"} else 64
