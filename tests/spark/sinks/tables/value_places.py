"""Where sinks store values, and how clients that are not ours read them."""

from __future__ import annotations

import itertools
import struct
from abc import ABC, abstractmethod
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, final
from urllib.parse import unquote_to_bytes

import psycopg
import pyarrow as pa
from pyarrow import parquet

from fanout.spark import ParquetSink, PostgresSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from fanout.spark.query.batch_runner import Handler
    from tests.spark.sinks.tables.jdbc_databases import Database
    from tests.spark.sinks.tables.value_kinds import Column, Kind

_NAMES = itertools.count(1)


class Place(ABC):
    """What a sink writes to: a new table or directory for each batch."""

    @abstractmethod
    def types(self, kind: Kind) -> Sequence[str]:
        """Return the types that a column may have for values of Spark's type, its own one first."""

    def signs_zero(self, target: str) -> bool:  # noqa: ARG002 - the protocol's
        """Return whether a type tells -0.0 from 0.0; elsewhere both are the same number."""
        return True

    @abstractmethod
    def sink(self, columns: Sequence[Column]) -> Handler:
        """Return a sink for rows of `id`, `v0`, `v1`, ..."""

    @abstractmethod
    def read(self, number: int, kind: Kind) -> Iterator[tuple[int, Any]]:
        """Yield the id and the raw value of each row of a column that the last sink has stored."""


@final
class PostgresPlace(Place):
    """Tables of PostgreSQL, read by psycopg."""

    _TYPES: Final[Mapping[str, tuple[str, ...]]] = {
        "boolean": ("boolean", "text", "integer"),
        "tinyint": ("smallint", "numeric(3, 1)", "real"),
        "smallint": ("smallint", "integer", "text", "numeric(4, 0)"),
        "int": ("integer", "smallint", "real", "bigint", "boolean"),
        "bigint": ("bigint", "double precision", "integer", "numeric", "text", "real"),
        "float": ("real", "double precision", "numeric", "text", "integer"),
        "double": ("double precision", "real", "numeric", "text", "numeric(9, 3)"),
        "string": ("text", "varchar(3)", "name", '"char"', "short", "varchar"),
        "binary": ("bytea",),
        "date": ("date", "timestamp", "text"),
        "timestamp": ("timestamptz", "timestamptz(0)", "text", "timestamptz(3)"),
        "timestamp_ntz": ("timestamp", "timestamp(0)", "date", "text"),
        "array<string>": ("text[]", "varchar(3)[]", "name[]", "shorts"),
        "array<decimal(38,18)>": ("numeric[]", "numeric(20, 9)[]", "double precision[]"),
        "array<date>": ("date[]", "text[]"),
        "array<timestamp>": ("timestamptz[]", "timestamptz(0)[]"),
    }
    _OWN: Final = ("numeric", "double precision", "numeric(20, 4)", "integer", "text", "real")
    _RAW: Final = {
        "float": "v::float8",
        "string": "convert_to(v::text, 'UTF8')",
        "date": "v - date '1970-01-01'",
        # The epoch of the last instants themselves is rounded.
        "timestamp": "(extract(epoch FROM v - timestamptz '2000-01-01 00:00:00Z') * 1000000)"
        "::numeric(30) + 946684800000000",
        "timestamp_ntz": "(extract(epoch FROM v - timestamp '2000-01-01 00:00:00') * 1000000)"
        "::numeric(30) + 946684800000000",
    }

    def __init__(self, url: str) -> None:
        self._url, self._table = url, ""
        with psycopg.connect(url) as database:
            database.execute("CREATE DOMAIN short AS varchar(2); CREATE DOMAIN shorts AS short[]")

    def types(self, kind: Kind) -> Sequence[str]:
        return self._TYPES.get(kind.name, self._OWN)

    def signs_zero(self, target: str) -> bool:
        return not target.startswith(("numeric", "integer"))

    def sink(self, columns: Sequence[Column]) -> Handler:
        self._table = f"t{next(_NAMES)}"
        with psycopg.connect(self._url) as database:
            database.execute(f"CREATE TABLE {self._table} ({_listed(columns)})")
        return PostgresSink(table=self._table, dsn=self._url)

    def read(self, number: int, kind: Kind) -> Iterator[tuple[int, Any]]:
        own, element = self.types(kind)[0], kind.name.removeprefix("array<").removesuffix(">")
        raw = self._RAW.get(element, "v")
        of_array = element != kind.name
        if of_array:
            raw = (
                f"CASE WHEN v IS NOT NULL THEN ARRAY(SELECT {raw} FROM unnest(v)"  # noqa: S608 - ours
                f" WITH ORDINALITY AS u (v, n) ORDER BY n) END"
            )
        stored = f"SELECT id, v{number}::{own} AS v FROM {self._table}"  # noqa: S608 - ours
        query = f"SELECT id, {raw} FROM ({stored}) AS t"  # noqa: S608 - ours
        with psycopg.connect(self._url) as database:
            yield from database.execute(query).fetchall()


