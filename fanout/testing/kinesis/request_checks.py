"""Check a request against the service's own description of its API, which botocore carries."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
from moto.core.exceptions import JsonRESTError

from fanout.core.stored_json import MALFORMED_JSON

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from botocore.model import ListShape, MapShape, Shape, StructureShape

# What JSON may hold for each type of a member. A boolean is a number for Python alone.
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "blob": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "long": (int,),
    "timestamp": (int, float),
    "list": (list,),
    "map": (dict,),
    "structure": (dict,),
}


def read_request(shape: StructureShape, body: bytes) -> dict[str, Any]:
    """Read the body of a request, and check what is in it.

    The entries of PutRecords are left to the one who stores them: there are many. A value of
    another type is a SerializationException, and one out of its bounds a ValidationException.
    """
    try:
        request = msgspec.json.decode(body or b"{}")
    except MALFORMED_JSON as error:
        raise serialization_error("The body of the request is not readable as JSON.") from error
    for problem in _problems(shape, request, ""):
        raise validation_error(problem)
    return {name: value for name, value in request.items() if value is not None}


def serialization_error(message: str) -> Exception:
    """Return the service's answer to a value of another type."""
    error: Exception = JsonRESTError("SerializationException", message)
    return error


def validation_error(problem: str) -> Exception:
    """Return the service's answer to a value that is missing or out of its bounds."""
    error: Exception = JsonRESTError(
        "ValidationException", f"1 validation error detected: {problem}"
    )
    return error


def _problems(shape: Shape, value: Any, path: str) -> Iterator[str]:
    kinds = _TYPES[shape.type_name]
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise serialization_error(f"{path or 'The request'} must be a {shape.type_name}.")
    yield from _out_of_bounds(shape, value, path)
    if shape.type_name in _INSIDE:
        yield from _INSIDE[shape.type_name](shape, value, path)


def _of_structure(shape: StructureShape, value: dict[str, Any], path: str) -> Iterator[str]:
    for name, member in shape.members.items():
        inner = f"{path}.{name}" if path else name
        given = value.get(name)
        if given is not None:
            yield from _problems(member, given, inner)
        elif name in shape.required_members:
            yield _failed(inner, "Member must not be null")


def _of_list(shape: ListShape, value: list[Any], path: str) -> Iterator[str]:
    if shape.member.name != "PutRecordsRequestEntry":
        for each in value:
            yield from _problems(shape.member, each, f"{path}.member")


def _of_map(shape: MapShape, value: dict[str, Any], path: str) -> Iterator[str]:
    for key, each in value.items():
        yield from _problems(shape.key, key, f"{path}.key")
        yield from _problems(shape.value, each, f"{path}.value")


_INSIDE: dict[str, Callable[[Any, Any, str], Iterator[str]]] = {
    "structure": _of_structure,
    "list": _of_list,
    "map": _of_map,
}


def _out_of_bounds(shape: Shape, value: Any, path: str) -> Iterator[str]:
    bounds = shape.metadata
    # A blob is longer in base64: the one who stores it counts its bytes.
    size = len(value) if isinstance(value, str | list | dict) else value
    what = "value" if size is value else "length"
    if "min" in bounds and size < bounds["min"]:
        yield _failed(path, f"Member must have {what} of at least {bounds['min']}")
    if shape.type_name != "blob" and "max" in bounds and size > bounds["max"]:
        yield _failed(path, f"Member must have {what} of at most {bounds['max']}")
    if "pattern" in bounds and not re.fullmatch(bounds["pattern"], value):
        yield _failed(path, f"Member must satisfy the pattern {bounds['pattern']}")
    if "enum" in bounds and value not in bounds["enum"]:
        yield _failed(path, f"Member must be one of {', '.join(bounds['enum'])}")


def _failed(path: str, constraint: str) -> str:
    return f"Value at '{path}' failed to satisfy constraint: {constraint}"
