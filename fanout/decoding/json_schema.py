"""JSON Schemas as schemas of columns: the part of them that says which type a value has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from fanout.core.sentence import Option
from fanout.errors import OptionError

_ATOMS: Final = {
    "boolean": pa.bool_(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "string": pa.string(),
}
_STRINGS: Final = {"date-time": pa.timestamp("us", "UTC"), "date": pa.date32()}
_MOST_NESTED: Final = 64


def parse_json_schema(document: Mapping[str, Any]) -> pa.Schema:
    """Return the columns of the objects that a JSON Schema describes."""
    kind, _ = _type(document, document, "#", 0)
    if not pa.types.is_struct(kind):
        raise _error("#", "must describe an object with properties")
    return pa.schema(list(kind))


def _type(
    part: object, document: Mapping[str, Any], path: str, depth: int
) -> tuple[pa.DataType, bool]:
    """Return the type of a part, and whether it may be null."""
    if not isinstance(part, Mapping):
        raise _error(path, "must be an object that names a type")
    if depth > _MOST_NESTED:
        raise _error(path, "contains itself, or is nested too deeply: columns have an end")
    if "$ref" in part:
        return _type(_resolve(part["$ref"], document, path), document, path, depth + 1)
    for word in ("anyOf", "oneOf"):
        if word in part:
            return _choice(part[word], document, f"{path}/{word}", depth)
    names = part.get("type", "string" if "enum" in part else None)
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, list):
        raise _error(path, "names no type")
    others = [name for name in names if name != "null"]
    if sorted(map(str, others)) == ["integer", "number"]:
        others = ["number"]
    if len(others) != 1:
        raise _error(path, "must have one type, besides null")
    return _named(others[0], part, document, path, depth), len(names) > len(others)


def _choice(
    choices: Any, document: Mapping[str, Any], path: str, depth: int
) -> tuple[pa.DataType, bool]:
    others = [each for each in choices if each != {"type": "null"}]
    if len(others) != 1:
        raise _error(path, "must be a choice of one type and null")
    kind, nullable = _type(others[0], document, path, depth + 1)
    return kind, nullable or len(others) < len(choices)


def _named(
    name: object, part: Mapping[str, Any], document: Mapping[str, Any], path: str, depth: int
) -> pa.DataType:
    if name == "string":
        return _STRINGS.get(part.get("format", ""), pa.string())
    if name == "array":
        item, _ = _type(part.get("items"), document, f"{path}/items", depth + 1)
        return pa.list_(item)
    if name == "object":
        return _object(part, document, path, depth)
    if not isinstance(name, str) or name not in _ATOMS:
        raise _error(path, "has an unknown type")
    return _ATOMS[name]


def _object(
    part: Mapping[str, Any], document: Mapping[str, Any], path: str, depth: int
) -> pa.DataType:
    properties = part.get("properties")
    if isinstance(properties, Mapping) and properties:
        required = set(part.get("required", ()))
        fields = []
        for name, each in properties.items():
            kind, nullable = _type(each, document, f"{path}/properties/{name}", depth + 1)
            fields.append(pa.field(name, kind, nullable or name not in required))
        return pa.struct(fields)
    values = part.get("additionalProperties")
    if isinstance(values, Mapping):
        kind, _ = _type(values, document, f"{path}/additionalProperties", depth + 1)
        return pa.map_(pa.string(), kind)
    raise _error(path, "is an object without properties: name them, or additionalProperties")


def _resolve(reference: object, document: Mapping[str, Any], path: str) -> object:
    if not isinstance(reference, str) or not reference.startswith("#"):
        raise _error(path, "refers to another document: copy that into this one")
    found: object = document
    for name in reference.removeprefix("#").split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")  # noqa: PLW2901 - RFC 6901
        if not isinstance(found, Mapping) or name not in found:
            raise _error(path, f"refers to {reference}, which is not there")
        found = found[name]
    return found


def _error(path: str, problem: str) -> OptionError:
    return OptionError(Option("schema"), f": {path} {problem}")