@final
class JdbcPlace(Place):
    """Tables of a database in Spark's JVM, read by its own driver."""

    _TYPES: Final[Mapping[str, tuple[str, ...]]] = {
        "boolean": ("boolean",),
        "tinyint": ("smallint", "decimal(3, 1)", "real"),
        "smallint": ("smallint", "integer", "decimal(4, 0)", "real"),
        "int": ("integer", "smallint", "real", "bigint", "double precision"),
        "bigint": ("bigint", "double precision", "integer", "decimal(30, 2)", "real"),
        "float": ("real", "double precision", "decimal(20, 5)", "integer"),
        "double": ("double precision", "real", "decimal(20, 5)", "integer"),
        "string": ("varchar(1048576)", "varchar(3)", "clob"),
        "binary": ("varbinary(1048576)", "binary(3)", "blob"),
        "date": ("date", "timestamp"),
        "timestamp": ("timestamp with time zone", "timestamp", "timestamp(0)", "date"),
        "timestamp_ntz": ("timestamp", "timestamp(0)", "date"),
    }
    # It has no time with a zone, and its decimals have 31 digits.
    _DERBY: Final[Mapping[str, tuple[str, ...]]] = {
        **_TYPES,
        "string": ("clob", "varchar(32672)", "varchar(3)"),
        "binary": ("blob", "varchar(32672) for bit data", "varchar(3) for bit data"),
        "timestamp": ("timestamp", "date"),
        "timestamp_ntz": ("timestamp", "date"),
        "decimal(38,0)": ("decimal(31, 0)", "decimal(20, 4)"),
        "decimal(38,18)": ("decimal(31, 18)", "decimal(20, 4)"),
        "decimal(38,38)": ("decimal(31, 31)", "decimal(20, 4)"),
    }
    _OF_TIME: Final = {
        "date": "LocalDate",
        "timestamp": "OffsetDateTime",
        "timestamp_ntz": "LocalDateTime",
    }

    def __init__(self, database: Database) -> None:
        self._database, self._table = database, ""
        self._is_derby = database.url.startswith("jdbc:derby:")

    def types(self, kind: Kind) -> Sequence[str]:
        if self._is_derby and kind.name in self._DERBY:
            return self._DERBY[kind.name]
        if kind.name.startswith("decimal"):
            return (kind.name, "decimal(20, 4)", "double precision", "integer", "real")
        return self._TYPES.get(kind.name, ("varchar(9)",))

    def signs_zero(self, target: str) -> bool:  # noqa: ARG002 - H2 and Derby never do
        return False

    def sink(self, columns: Sequence[Column]) -> Handler:
        self._table = f"t{next(_NAMES)}"
        self._database.run(f"CREATE TABLE {self._table} ({_listed(columns)})")
        return self._database.sink(table=self._table)

    def read(self, number: int, kind: Kind) -> Iterator[tuple[int, Any]]:
        own = self.types(kind)[0]
        value = f"CAST(v{number} AS {own})"
        if self._is_derby and kind.name in self._OF_TIME:
            value = f"CAST({value} AS varchar(40))"
        null = f"CASE WHEN v{number} IS NULL THEN 1 ELSE 0 END"
        query = f"SELECT id, {value}, {null} FROM {self._table}"  # noqa: S608 - ours
        with self._database.connection() as connection:
            found = connection.createStatement().executeQuery(query)
            get = self._getter(kind)
            while found.next():
                yield found.getInt(1), None if found.getInt(3) else get(found)

    def _getter(self, kind: Kind) -> Callable[[Any], Any]:
        java: Any = self._database.spark._jvm
        micros = java.java.time.temporal.ChronoUnit.MICROS
        if self._is_derby and kind.name in self._OF_TIME:  # its driver has none of java.time
            return lambda found: _of_name(kind, found.getString(2).encode())
        if kind.name in self._OF_TIME:
            named = f"java.time.{self._OF_TIME[kind.name]}"
            asked = java.org.apache.spark.util.Utils.classForName(named, True, False)  # noqa: FBT003
            if kind.name == "date":
                return lambda found: found.getObject(2, asked).toEpochDay()
            zero = java.java.time.LocalDateTime.of(1970, 1, 1, 0, 0)
            if kind.name == "timestamp":
                zero = zero.atOffset(java.java.time.ZoneOffset.UTC)
            return lambda found: micros.between(zero, found.getObject(2, asked))
        getters: dict[str, Callable[[Any], Any]] = {
            "string": lambda found: found.getString(2).encode("utf-8", "surrogatepass"),
            "binary": lambda found: found.getBytes(2),
            "decimal": lambda found: found.getBigDecimal(2),
            "float": lambda found: found.getDouble(2),
            "double": lambda found: found.getDouble(2),
        }
        return getters.get(kind.name.partition("(")[0], lambda found: found.getObject(2))


