"""The table that a sink writes to in PostgreSQL, and the statements of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

from pyspark.sql import types

from fanout.errors import OptionError
from fanout.spark.tables.postgres_connection import quoted
from fanout.spark.tables.staging import BATCHES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql.types import DataType, StructType

# The types in which the driver of PostgreSQL copies what Spark gives to Python.
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
    types.TimestampType: "timestamptz",
    types.TimestampNTZType: "timestamp",
}


@final
@dataclass(frozen=True, slots=True)
class TargetTable:
    """A table as the database describes it.

    Args:
        schema: Its schema.
        name: Its name.
        columns: The type of each column, with its modifiers.
    """

    schema: str
    name: str
    columns: Mapping[str, str]

    def count(self, staging: Sequence[str], key: Sequence[str]) -> str:
        """Return the statement that counts the rows of staging tables, and those without a key.

        Args:
            staging: The tables, at least one.
            key: The columns of the key; none appends.
        """
        null = " OR ".join(f"{quoted(name)} IS NULL" for name in key) or "false"
        return (
            f"SELECT count(*), count(*) FILTER (WHERE {null}) "  # noqa: S608 - all is quoted
            f"FROM ({self._all_of(staging)}) AS s"
        )

    def insert(
        self,
        names: Sequence[str],
        staging: Sequence[str],
        key: Sequence[str],
        latest_by: str | None,
    ) -> str:
        """Return the statement that takes the rows of staging tables over.

        Args:
            names: The columns of the rows.
            staging: The tables, at least one.
            key: The columns of the key; none appends.
            latest_by: The column whose greatest value is the newest row of a key.
        """
        listed = ", ".join(map(quoted, names))
        cast = ", ".join(f"{quoted(name)}::{self.columns[name]}" for name in names)
        tables = self._all_of(staging)
        target = f"INSERT INTO {quoted(self.schema, self.name)} AS t ({listed})"
        if latest_by is None:
            return f"{target} SELECT {cast} FROM ({tables}) AS s"  # noqa: S608 - all is quoted
        of_key, order = ", ".join(map(quoted, key)), quoted(latest_by)
        newest = (
            f"SELECT DISTINCT ON ({of_key}) {cast} FROM ({tables}) AS s "  # noqa: S608 - all is quoted
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
    """Return the schema, if there is one, and the name of a table.

    Args:
        table: The option.

    Raises:
        OptionError: It is no name.
    """
    parts = tuple(table.split(".")) if isinstance(table, str) else ()
    if len(parts) not in {1, 2} or not all(parts):
        raise OptionError(f"table={table!r} must be a name, or a schema, a dot and a name")
    return parts


def column_types(schema: StructType) -> dict[str, str]:
    """Return the types in which columns of a DataFrame are copied.

    Args:
        schema: The schema of the DataFrame.

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

    Args:
        database: A connection, in a transaction.
        table: The option.

    Raises:
        OptionError: There is no such table.
    """
    with database.cursor() as cursor:
        cursor.execute(
            "SELECT n.nspname::text, c.relname::text, a.attname::text,"
            " format_type(a.atttypid, a.atttypmod)"
            " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " JOIN pg_attribute a ON a.attrelid = c.oid"
            " WHERE c.oid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped",
            (quoted(*name_parts(table)),),
        )
        found = cursor.fetchall()
        if not found:
            raise OptionError(
                f"the database has no table {table}: create it, with the columns of the DataFrame"
            )
        schema, name = found[0][:2]
        _provide_batches(cursor, quoted(schema, BATCHES))
    return TargetTable(schema, name, {column: kind for *_, column, kind in found})


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
