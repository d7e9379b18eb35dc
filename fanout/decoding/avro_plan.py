"""From the schema of a writer to the columns of a reader, by Avro's rules of resolution.

https://avro.apache.org/docs/1.12.0/specification/#schema-resolution. The types of the columns are
those that `from_avro` of Spark gives.
"""

from __future__ import annotations

from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from fanout.decoding import avro_columns as columns
from fanout.decoding.avro_schema import MISSING, AvroField, AvroType
from fanout.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from fanout.decoding.avro_columns import Column

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
_ALL_DIGITS: Final = Context(prec=64)


class UnresolvedError(ValueError):
    """What a writer has written has no place in the reader's schema."""


def arrow_type(kind: AvroType, path: str = "") -> pa.DataType:
    """Return the type of the column of a type."""
    if kind.logical == "decimal":
        if kind.precision > _MOST_DIGITS:
            raise OptionError(f"{path} has more than {_MOST_DIGITS} digits")
        return pa.decimal128(kind.precision, kind.scale)
    if kind.logical is not None:
        return _LOGICAL[kind.logical]
    if kind.kind == "record":
        return pa.struct([(f.name, arrow_type(f.type, below(path, f))) for f in kind.fields])
    if kind.kind == "union":
        return _union_type(kind, path)
    if kind.items is not None:
        inner = arrow_type(kind.items, f"{path}[]")
        return pa.list_(inner) if kind.kind == "array" else pa.map_(pa.string(), inner)
    return _PRIMITIVES[kind.kind]


def plan(writer: AvroType, reader: AvroType, path: str = "") -> Column:
    """Return what reads what a writer has written as columns of a reader."""
    if writer.kind == "union":
        return _from_union(writer, reader, path)
    if reader.kind == "union":
        return _into_union(writer, reader, path)
    if None not in {writer.unit, reader.unit} and writer.unit != reader.unit:
        raise UnresolvedError(f"{path or 'it'} is {writer.unit}, not {reader.unit}")
    if writer.kind == reader.kind:
        return _COLUMNS[reader.kind](writer, reader, path)
    if reader.kind not in _PROMOTIONS.get(writer.kind, ()) or reader.logical is not None:
        raise UnresolvedError(f"{path or 'it'} is {writer.kind}, and the schema has {reader.kind}")
    kind = arrow_type(reader, path)
    if writer.kind in {"string", "bytes"}:
        return columns.Bytes(path=path, type=kind, is_text=reader.kind == "string")
    return columns.Converted(path=path, type=kind, raw=plan(writer, _plain(writer), path))


