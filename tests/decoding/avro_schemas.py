"""Random schemas of Avro, values of them, and what a later schema makes of a schema."""

from __future__ import annotations

import copy
import datetime as dt
import decimal
import struct
import uuid
from decimal import Decimal
from typing import Any, Final

from hypothesis import strategies as st

__all__ = ("agrees", "evolved", "schemas", "values")

_ATOMS: Final[list[Any]] = [
    *("null", "boolean", "int", "long", "float", "double", "bytes", "string"),
    {"type": "int", "logicalType": "date"},
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "long", "logicalType": "local-timestamp-millis"},
    {"type": "long", "logicalType": "local-timestamp-micros"},
    {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 4},
    {"type": "string", "logicalType": "uuid"},
    {"type": "int", "logicalType": "time-millis"},
    {"type": "long", "logicalType": "unknown"},
]
_CONTEXT: Final = decimal.Context(prec=60)


@st.composite
def schemas(draw: Any, depth: int = 3) -> Any:
    """A record of random fields."""
    return draw(_records(depth, draw(st.just([0]))))


@st.composite
def _records(draw: Any, depth: int, names: list[int]) -> Any:
    names[0] += 1
    name = f"R{names[0]}"
    count = draw(st.integers(0 if depth < 3 else 1, 4))
    fields = [{"name": f"f{n}", "type": draw(_types(depth - 1, names))} for n in range(count)]
    return {"type": "record", "name": name, "namespace": "space", "fields": fields}


@st.composite
def _types(draw: Any, depth: int, names: list[int], *, union: bool = True) -> Any:  # noqa: C901, PLR0911 - one case for each kind
    kinds = ["atom", "atom", "fixed", "enum", "decimal"]
    if depth > 0:
        kinds += ["array", "map", "record"] + ["nullable", "union"] * union
    match draw(st.sampled_from(kinds)):
        case "atom":
            return draw(st.sampled_from(_ATOMS))
        case "array":
            items = draw(_types(depth - 1, names).filter(_has_bytes))
            return {"type": "array", "items": items}
        case "map":
            return {"type": "map", "values": draw(_types(depth - 1, names))}
        case "record":
            return draw(_records(depth - 1, names))
        case "nullable":
            other = draw(_types(depth - 1, names, union=False))
            if other == "null":
                return ["null"]
            return draw(st.permutations(["null", other]))
        case "union":
            branches = {}
            for _ in range(draw(st.integers(1, 4))):
                branch = draw(_types(depth - 1, names, union=False))
                kind = branch if isinstance(branch, str) else branch.get("name", branch["type"])
                branches[kind] = branch
            return [*branches.values()]
        case kind:
            names[0] += 1
            name = f"N{names[0]}"
            if kind == "enum":
                return {"type": "enum", "name": name, "symbols": ["A", "B", "C"], "default": "A"}
            size = draw(st.integers(0, 20))
            if kind == "fixed":
                return {"type": "fixed", "name": name, "size": size}
            size = max(size, 1)
            precision = min(len(str(2 ** (8 * size - 1))) - 1, 38)
            decimal = {"logicalType": "decimal", "precision": precision, "scale": min(2, precision)}
            return {"type": "fixed", "name": name, "size": size} | decimal


def _has_bytes(schema: Any) -> bool:
    """Whether a value has a byte, as the items of an array have to."""
    if isinstance(schema, dict) and schema["type"] == "record":
        return any(_has_bytes(field["type"]) for field in schema["fields"])
    return schema != "null" and not (isinstance(schema, dict) and schema.get("size") == 0)


def values(schema: Any) -> st.SearchStrategy[Any]:  # noqa: PLR0911 - one case for each kind
    """Values of a schema, as fastavro writes them."""
    if isinstance(schema, list):
        return st.sampled_from(range(len(schema))).flatmap(lambda n: _tagged(schema[n]))
    kind = schema if isinstance(schema, str) else schema["type"]
    logical = None if isinstance(schema, str) else schema.get("logicalType")
    if logical is not None and logical in _LOGICAL:
        return _LOGICAL[logical]
    if logical == "decimal":
        most = 10 ** schema["precision"] - 1
        numbers = st.integers(-most, most)
        return numbers.map(lambda n: Decimal(n).scaleb(-schema["scale"], _CONTEXT))
    match kind:  # type: ignore[exhaustive-match]
        case "array":
            return st.lists(values(schema["items"]), max_size=4)
        case "map":
            return st.dictionaries(st.text(max_size=3), values(schema["values"]), max_size=3)
        case "record":
            return st.fixed_dictionaries(
                {field["name"]: values(field["type"]) for field in schema["fields"]}
            )
        case "enum":
            return st.sampled_from(schema["symbols"])
        case "fixed":
            return st.binary(min_size=schema["size"], max_size=schema["size"])
    return _PRIMITIVES[kind]


def _tagged(branch: Any) -> st.SearchStrategy[Any]:
    """A value of a branch of a union, named where it would be ambiguous."""
    if branch == "null":
        return st.none()
    kind = branch if isinstance(branch, str) else branch["type"]
    if isinstance(branch, dict) and "name" in branch:
        space = branch.get("namespace", "space")
        return values(branch).map(lambda value: (f"{space}.{branch['name']}", value))
    return values(branch).map(lambda value: (kind, value))


