"""Schemas of Avro, parsed: https://avro.apache.org/docs/1.12.0/specification/."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from fanout.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PRIMITIVES: Final = frozenset(
    {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
)
_MOST_NESTED: Final = 64
# Of a schema whose types are written out where they are named.
_MOST_TYPES: Final = 20_000
MISSING: Final = object()
"""The default of a field that has none."""


@dataclass(slots=True, eq=False)
class AvroField:
    """A field of a record."""

    name: str
    type: AvroType
    default: Any = MISSING
    aliases: Sequence[str] = ()


@dataclass(slots=True, eq=False)
class AvroType:
    """A type, and what belongs to its kind."""

    kind: str
    name: str = ""  # the full name of a record, an enum or a fixed
    aliases: Sequence[str] = ()
    logical: str | None = None
    unit: str | None = None  # the logical type of a time, also one that has no column of its own
    precision: int = 0
    scale: int = 0
    size: int = 0
    symbols: Sequence[str] = ()
    default: Any = MISSING
    fields: list[AvroField] = field(default_factory=list)
    items: AvroType | None = None  # of an array, and the values of a map
    branches: list[AvroType] = field(default_factory=list)


def parse_avro(*texts: str) -> AvroType:
    """Return the type of the last schema; the others are those that it refers to."""
    parser = _AvroParser()
    for text in texts:
        try:
            schema = json.loads(text)
        except ValueError:
            schema = text  # the name of a primitive type, without quotes
        except RecursionError:
            raise OptionError("the schema of Avro is nested too deeply") from None
        try:
            found = parser.parse(schema, "", 0)
        except (AttributeError, KeyError, TypeError) as error:
            raise OptionError("the schema of Avro is malformed") from error
    if _count(found, {}) > _MOST_TYPES:
        raise OptionError(f"the schema of Avro has more than {_MOST_TYPES} types in one another")
    return found


def _count(kind: AvroType, known: dict[int, int]) -> int:
    """Return how many types a type is, written out; `known` has those that were counted."""
    if id(kind) not in known:
        inner = [field.type for field in kind.fields] + kind.branches
        inner += [] if kind.items is None else [kind.items]
        known[id(kind)] = 1 + sum(_count(each, known) for each in inner)
    return known[id(kind)]


class _AvroParser:
    def __init__(self) -> None:
        self._named: dict[str, AvroType] = {}
        self._open: set[str] = set()

    def parse(self, schema: Any, namespace: str, depth: int) -> AvroType:
        if depth > _MOST_NESTED:
            raise OptionError("the schema of Avro is nested too deeply")
        if isinstance(schema, str):
            return self._reference(schema, namespace)
        if isinstance(schema, list):
            branches = [self.parse(each, namespace, depth + 1) for each in schema]
            return AvroType("union", branches=branches)
        kind = schema.get("type") if isinstance(schema, dict) else None
        if isinstance(kind, dict | list):
            return self.parse(kind, namespace, depth + 1)
        if kind in {"record", "error", "enum", "fixed"}:
            return self._define(schema, namespace, depth)
        if kind in {"array", "map"}:
            inner = self.parse(
                schema.get("items" if kind == "array" else "values"), namespace, depth + 1
            )
            return AvroType(kind, items=inner)
        if not isinstance(kind, str):
            raise OptionError("a part of the schema of Avro has no type")
        found = self._reference(kind, namespace)
        return _logical(found, schema) if found.kind in PRIMITIVES else found

    def _reference(self, name: str, namespace: str) -> AvroType:
        if name in PRIMITIVES:
            return AvroType(name)
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        if full in self._open:
            raise OptionError(f"the schema of Avro has {full} in itself: columns have an end")
        found = self._named.get(full) or self._named.get(name)
        if found is None:
            raise OptionError(f"the schema of Avro has the unknown type {name}")
        return found

    def _define(self, schema: Mapping[str, Any], namespace: str, depth: int) -> AvroType:
        name = schema.get("name")
        if not isinstance(name, str) or not name:
            raise OptionError(f"a {schema['type']} in the schema of Avro has no name")
        space = name.rpartition(".")[0] or schema.get("namespace", namespace) or ""
        full = name if "." in name or not space else f"{space}.{name}"
        aliases = [
            each if "." in each or not space else f"{space}.{each}"
            for each in schema.get("aliases", ())
        ]
        made = AvroType(schema["type"], full, aliases)
        if made.kind == "enum":
            made.symbols = tuple(schema.get("symbols", ()))
            made.default = schema.get("default", MISSING)
        elif made.kind == "fixed":
            made.size = schema.get("size", -1)
            if not isinstance(made.size, int) or made.size < 0:
                raise OptionError(f"{full} in the schema of Avro has no size")
            made = _logical(made, schema)
        else:
            made.kind = "record"
            self._open.add(full)
            for each in schema.get("fields", ()):
                kind = self.parse(each.get("type"), space, depth + 1)
                default, aliases = each.get("default", MISSING), each.get("aliases", ())
                made.fields.append(AvroField(each["name"], kind, default, aliases))
            self._open.discard(full)
        self._named[full] = made
        return made


def _logical(found: AvroType, schema: Mapping[str, Any]) -> AvroType:
    """Add the logical type; one that does not fit is ignored, as Avro says."""
    name = schema.get("logicalType")
    if name == "decimal" and found.kind in {"bytes", "fixed"}:
        precision, scale = schema.get("precision", 0), schema.get("scale", 0)
        if isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision > 0:
            found.logical, found.precision, found.scale = name, precision, scale
    elif (name, found.kind) in _LOGICAL:
        found.logical = name
    if found.kind in {"int", "long"} and isinstance(name, str) and name.startswith(_TIMES):
        found.unit = name
    return found


_TIMES: Final = ("date", "time-", "timestamp-", "local-timestamp-")
_LOGICAL: Final = {
    ("date", "int"),
    ("timestamp-millis", "long"),
    ("timestamp-micros", "long"),
    ("local-timestamp-millis", "long"),
    ("local-timestamp-micros", "long"),
}
