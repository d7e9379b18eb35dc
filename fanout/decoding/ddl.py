"""Schemas as text: `id BIGINT, name STRING`, as Spark writes them."""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa

from fanout.core.sentence import Option
from fanout.errors import OptionError

# https://spark.apache.org/docs/latest/sql-ref-datatypes.html
_TYPES: Final = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "BYTE": pa.int8(),
    "SMALLINT": pa.int16(),
    "SHORT": pa.int16(),
    "INT": pa.int32(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "LONG": pa.int64(),
    "FLOAT": pa.float32(),
    "REAL": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
    "TIMESTAMP_LTZ": pa.timestamp("us", "UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
}
_SQL_NAMES: Final = {kind: name for name, kind in reversed(_TYPES.items())}
_DECIMALS: Final = ("DECIMAL", "DEC", "NUMERIC")
_MOST_DIGITS: Final = 38
_MOST_NESTED: Final = 64
_TOKENS: Final = re.compile(r"`(?:[^`]|``)+`|\w+|'(?:[^'\\]|\\.)*'|[<>(),:]|\S.*", re.DOTALL)


def sql_name(kind: pa.DataType) -> str:
    """Return the name of a type as a user of Spark knows it."""
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    for name, is_kind in _NESTED.items():
        if is_kind(kind):
            return name
    return _SQL_NAMES.get(kind, str(kind))


def parse_ddl(text: str) -> pa.Schema:
    """Return the schema of a text such as `id BIGINT NOT NULL, items ARRAY<STRING>`."""
    return pa.schema(_DdlParser(text).fields(end=""))


class _DdlParser:
    """Reads a schema from left to right; the last token is empty."""

    def __init__(self, text: str) -> None:
        self._text = text
        found = ((each[0], each.start()) for each in _TOKENS.finditer(text))
        self._tokens = [*found, ("", len(text))]
        self._next = self._depth = 0

    def fields(self, end: str) -> list[pa.Field]:
        """Read fields up to a sign, or to the end of the text."""
        fields = [self._field()]
        while self._has(","):
            fields.append(self._field())
        self._expect(end, "',' or the end" if not end else "")
        names = [field.name for field in fields]
        if twice := [name for name in names if names.count(name) > 1]:
            raise self._error(f"names the field {twice[0]!r} twice")
        return fields

    def _field(self) -> pa.Field:
        name = self._take(r"\w+|`.*`", "the name of a field")
        if name[0] == "`":
            name = name[1:-1].replace("``", "`")
        self._has(":")
        kind, nullable = self._type(), True
        if self._has("NOT"):
            self._expect("NULL")
            nullable = False
        if self._has("COMMENT"):
            self._take(r"'.*'", "the text of the comment")
        return pa.field(name, kind, nullable)

    def _type(self) -> pa.DataType:
        name = self._take(r"\w+", "a type").upper()
        if self._depth >= _MOST_NESTED:
            raise self._error(f"nests more than {_MOST_NESTED} types")
        if name in _DECIMALS:
            return self._decimal()
        if name not in _NESTED:
            if name not in _TYPES:
                names = ", ".join([*reversed(_SQL_NAMES.values()), "DECIMAL", *_NESTED])
                raise self._error(f"has the unknown type {name}: take one of {names}")
            return _TYPES[name]
        self._expect("<")
        self._depth += 1
        if name == "STRUCT":
            kind = pa.struct(self.fields(end=">"))
        else:
            kinds = [self._type()]
            if name == "MAP":
                self._expect(",")
                kinds.append(self._type())
            self._expect(">")
            kind = pa.list_(*kinds) if name == "ARRAY" else pa.map_(*kinds)
        self._depth -= 1
        return kind

    def _decimal(self) -> pa.DataType:
        precision, scale = 10, 0  # Spark's own
        if self._has("("):
            precision = int(self._take(r"\d{1,9}", "a number of digits"))
            if self._has(","):
                scale = int(self._take(r"\d{1,9}", "a number of digits"))
            self._expect(")")
        if not 1 <= precision <= _MOST_DIGITS or scale > precision:
            raise self._error(
                f"has DECIMAL({precision}, {scale}): it has 1 to {_MOST_DIGITS} digits, "
                "and no more than these behind the point"
            )
        return pa.decimal128(precision, scale)

    def _has(self, wanted: str) -> bool:
        """Read a word or a sign if it is the next one."""
        found = self._tokens[self._next][0].upper() == wanted
        self._next += found
        return found

    def _expect(self, wanted: str, said: str = "") -> None:
        if not self._has(wanted):
            raise self._unexpected(said or repr(wanted))

    def _take(self, pattern: str, said: str) -> str:
        seen = self._tokens[self._next][0]
        if not re.fullmatch(pattern, seen, re.DOTALL):
            raise self._unexpected(said)
        self._next += 1
        return seen

    def _unexpected(self, wanted: str) -> OptionError:
        rest = self._text[self._tokens[self._next][1] :].strip()
        seen = repr(rest[:20]) if rest else "its end"
        return self._error(f"has {seen} where {wanted} is expected")

    def _error(self, problem: str) -> OptionError:
        return OptionError(Option("schema", self._text), f" {problem}")


_NESTED: Final = {
    "ARRAY": pa.types.is_list,
    "MAP": pa.types.is_map,
    "STRUCT": pa.types.is_struct,
}
