"""One JSON document as Python's values of a schema, or the reason why it is none.

It is the slow way: for schemas with maps, which Arrow's reader of JSON lacks, and to say what is
wrong with a document. No text of it contains a value.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, final

import pyarrow as pa

from fanout.decoding.ddl import sql_name

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


class MismatchError(ValueError):
    """A document does not fit the schema."""


class _Fields(list[tuple[str, Any]]):
    """The fields of an object, with names that come twice."""


class _Number(str):
    """A number as it was written."""

    __slots__ = ()


class _Constant(str):
    """NaN or an infinity, which is no JSON; what ignores the field does not mind."""

    __slots__ = ()


def parse(payload: bytes, kind: pa.StructType) -> Any:
    """Return the values of a document."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        raise MismatchError("it is not UTF-8") from None
    try:
        document = json.loads(
            text,
            object_pairs_hook=_Fields,
            parse_int=_Number,
            parse_float=_Number,
            parse_constant=_Constant,
        )
    except (ValueError, RecursionError):
        raise MismatchError("it is not JSON, or one document and more") from None
    return _value(document, _json_type(kind), "")


def rest_of(document: str, names: Collection[str]) -> str | None:
    """Return the fields of an object that are not among names, as they were written, if any."""
    rest = []
    try:
        at = _behind_space(document, _behind_space(document, 0) + 1)
        while document[at] != "}":
            begin = at
            name, at = _SCANNER.raw_decode(document, at)
            at = _behind_space(document, _behind_space(document, at) + 1)
            _, at = _SCANNER.raw_decode(document, at)
            if name not in names:
                rest.append(document[begin:at])
            at = _behind_space(document, at)
            if document[at] == ",":
                at = _behind_space(document, at + 1)
    except RecursionError:
        raise MismatchError("it is nested too deeply") from None
    return f"{{{','.join(rest)}}}" if rest else None


def _behind_space(document: str, at: int) -> int:
    while document[at] in " \t\r\n":
        at += 1
    return at


def _no_constant(name: str) -> None:
    raise MismatchError(f"it has {name}, which JSON has not")


@final
@dataclass(frozen=True, slots=True)
class _JsonType:
    """A type with what is needed of it for each value: Arrow makes fields anew when asked."""

    type: pa.DataType
    wanted: tuple[type, ...]  # what a document has for it
    fields: Mapping[str, _JsonType]  # of a struct
    required: tuple[str, ...]  # those that are never null
    item: _JsonType | None  # of a list, and the values of a map
    item_may_be_null: bool


@lru_cache(maxsize=1024)
def _json_type(kind: pa.DataType) -> _JsonType:
    fields = list(kind) if pa.types.is_struct(kind) else []
    item = None
    if pa.types.is_map(kind) or pa.types.is_list(kind):
        item = kind.item_field if pa.types.is_map(kind) else kind.value_field
    return _JsonType(
        kind,
        next((types for is_kind, types in _WRITTEN_AS if is_kind(kind)), (str,)),
        {field.name: _json_type(field.type) for field in fields},
        tuple(field.name for field in fields if not field.nullable),
        None if item is None else _json_type(item.type),
        item is None or item.nullable,
    )


def _value(value: Any, kind: _JsonType, path: str) -> Any:
    if value is None:
        return None
    if type(value) not in kind.wanted:
        raise MismatchError(
            f"{path or 'it'} is {sql_name(kind.type)}, and the document has {_NAMES[type(value)]}"
        )
    if kind.fields:
        return _struct(value, kind, path)
    if kind.item is None:
        return value if type(value) is bool else _scalar(str(value), kind.type, path)
    if type(value) is list:
        return [_item(each, kind, path) for each in value]
    return [(name, _item(each, kind, path)) for name, each in _object(value, path).items()]


def _item(value: Any, kind: _JsonType, path: str) -> Any:
    assert kind.item is not None, "it has items"
    if value is None and not kind.item_may_be_null:
        raise MismatchError(f"{path}[] is NOT NULL, and is null")
    return _value(value, kind.item, f"{path}[]")


def _struct(value: _Fields, kind: _JsonType, path: str) -> dict[str, Any]:
    known = _object([pair for pair in value if pair[0] in kind.fields], path)
    result = {}  # without what is null, as few bytes may be many objects
    for name, each in known.items():
        where = f"{path}.{name}" if path else name
        found = _value(each, kind.fields[name], where)
        if found is not None:
            result[name] = found
    for name in kind.required:
        if name not in result:
            where = f"{path}.{name}" if path else name
            raise MismatchError(f"{where} is NOT NULL, and is missing or null")
    return result


def _object(pairs: list[tuple[str, Any]], path: str) -> dict[str, Any]:
    fields = {_scalar(name, pa.string(), path): value for name, value in pairs}
    if len(fields) < len(pairs):
        raise MismatchError(f"{path or 'it'} has a field twice")
    return fields


def _scalar(text: str, kind: pa.DataType, path: str) -> Any:
    try:
        fits = not pa.types.is_decimal(kind) or _fits(text, kind)
        value = pa.scalar(text).cast(kind) if fits else None
    except UnicodeEncodeError:
        raise MismatchError(f"{path or 'it'} has half of a surrogate pair") from None
    except pa.ArrowInvalid:
        value = None
    if value is None or (pa.types.is_floating(kind) and not math.isfinite(value.as_py())):
        raise MismatchError(f"{path or 'it'} is no {sql_name(kind)}{_reason(text, kind)}")
    return value if pa.types.is_temporal(kind) else value.as_py()  # Python has no nanoseconds


def _fits(text: str, kind: pa.DataType) -> bool:
    """Tell whether a number has no more digits than its type; Arrow wraps around at 128 bits."""
    if _DECIMAL.fullmatch(text) is None:
        return False
    _, digits, exponent = Decimal(text).as_tuple()
    assert isinstance(exponent, int)
    figures = "".join(map(str, digits)).lstrip("0")
    exponent += len(figures) - len(figures := figures.rstrip("0"))
    whole = kind.precision - kind.scale
    return not figures or (exponent >= -kind.scale and len(figures) + exponent <= whole)


def _reason(text: str, kind: pa.DataType) -> str:
    """Return why a text is no value of a type, or how one is written."""
    if pa.types.is_integer(kind):
        return ": it has a fraction or an exponent, or is too large"
    if pa.types.is_decimal(kind):
        return ": it has more digits" if _NUMBER.fullmatch(text) else ": its text is no number"
    if pa.types.is_floating(kind):
        return ": it is too large"
    time = "" if pa.types.is_date(kind) else "T12:00:00Z" if kind.tz else "T12:00:00"
    return f" such as 2026-01-31{time}"


_SCANNER: Final = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_no_constant)
_FIGURES: Final = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)"
_NUMBER: Final = re.compile(_FIGURES + r"([eE][+-]?[0-9]+)?", re.ASCII)
_DECIMAL: Final = re.compile(_FIGURES + r"([eE][+-]?[0-9]{1,9})?", re.ASCII)
_WRITTEN_AS: Final = (
    (pa.types.is_struct, (_Fields,)),
    (pa.types.is_map, (_Fields,)),
    (pa.types.is_list, (list,)),
    (pa.types.is_boolean, (bool,)),
    (pa.types.is_integer, (_Number,)),
    (pa.types.is_floating, (_Number,)),
    (pa.types.is_decimal, (_Number, str)),
)
_NAMES: Final = {
    _Constant: "NaN or Infinity",
    _Fields: "an object",
    _Number: "a number",
    bool: "a boolean",
    list: "an array",
    str: "a string",
}
