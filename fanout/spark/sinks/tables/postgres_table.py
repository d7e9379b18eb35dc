"""The table that a sink writes to in PostgreSQL, and the statements of a batch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

from pyspark.sql import types

from fanout.errors import OptionError
from fanout.spark.sinks.tables.columns import BATCHES
from fanout.spark.sinks.tables.postgres_connection import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql.types import DataType, StructType

# The types in which the driver of PostgreSQL copies what Spark gives to Python, by the names that
# PostgreSQL gives them.
_TYPES: Final[Mapping[type[DataType], str]] = {
    types.BooleanType: "boolean",
    types.ByteType: "smallint",
    types.ShortType: "smallint",
    types.IntegerType: "integer",
    types.LongType: "bigint",
    types.FloatType: "real",
    types.DoubleType: "double precision",
    types.DecimalType: "numeric",
    types.StringType: "text",
    types.BinaryType: "bytea",
    types.DateType: "date",
    types.TimestampType: "timestamp with time zone",
    types.TimestampNTZType: "timestamp without time zone",
}

# They keep the first bytes of a string.
_SHORTENING: Final = ("name", '"char"')
# The driver copies the first instant and the first date of Spark as -infinity.
_OF_TIME: Final = ("timestamp with time zone", "timestamp without time zone", "date")
# Where only a time zone makes values of the one type of those of the others.
_NEED_ZONE: Final[Mapping[str, tuple[str, ...]]] = {
    "timestamp with time zone": (
        "timestamp without time zone",
        "date",
        "time without time zone",
        "time with time zone",
    ),
    "timestamp without time zone": ("timestamp with time zone", "time with time zone"),
    "date": ("timestamp with time zone",),
}
# A part of a name is taken as it is, or has quotation marks around it as in SQL.
_PART: Final = r'"(?:[^"]|"")+"|[^".]+'
_NAME: Final = re.compile(rf"(?:({_PART})\.)?({_PART})")
# The columns with their types, and with those behind them: without modifiers, and what domains are
# made of. format_type says "bit" with -1, where bit would be bit(1).
_COLUMNS: Final = """
    WITH RECURSIVE behind (attnum, type, of_array) AS (
        SELECT attnum, atttypid, false FROM pg_attribute
        WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped
      UNION ALL
        SELECT b.attnum, CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE e.oid END,
            b.of_array OR t.typtype <> 'd'
        FROM behind b JOIN pg_type t ON t.oid = b.type
        LEFT JOIN pg_type e ON e.oid = t.typelem AND e.typarray = t.oid
        WHERE t.typtype = 'd' OR e.oid IS NOT NULL
    )
    SELECT n.nspname::text, c.relname::text, a.attname::text,
        format_type(a.atttypid, a.atttypmod),
        format_type(b.type, -1) || CASE WHEN b.of_array THEN '[]' ELSE '' END
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_attribute a ON a.attrelid = c.oid
    JOIN behind b ON b.attnum = a.attnum
    JOIN pg_type t ON t.oid = b.type
    LEFT JOIN pg_type e ON e.oid = t.typelem AND e.typarray = t.oid
    WHERE c.oid = to_regclass($1) AND t.typtype <> 'd' AND e.oid IS NULL
    ORDER BY a.attnum"""


@final
@dataclass(frozen=True, slots=True)
class TargetColumn:
    """A column as the database describes it."""

    kind: str  # its type, with its modifiers
    base: str  # the type behind it: without modifiers, and what a domain is made of

    def check_takes(self, name: str, copied: str) -> None:
        """Check that the values of a DataFrame's column, copied as a type, can be of this one.

        Raises:
            OptionError: PostgreSQL would need a time zone, or spell bytes out.
        """
        given, base = copied.removesuffix("[]"), self.base.removesuffix("[]")
        if base in _NEED_ZONE.get(given, ()):
            raise OptionError(
                f"the column {name!r} is copied as {copied}, and the table has {self.kind}: only a "
                f"time zone makes the one of the other; cast it in transform, where the zone is "
                f"spark.sql.session.timeZone, or change the column of the table"
            )
        if given == "bytea" != base:
            raise OptionError(
                f"the column {name!r} is binary, and the table has {self.kind}: cast it in "
                f"transform, for example to string, or change the column of the table"
            )

    def alters(self, name: str, copied: str) -> str:
        """Return the condition of rows whose value the column would alter; empty if there are none.

        What is `copied` as text for a type that is none is what PostgreSQL reads in it.
        """
        value, found = quoted(name), []
        cast = f"{value}::{self.base}"
        if self.kind != self.base:
            found.append(f"{cast}::{self.kind}::{self.base} IS DISTINCT FROM {cast}")
        is_read = copied in {"text", "text[]"}
        if copied != self.base and not (is_read and self.base.strip("[]") not in _SHORTENING):
            found.append(f"{cast}::{copied} IS DISTINCT FROM {value}")
        if copied in _OF_TIME:
            found.append(f"NOT isfinite({value})")
        elif copied.removesuffix("[]") in _OF_TIME:
            found.append(f"{value} && '{{-infinity}}'")
        return " OR ".join(found)


@final
@dataclass(frozen=True, slots=True)
class TargetTable:
    """A table as the database describes it, with its columns by their names."""

    schema: str
    name: str
    columns: Mapping[str, TargetColumn]

    def altering(self, copied: Mapping[str, str]) -> dict[str, str]:
        """Return the conditions of rows whose values the table would alter, by column.

        `copied` has the types in which the columns are copied.
        """
        found = {name: self.columns[name].alters(name, kind) for name, kind in copied.items()}
        return {name: condition for name, condition in found.items() if condition}

    def count(self, staging: Sequence[str], key: Sequence[str], altering: Mapping[str, str]) -> str:
        """Return the statement that counts the rows of staging tables, and those that are refused.

        They are those without a key, and those with a value that the table would alter, by column.
        There is at least one table; without a key rows are appended.
        """
        null = " OR ".join(f"{quoted(name)} IS NULL" for name in key) or "false"
        counts = [f"count(*) FILTER (WHERE {where})" for where in (null, *altering.values())]
        return f"SELECT count(*), {', '.join(counts)} FROM ({self._all_of(staging)}) AS s"  # noqa: S608 - all is quoted

    def insert(
        self,
        names: Sequence[str],
        staging: Sequence[str],
        key: Sequence[str],
        latest_by: str | None,
    ) -> str:
        """Return the statement that takes the rows of staging tables, at least one, over.

        Without a key they are appended.
        """
        listed = ", ".join(map(quoted, names))
        # The assignment checks lengths, which a cast to the type with its modifiers would cut to.
        cast = ", ".join(
            f"{quoted(name)}::{self.columns[name].base} AS {quoted(name)}" for name in names
        )
        rows = f"SELECT {cast} FROM ({self._all_of(staging)}) AS s"  # noqa: S608 - all is quoted
        target = f"INSERT INTO {quoted(self.schema, self.name)} AS t ({listed})"
        if latest_by is None:
            return f"{target} {rows}"
        of_key, order = ", ".join(map(quoted, key)), quoted(latest_by)
        newest = (
            f"SELECT DISTINCT ON ({of_key}) * FROM ({rows}) AS s "  # noqa: S608 - all is quoted
            f"ORDER BY {of_key}, {order} DESC NULLS LAST"
        )
        changed = ", ".join(
            f"{quoted(name)} = excluded.{quoted(name)}" for name in names if name not in key
        )
        return (
            f"{target} {newest} ON CONFLICT ({of_key}) DO UPDATE SET {changed} "
            f"WHERE t.{order} IS NULL OR excluded.{order} >= t.{order}"
        )

    def _all_of(self, staging: Sequence[str]) -> str:
        return " UNION ALL ".join(f"TABLE {quoted(self.schema, one)}" for one in staging)


def name_parts(table: str) -> tuple[str, ...]:
    """Return the schema, if there is one, and the name of a table; OptionError for no name."""
    found = _NAME.fullmatch(table) if isinstance(table, str) else None
    if found is None:
        raise OptionError(
            f"table={table!r} must be a name, or a schema, a dot and a name; one with a dot in it "
            f"stands between quotation marks"
        )
    return tuple(
        part[1:-1].replace('""', '"') if part.startswith('"') else part
        for part in found.groups()
        if part is not None
    )


def column_types(schema: StructType) -> dict[str, str]:
    """Return the types in which columns of a DataFrame are copied.

    Raises:
        OptionError: A column has a type that PostgreSQL has not.
    """
    return {column.name: _copied(column.name, column.dataType) for column in schema}


def _copied(name: str, kind: DataType) -> str:
    if isinstance(kind, types.ArrayType) and type(kind.elementType) in _TYPES:
        return f"{_TYPES[type(kind.elementType)]}[]"
    if type(kind) not in _TYPES:
        raise OptionError(
            f"the column {name!r} is {kind.simpleString()}, which PostgreSQL has not: make a "
            f"string of it, for example with to_json"
        )
    return _TYPES[type(kind)]


def find_table(database: Any, table: str) -> TargetTable:
    """Find a table, and create the one with the newest batches where it is missing.

    Raises:
        OptionError: There is no such table.
    """
    with database.cursor() as cursor:
        cursor.execute(_COLUMNS, (quoted(*name_parts(table)),))
        found = cursor.fetchall()
        if not found:
            raise _no_table(cursor, table)
        schema, name = found[0][:2]
        _provide_batches(cursor, quoted(schema, BATCHES))
    columns = {column: TargetColumn(kind, base) for *_, column, kind, base in found}
    return TargetTable(schema, name, columns)


def _no_table(cursor: Any, table: str) -> OptionError:
    """Return the error of a table that is not there, with those whose names differ in case."""
    parts = name_parts(table)
    cursor.execute(
        "SELECT DISTINCT n.nspname || '.' || c.relname FROM pg_class c"
        " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p')"
        " AND lower(c.relname) = lower($1) AND lower(n.nspname) = lower(coalesce($2, n.nspname))",
        (parts[-1], parts[0] if len(parts) > 1 else None),
    )
    if like := [name for (name,) in cursor.fetchall()]:
        return OptionError(
            f"the database has no table {table} that this user's search path leads to, but "
            f"{', '.join(sorted(like))}: table names it with its schema, and in the same case"
        )
    return OptionError(
        f"the database has no table {table}: create it, with the columns of the DataFrame"
    )


def _provide_batches(cursor: Any, batches: str) -> None:
    """Create the table with the newest batches, or its column that is missing."""
    cursor.execute(
        "SELECT 1 FROM pg_attribute WHERE attrelid = to_regclass($1) AND attname = 'content'",
        (batches,),
    )
    if cursor.fetchone() is not None:
        return
    # IF NOT EXISTS fails where another transaction creates the table at the same time.
    cursor.execute("SELECT pg_advisory_xact_lock(hashtext($1))::text", (BATCHES,))
    cursor.fetchall()
    cursor.execute(
        f"CREATE TABLE IF NOT EXISTS {batches} (writer text PRIMARY KEY,"
        f" batch_id bigint NOT NULL, written_at timestamptz NOT NULL, content text)"
    )
    cursor.execute(f"ALTER TABLE {batches} ADD COLUMN IF NOT EXISTS content text")