def _number(_: AvroType, reader: AvroType, path: str) -> Column:
    kind, bits = arrow_type(reader, path), 32 if reader.kind in {"int", "float"} else 64
    if reader.kind in {"float", "double"}:
        return columns.Floats(path=path, type=kind, size=bits // 8, least=bits // 8)
    factor = 1000 if (reader.logical or "").endswith("-millis") else 1
    return columns.Integers(path=path, type=kind, bits=bits, factor=factor)


def _enum(writer: AvroType, reader: AvroType, path: str) -> Column:
    _check_names(writer, reader, path)
    default = None if reader.default is MISSING else reader.default
    symbols = [each if each in reader.symbols else default for each in writer.symbols]
    return columns.Enums(path=path, type=pa.string(), symbols=symbols)


def _bytes(writer: AvroType, reader: AvroType, path: str) -> Column:
    size = None
    if reader.kind == "fixed":
        _check_names(writer, reader, path)
        size = reader.size
        if writer.size != size:
            raise UnresolvedError(f"{path} has {writer.size} bytes, and the schema {size}")
    kind, least, text = (
        arrow_type(reader, path),
        1 if size is None else size,
        reader.kind == "string",
    )
    if reader.logical != "decimal":
        return columns.Bytes(path=path, type=kind, size=size, least=least, is_text=text)
    if (writer.logical, writer.scale) != ("decimal", reader.scale):
        raise UnresolvedError(f"{path} is no decimal of the same scale")
    raw = columns.Bytes(path=path, type=pa.binary(), size=size, least=least)
    return columns.Decimals(path=path, type=kind, raw=raw, size=size, least=least)


def _record(writer: AvroType, reader: AvroType, path: str) -> Column:
    written: list[tuple[Column, int | None]] = []
    for each in writer.fields:
        place, where = _place(each, writer, reader), below(path, each)
        # What is skipped has no logical types: some have no columns.
        pair = (_plain(each.type),) * 2 if place is None else (each.type, reader.fields[place].type)
        written.append((plan(*pair, where), place))
    places = [place for _, place in written if place is not None]
    found = set(places)
    if len(places) > len(found):
        name = next(reader.fields[place].name for place in found if places.count(place) > 1)
        raise UnresolvedError(f"{path or 'it'} has two fields that are {name} by its aliases")
    absent = [
        (_default(each, below(path, each)), place)
        for place, each in enumerate(reader.fields)
        if place not in found
    ]
    least, kind = sum(column.least for column, _ in written), arrow_type(reader, path)
    return columns.Records(path=path, type=kind, written=written, absent=absent, least=least)


def _place(each: AvroField, writer: AvroType, reader: AvroType) -> int | None:
    """Return the place of a writer's field; by its name, or else by an alias of the reader's."""
    names = [field.name for field in reader.fields]
    if each.name in names:
        return names.index(each.name)
    written = {field.name for field in writer.fields}
    places = [
        place
        for place, field in enumerate(reader.fields)
        if each.name in field.aliases and field.name not in written
    ]
    if len(places) > 1:
        one, other, *_ = (names[place] for place in places)
        raise UnresolvedError(f"{each.name} is an alias of both {one} and {other}")
    return places[0] if places else None


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


def check_defaults(kind: AvroType, path: str = "") -> None:
    """Check the defaults of a schema that records are read with."""
    for each in kind.fields:
        where = below(path, each)
        if each.default is not MISSING:
            _default(each, where)
        check_defaults(each.type, where)
    for inner in [*kind.branches, *([] if kind.items is None else [kind.items])]:
        check_defaults(inner, path)


def _default(each: AvroField, path: str) -> Column:
    if each.default is MISSING:
        raise UnresolvedError(f"{path} is not there, and has no default")
    kind = arrow_type(each.type, path)
    try:
        value = pa.array([_value(each.default, each.type)], kind)
    except (pa.ArrowException, ArithmeticError, KeyError, TypeError, ValueError) as error:
        raise OptionError(f"{path} has a default of another type") from error
    return columns.Nulls(path=path, type=kind, constant=value)


def _value(value: Any, kind: AvroType) -> Any:
    """Return a default as Arrow takes it; in JSON bytes are characters."""
    if kind.kind == "union":
        return _of_union(value, kind)
    if type(value) not in _JSON_TYPES[kind.kind] or (kind.symbols and value not in kind.symbols):
        raise TypeError(kind.kind)
    if kind.kind == "record":
        given = {f.name: value.get(f.name, f.default) for f in kind.fields}
        return {f.name: _value(given[f.name], f.type) for f in kind.fields}
    if kind.items is not None:
        if kind.kind == "array":
            return [_value(each, kind.items) for each in value]
        return [(name, _value(each, kind.items)) for name, each in value.items()]
    if kind.kind in {"bytes", "fixed"}:
        data = value.encode("latin-1")
        if kind.kind == "fixed" and len(data) != kind.size:
            raise ValueError(kind.kind)
        number = Decimal(int.from_bytes(data, "big", signed=True))
        return number.scaleb(-kind.scale, _ALL_DIGITS) if kind.logical == "decimal" else data
    value = value * 1000 if (kind.logical or "").endswith("-millis") else value
    return float(value) if kind.kind in {"float", "double"} else value


def _of_union(value: Any, kind: AvroType) -> Any:
    """Return a default of the first type that has it, as Avro 1.12 says."""
    for branch, member in zip(kind.branches, _members(kind), strict=True):
        try:
            found = _value(value, branch)
            pa.array([found], arrow_type(branch))
        except (pa.ArrowException, ArithmeticError, KeyError, TypeError, ValueError):
            continue
        return found if member is None else {f"member{member}": found}
    raise TypeError(kind.kind)


def _list(writer: AvroType, reader: AvroType, path: str) -> Column:
    assert writer.items is not None, "an array or a map"
    assert reader.items is not None, "an array or a map"
    item = plan(writer.items, reader.items, f"{path}[]")
    if reader.kind == "map":
        key = columns.Bytes(path=f"{path}[]", type=pa.string(), is_text=True)
        kind = pa.struct([pa.field("key", pa.string(), nullable=False), ("value", item.type)])
        item = columns.Records(
            path=path, type=kind, written=[(key, 0), (item, 1)], least=1 + item.least
        )
    if not item.least:  # a few bytes could be any number of them
        raise OptionError(f"{path}[] has items without a byte")
    return columns.Lists(path=path, type=arrow_type(reader, path), item=item)


def _members(reader: AvroType) -> list[int | None]:
    """Return the member of the struct for each branch; none where one type is left besides null."""
    others = [branch for branch in reader.branches if branch.kind != "null"]
    numbers = {id(branch): n for n, branch in enumerate(others)} if len(others) > 1 else {}
    return [numbers.get(id(branch)) for branch in reader.branches]


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
                place, column = _branch(branch, reader, path)
                member, target = _members(reader)[place], reader.branches[place]
            else:
                column, target = plan(branch, reader, path), reader
            branches.append(None if target.kind == "null" else column)
        except UnresolvedError as error:
            branches.append(str(error))
        members.append(member)
    if all(isinstance(each, str) for each in branches):
        raise UnresolvedError(f"{path or 'it'} is of no type of the schema")
    return columns.Unions(path=path, type=kind, branches=branches, members=members)


def _into_union(writer: AvroType, reader: AvroType, path: str) -> Column:
    """Return a column for a single type, which the reader has as one of several."""
    kind = arrow_type(reader, path)
    if writer.kind == "null":
        return columns.Nulls(path=path, type=kind)
    place, column = _branch(writer, reader, path)
    member = _members(reader)[place]
    if member is None:
        return column
    absent = [(columns.Nulls(path=path, type=f.type), n) for n, f in enumerate(kind) if n != member]
    return columns.Records(
        path=path, type=kind, written=[(column, member)], absent=absent, least=column.least
    )


def _branch(writer: AvroType, reader: AvroType, path: str) -> tuple[int, Column]:
    """Return the branch that a type is read as, the same type or one that fits, and how."""
    for place, branch in enumerate(reader.branches):
        if branch.kind == writer.kind and (not writer.name or _same_name(writer, branch)):
            return place, plan(writer, branch, path)
    for place, branch in enumerate(reader.branches):
        try:
            return place, plan(writer, branch, path)
        except UnresolvedError:
            continue
    raise UnresolvedError(f"{path or 'it'} is {writer.kind}, and the schema has no such type")


def _same_name(writer: AvroType, reader: AvroType) -> bool:
    names = {each.rpartition(".")[2] for each in (reader.name, *reader.aliases)}
    return writer.name.rpartition(".")[2] in names


def _check_names(writer: AvroType, reader: AvroType, path: str) -> None:
    if not _same_name(writer, reader):
        raise UnresolvedError(f"{path} is {writer.name}, and the schema has {reader.name}")


def below(path: str, field: AvroField) -> str:
    """Return the path of a field of a record."""
    return f"{path}.{field.name}" if path else field.name


_JSON_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "null": (type(None),),
    "boolean": (bool,),
    **dict.fromkeys(("int", "long"), (int,)),
    **dict.fromkeys(("float", "double"), (int, float)),
    **dict.fromkeys(("bytes", "string", "fixed", "enum"), (str,)),
    "array": (list,),
    **dict.fromkeys(("record", "map"), (dict,)),
}
_COLUMNS: Final[dict[str, Callable[[AvroType, AvroType, str], Column]]] = {
    "null": lambda _, __, path: columns.Nulls(path=path, type=pa.null()),
    "boolean": lambda _, __, path: columns.Booleans(path=path, type=pa.bool_()),
    **dict.fromkeys(("int", "long", "float", "double"), _number),
    **dict.fromkeys(("bytes", "string", "fixed"), _bytes),
    "enum": _enum,
    "record": _record,
    **dict.fromkeys(("array", "map"), _list),
}
