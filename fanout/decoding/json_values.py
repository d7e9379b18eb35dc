"""One JSON document as Python's values of a schema, or the reason why it is none.

It is the slow way: for schemas with maps, which Arrow's reader of JSON lacks, and to say what is
wrong with a document. No text of it contains a value.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

import pyarrow as pa

from fanout.decoding.ddl import sql_name


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
    """Return the values of a document.

    Raises:
        MismatchError: If it is not JSON, or does not fit.
    """
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
    return _value(document, kind, "")


def _value(value: Any, kind: pa.DataType, path: str) -> Any:
    if value is None:
        return None
    for is_kind, read in _READERS:
        if is_kind(kind):
            return read(value, kind, path)
    if type(value) is not str:
        raise _mismatch(path, kind, value)
    return _text(value, kind, path)


def _map(value: Any, kind: pa.DataType, path: str) -> list[tuple[str, Any]]:
    fields = _object(value, kind, path)
    return [(name, _value(each, kind.item_type, f"{path}[]")) for name, each in fields.items()]


def _list(value: Any, kind: pa.DataType, path: str) -> list[Any]:
    if type(value) is not list:
        raise _mismatch(path, kind, value)
    return [_value(each, kind.value_type, f"{path}[]") for each in value]


def _boolean(value: Any, kind: pa.DataType, path: str) -> bool:
    if not isinstance(value, bool):
        raise _mismatch(path, kind, value)
    return value


def _decimal(value: Any, kind: pa.DataType, path: str) -> Any:
    if type(value) not in {str, _Number}:
        raise _mismatch(path, kind, value)
    return _cast(value, kind, path)


def _struct(value: Any, kind: pa.StructType, path: str) -> dict[str, Any]:
    known = _object(value, kind, path, {field.name for field in kind})
    result = {}
    for field in kind:
        where = f"{path}.{field.name}" if path else field.name
        result[field.name] = _value(known.get(field.name), field.type, where)
        if result[field.name] is None and not field.nullable:
            raise MismatchError(f"{where} is NOT NULL, and is missing or null")
    return result


def _object(
    value: Any, kind: pa.DataType, path: str, wanted: set[str] | None = None
) -> dict[str, Any]:
    """Return the fields that are wanted, all by default; none may come twice."""
    if not isinstance(value, _Fields):
        raise _mismatch(path, kind, value)
    pairs = [pair for pair in value if wanted is None or pair[0] in wanted]
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise MismatchError(f"{path or 'it'} has a field twice")
    for name in fields:
        _text(name, pa.string(), path)
    return fields


def _integer(value: Any, kind: pa.DataType, path: str) -> int:
    if not isinstance(value, _Number):
        raise _mismatch(path, kind, value)
    if not value.lstrip("-").isdecimal():
        raise MismatchError(
            f"{path or 'it'} is {sql_name(kind)}, and has a fraction or an exponent"
        )
    try:
        return int(pa.scalar(str(value)).cast(kind).as_py())
    except pa.ArrowInvalid:
        raise MismatchError(f"{path or 'it'} is too large for {sql_name(kind)}") from None


def _float(value: Any, kind: pa.DataType, path: str) -> float:
    if not isinstance(value, _Number):
        raise _mismatch(path, kind, value)
    number = float(pa.scalar(str(value)).cast(kind).as_py())
    if not math.isfinite(number):
        raise MismatchError(f"{path or 'it'} is too large for {sql_name(kind)}")
    return number


def _text(value: str, kind: pa.DataType, path: str) -> Any:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise MismatchError(f"{path or 'it'} has half of a surrogate pair") from None
    return value if pa.types.is_string(kind) else _cast(value, kind, path)


def _cast(value: str, kind: pa.DataType, path: str) -> Any:
    try:
        return pa.scalar(str(value)).cast(kind)
    except pa.ArrowInvalid:
        raise MismatchError(f"{path or 'it'} is not a {sql_name(kind)}{_form(kind)}") from None


def _form(kind: pa.DataType) -> str:
    """Return how a value of a type is written."""
    if pa.types.is_decimal(kind):
        return ", or has more digits"
    if pa.types.is_date(kind):
        return " such as 2026-01-31"
    return f" such as 2026-01-31T12:00:00{'Z' if kind.tz else ''}"


def _mismatch(path: str, kind: pa.DataType, value: Any) -> MismatchError:
    names = {bool: "a boolean", str: "a string", _Number: "a number", _Fields: "an object"}
    seen = names.get(type(value), "NaN or Infinity" if isinstance(value, _Constant) else "an array")
    return MismatchError(f"{path or 'it'} is {sql_name(kind)}, and the document has {seen}")


_READERS: Final = (
    (pa.types.is_struct, _struct),
    (pa.types.is_map, _map),
    (pa.types.is_list, _list),
    (pa.types.is_boolean, _boolean),
    (pa.types.is_integer, _integer),
    (pa.types.is_floating, _float),
    (pa.types.is_decimal, _decimal),
)