@final
class ParquetPlace(Place):
    """Directories of Parquet files, read by pyarrow; the values may be names of directories."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._path = directory, directory

    def types(self, kind: Kind) -> Sequence[str]:  # noqa: ARG002 - the protocol's
        return ("column", "directory")

    def sink(self, columns: Sequence[Column]) -> Handler:
        self._path = self._directory / f"p{next(_NAMES)}"
        names = [f"v{n}" for n, column in enumerate(columns) if column.target == "directory"]
        return ParquetSink(path=str(self._path), partition_by=names)

    def read(self, number: int, kind: Kind) -> Iterator[tuple[int, Any]]:
        for marker in self._path.rglob("_SUCCESS"):
            for file in marker.parent.rglob("*.parquet"):
                found = parquet.ParquetFile(file, coerce_int96_timestamp_unit="us").read()
                ids, parts = found["id"].to_pylist(), dict(_named_parts(file))
                if (name := parts.get(f"v{number}")) is None:
                    yield from zip(ids, _raw(found[f"v{number}"].combine_chunks()), strict=True)
                else:
                    yield from ((one, _of_name(kind, name)) for one in ids)


def _named_parts(file: Path) -> Iterator[tuple[str, bytes]]:
    for part in file.parts:
        name, _, value = part.partition("=")
        yield name, unquote_to_bytes(value)


def _listed(columns: Sequence[Column]) -> str:
    """Return the columns of a table as SQL has them."""
    return ", ".join(["id int", *(f"v{n} {column.target}" for n, column in enumerate(columns))])


def _raw(values: Any) -> list[Any]:
    """Return the raw values of an array of Arrow."""
    kind = values.type
    if pa.types.is_list(kind):
        elements = _raw(values.flatten()) if len(values) else []
        lengths = values.value_lengths().to_pylist()
        taken = iter(elements)
        return [None if n is None else [*itertools.islice(taken, n)] for n in lengths]
    if pa.types.is_date32(kind):
        values = values.view(pa.int32())
    elif pa.types.is_timestamp(kind):
        values = values.cast(pa.timestamp("us", kind.tz)).view(pa.int64())
    elif pa.types.is_string(kind):
        values = values.view(pa.binary())
    return [*values.to_pylist()]


def _of_name(kind: Kind, name: bytes) -> Any:  # noqa: PLR0911 - one for each type
    """Return the raw value that the name of a directory stands for."""
    if name == b"__HIVE_DEFAULT_PARTITION__":
        return None
    if kind.name == "string":
        return name
    text = name.decode()
    if kind.name == "boolean":
        return {"true": True, "false": False}[text]
    if kind.name == "date":
        return _days(text)
    if kind.name.startswith("timestamp"):
        day, _, clock = text.removesuffix("Z").partition(" ")
        hour, minute, second = clock.split(":")
        whole, _, fraction = second.partition(".")
        seconds = (int(hour) * 60 + int(minute)) * 60 + int(whole)
        return (_days(day) * 86400 + seconds) * 1_000_000 + int(fraction.ljust(6, "0"))
    if kind.name.startswith("decimal"):
        return Decimal(text)
    if kind.name == "float":
        return struct.unpack("f", struct.pack("f", float(text)))[0]
    return float(text) if kind.name == "double" else int(text)


def _days(text: str) -> int:
    """Return the days since 1970 of a date in the proleptic calendar, of any year."""
    sign, digits = (-1, text[1:]) if text[0] == "-" else (1, text.removeprefix("+"))
    year, month, day = map(int, digits.split("-"))
    year = sign * year - (month <= 2)  # it ends with February here
    days = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return year * 365 + year // 4 - year // 100 + year // 400 + days - 719468