_PRIMITIVES: Final[dict[str, st.SearchStrategy[Any]]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=40),
    "string": st.text(max_size=200),
}
_TIMES = st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1))  # noqa: DTZ001
_MILLIS = _TIMES.map(lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000))
_LOGICAL: Final[dict[str, st.SearchStrategy[Any]]] = {
    "date": st.dates(),
    "timestamp-millis": _MILLIS.map(lambda at: at.replace(tzinfo=dt.UTC)),
    "timestamp-micros": _TIMES.map(lambda at: at.replace(tzinfo=dt.UTC)),
    "local-timestamp-millis": _MILLIS,
    "local-timestamp-micros": _TIMES,
    "uuid": st.uuids(),
    "time-millis": st.times().map(lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000)),
}


@st.composite
def evolved(draw: Any, schema: Any) -> Any:
    """A later schema: without fields, with new ones, renamed ones and wider types."""
    later = copy.deepcopy(schema)
    _evolve(draw, later)
    return later


def _evolve(draw: Any, schema: Any) -> None:
    if isinstance(schema, list):
        for branch in schema:
            _evolve(draw, branch)
    elif isinstance(schema, dict):
        for word in ("items", "values", "type"):
            inner = schema.get(word)
            if isinstance(inner, dict | list):
                _evolve(draw, inner)
            elif inner in _WIDER and "logicalType" not in schema and word != "type":
                schema[word] = draw(st.sampled_from(_WIDER[inner]))
        if schema.get("type") == "record":
            _evolve_record(draw, schema)


def _evolve_record(draw: Any, schema: Any) -> None:
    fields = []
    for field in schema["fields"]:
        _evolve(draw, field["type"])
        change = draw(st.sampled_from(["keep", "keep", "drop", "rename", "widen"]))
        if change == "drop":
            continue
        if change == "rename":
            field = field | {"name": f"new_{field['name']}", "aliases": [field["name"]]}  # noqa: PLW2901
        if change == "widen" and field["type"] in _SIMPLE:
            field = field | {"type": draw(st.sampled_from(_WIDER[field["type"]]))}  # noqa: PLW2901
        fields.append(field)
    for number, (kind, default) in enumerate(draw(st.lists(st.sampled_from(_ADDED), max_size=2))):
        if isinstance(kind, dict) and "name" in kind:
            kind = kind | {"name": f"{schema['name']}Added{number}"}  # noqa: PLW2901
        fields.append({"name": f"added{number}", "type": kind, "default": default})
    schema["fields"] = draw(st.permutations(fields))


_WIDER: Final[dict[Any, list[Any]]] = {
    "int": ["long", "float", "double", ["null", "int"]],
    "long": ["float", "double", ["string", "long"]],
    "float": ["double"],
    "string": ["bytes", ["null", "string", "int"]],
    "boolean": [["null", "boolean"]],
    "null": [["null", "string"], ["int", "null", "string"]],
}


class _Simple(list[Any]):
    def __contains__(self, kind: object) -> bool:
        return isinstance(kind, str) and kind in _WIDER


_SIMPLE = _Simple()
_ADDED: Final[list[Any]] = [
    (["null", "string"], None),
    ("string", "é"),
    ("bytes", "\u00ff"),
    ("double", 1),
    ({"type": "array", "items": "int"}, [1, 2]),
    ({"type": "map", "values": "long"}, {"a": -5}),
    ({"type": "record", "name": "Added", "fields": [{"name": "x", "type": "int"}]}, {"x": 7}),
    (["long", "null"], 3),
]


def agrees(found: Any, value: Any, schema: Any) -> bool:  # noqa: PLR0911 - one case for each kind
    """Whether a column has what fastavro reads."""
    if isinstance(schema, list):
        return _agrees_union(found, value, schema)
    kind = schema if isinstance(schema, str) else schema["type"]
    if isinstance(kind, dict | list):
        return agrees(found, value, kind)
    match kind:  # type: ignore[exhaustive-match]
        case "record":
            return found.keys() == {f["name"] for f in schema["fields"]} and all(
                agrees(found[f["name"]], value[f["name"]], f["type"]) for f in schema["fields"]
            )
        case "array":
            pairs = zip(found, value, strict=True)
            return all(agrees(one, other, schema["items"]) for one, other in pairs)
        case "map":
            return [name for name, _ in found] == list(value) and all(
                agrees(each, value[name], schema["values"]) for name, each in found
            )
        case "float":
            return bool(found == struct.unpack("f", struct.pack("f", value))[0])
    if isinstance(value, dt.time):
        seconds = (value.hour * 60 + value.minute) * 60 + value.second
        value = seconds * 1000 + value.microsecond // 1000
    if isinstance(value, uuid.UUID):
        value = str(value)
    if kind in {"string", "bytes"} and type(found) is not type(value):
        # fastavro leaves the default of bytes as the characters that JSON has.
        as_bytes = [each.encode() if isinstance(each, str) else each for each in (found, value)]
        return as_bytes[0] == as_bytes[1] or (
            isinstance(value, str) and as_bytes[0] == value.encode("latin-1", "replace")
        )
    return bool(found == value)


def _agrees_union(found: Any, value: Any, schema: Any) -> bool:
    others = [branch for branch in schema if branch != "null"]
    if value is None or not others:
        return found is None
    if len(others) == 1:
        return agrees(found, value, others[0])
    there = [number for number, each in enumerate(found.values()) if each is not None]
    return len(there) == 1 and agrees(found[f"member{there[0]}"], value, others[there[0]])
