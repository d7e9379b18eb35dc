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
_MOST_DIGITS: Final = 38
_DECIMALS: Final = ("DECIMAL", "DEC", "NUMERIC")
_MOST_NESTED: Final = 64
_TOKEN: Final = re.compile(
    r"\s*(?:(?P<quoted>`(?:[^`]|``)+`)|(?P<word>\w+)|(?P<text>'(?:[^'\\]|\\.)*')|(?P<sign>[<>(),:]))"
)


def sql_name(kind: pa.DataType) -> str:
    """Return the name of a type as a user of Spark knows it."""
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    if pa.types.is_list(kind):
        return "ARRAY"
    if pa.types.is_struct(kind):
        return "STRUCT"
    return "MAP" if pa.types.is_map(kind) else _SQL_NAMES.get(kind, str(kind))


def parse_ddl(text: str) -> pa.Schema:
    """Return the schema of a text such as `id BIGINT NOT NULL, items ARRAY<STRUCT<sku: STRING>>`.

    Raises:
        OptionError: If the text cannot be read, which says where.
    """
    parser = _Parser(text)
    fields = parser.fields(end="")
    return pa.schema(fields)


class _Parser:
    """Reads a schema from left to right, one token ahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._end = 0
        self._depth = 0
        self._next()

    def fields(self, end: str) -> list[pa.Field]:
        """Read fields up to a sign, or to the end of the text."""
        fields = [self._field()]
        while self._seen == ",":
            self._next()
            fields.append(self._field())
        self._expect(end)
        names = [field.name for field in fields]
        for name in names:
            if names.count(name) > 1:
                raise self._error(f"names the field {name!r} twice")
        return fields

    def _field(self) -> pa.Field:
        if self._kind not in {"word", "quoted"}:
            raise self._unexpected("the name of a field")
        name = self._seen if self._kind == "word" else self._seen[1:-1].replace("``", "`")
        self._next()
        if self._seen == ":":
            self._next()
        kind = self._type()
        nullable = True
        if self._seen.upper() == "NOT":
            self._next()
            self._expect("NULL")
            nullable = False
        if self._seen.upper() == "COMMENT":
            self._next()
            if self._kind != "text":
                raise self._unexpected("the text of the comment")
            self._next()
        return pa.field(name, kind, nullable)

    def _type(self) -> pa.DataType:
        name = self._seen.upper()
        self._depth += 1
        if self._depth > _MOST_NESTED:
            raise self._error(f"nests more than {_MOST_NESTED} types")
        if self._kind != "word":
            raise self._unexpected("a type")
        self._next()
        kind = self._parameters(name)
        self._depth -= 1
        return kind

    def _parameters(self, name: str) -> pa.DataType:
        if name in _DECIMALS:
            return self._decimal()
        if name == "ARRAY":
            self._expect("<")
            item = self._type()
            self._expect(">")
            return pa.list_(item)
        if name == "MAP":
            self._expect("<")
            key = self._type()
            self._expect(",")
            value = self._type()
            self._expect(">")
            return pa.map_(key, value)
        if name == "STRUCT":
            self._expect("<")
            return pa.struct(self.fields(end=">"))
        if name not in _TYPES:
            names = ", ".join(reversed(_SQL_NAMES.values()))
            raise self._error(
                f"has the unknown type {name}: take one of {names}, DECIMAL, ARRAY, MAP and STRUCT"
            )
        return _TYPES[name]

    def _decimal(self) -> pa.DataType:
        digits = [10, 0]  # Spark's own
        if self._seen == "(":
            for place, sign in enumerate("(,"):
                if self._seen != sign:
                    break
                self._next()
                if not self._seen.isdecimal():
                    raise self._unexpected("a number of digits")
                digits[place] = int(self._seen)
                self._next()
            self._expect(")")
        precision, scale = digits
        if not 1 <= precision <= _MOST_DIGITS or scale > precision:
            raise self._error(
                f"has DECIMAL({precision}, {scale}): it has 1 to {_MOST_DIGITS} digits, "
                "and no more than these behind the point"
            )
        return pa.decimal128(precision, scale)

    def _expect(self, token: str) -> None:
        if self._seen.upper() != token:
            raise self._unexpected(repr(token) if token else "',' or the end")
        if token:
            self._next()

    def _next(self) -> None:
        self._begin = self._end
        rest = self._text[self._end :].strip()
        found = _TOKEN.match(self._text, self._end)
        if rest and not found:
            raise self._unexpected("a name or a sign")
        self._kind = str(found.lastgroup) if rest and found else "end"
        self._seen = found[self._kind] if rest and found else ""
        self._end = found.end() if rest and found else len(self._text)

    def _unexpected(self, wanted: str) -> OptionError:
        seen = self._text[self._begin :].strip()
        shown = f"{seen[:20]!r}" if seen else "its end"
        return self._error(f"has {shown} where {wanted} is expected")

    def _error(self, problem: str) -> OptionError:
        return OptionError(Option("schema", self._text), f" {problem}")
