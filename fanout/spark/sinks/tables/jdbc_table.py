"""The table that a sink writes to over JDBC, and the statements of a batch, in portable SQL."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

from fanout.errors import BatchNotWrittenError, OptionError, SetupError
from fanout.spark.sinks.sink_batch import WrittenBatch
from fanout.spark.sinks.tables.columns import BATCHES
from fanout.spark.sinks.tables.jdbc_connection import sql_errors
from fanout.spark.sinks.tables.jdbc_values import JdbcColumn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from fanout.spark.sinks.sink_batch import SinkBatch

_PART: Final = r'(?:[^\W\d][\w$#]*|"[^"]+"|`[^`]+`|\[[^\]]+\])'
_NAME: Final = re.compile(rf"((?:{_PART}\.){{0,2}}){_PART}")
# These have their own statement for an empty table with the columns of another one.
_WITH_NO_DATA: Final = ("Apache Derby", "DB2", "HSQL")
# What a foreign key does with its rows when one of ours goes: cascade, set null, set default.
_FOLLOWING: Final = (0, 2, 4)
# The column of the table of batches with what tells a batch from others with its id.
_CONTENT: Final = "batch_content"
# The driver of MySQL says how many digits the seconds of a column have by its length alone.
_BY_LENGTH: Final = ("MySQL",)
_WHOLE_SECONDS: Final = len("2026-01-01 00:00:00.")
_TIMESTAMP: Final = 93
_SELECT_INTO: Final = ("Microsoft SQL Server", "Adaptive Server")


def qualifier(table: str) -> str:
    """Return what a table's name begins with, up to its last dot; raise OptionError for no name."""
    if not isinstance(table, str) or (match := _NAME.fullmatch(table)) is None:
        raise OptionError(
            f"table={table!r} must be a name as SQL has it, with its schema if that is not the "
            f"user's"
        )
    return match.group(1)


@final
@dataclass(frozen=True, slots=True)
class JdbcTable:
    """A table, in a transaction that has it open."""

    connection: Any  # a `java.sql.Connection` without autocommit
    name: str  # the option
    described: tuple[JdbcColumn, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Its columns, as the database writes them."""
        return tuple(column.name for column in self.described)

    def altering(self, schema: StructType, zone: str) -> dict[str, str]:
        """Return the conditions of rows whose values the table would alter, by column.

        `zone` is the time zone of Spark's JVM.
        """
        columns = {column.name: column for column in self.described}
        found = {one.name: columns[one.name].alters(one.dataType, zone) for one in schema}
        return {name: condition for name, condition in found.items() if condition}

    def known(self, names: Sequence[str]) -> dict[str, str]:
        """Return the column of the table for each one of a DataFrame; case matters last.

        Raises:
            OptionError: The table has no such column.
        """
        folded = {column.lower(): column for column in self.columns}
        for name in names:
            if name not in self.columns and name.lower() not in folded:
                raise OptionError(
                    f"the table {self.name} has no column {name!r}; it has "
                    f"{', '.join(self.columns)}: rename the column, or leave it out"
                )
        return {name: name if name in self.columns else folded[name.lower()] for name in names}

    def check_key(self) -> None:
        """Raise OptionError where rows of another table follow replaced rows of this one."""
        catalog, schema = self._where()
        name = _stored(self.connection.getMetaData(), self.name[len(qualifier(self.name)) :])
        found = self.connection.getMetaData().getExportedKeys(catalog, schema, name)
        try:
            while found.next():
                if found.getShort("DELETE_RULE") in _FOLLOWING:
                    raise OptionError(
                        f"key replaces rows of {self.name}, and rows of "
                        f"{found.getString('FKTABLE_NAME')} are deleted or changed with them: "
                        f"change its foreign key, or write to a table that has none"
                    )
        finally:
            found.close()

    def check_staged(self, staging: str, key: Sequence[str]) -> None:
        """Check that the keys of a batch differ, and are not null, in the database too.

        Its types may round what Spark tells apart, and its collation may leave out case.

        Raises:
            BatchNotWrittenError: Two are the same, or one is null.
        """
        columns = [*map(self._quoted, key)]
        null = " OR ".join(f"{column} IS NULL" for column in columns)
        listed = ", ".join(columns)
        if self._yields(f"SELECT 1 FROM {staging} WHERE {null}"):  # noqa: S608 - quoted
            said = "a key of the batch is null"
        elif self._yields(f"SELECT 1 FROM {staging} GROUP BY {listed} HAVING COUNT(*) > 1"):  # noqa: S608 - quoted
            said = "two keys of the batch are the same"
        else:
            return
        raise BatchNotWrittenError(
            f"{said} for the database, and not for Spark: give the key of {self.name} a type and a "
            f"collation that keep what the DataFrame has, or change the key in transform"
        )

    def create_batches(self) -> None:
        """Create the table with the newest batches, or its column that is missing."""
        table = self._beside(BATCHES)
        if BATCHES not in map(str.lower, self._tables(BATCHES)):
            self._update(
                f"CREATE TABLE {table} (writer VARCHAR(255) NOT NULL PRIMARY KEY,"
                f" batch_id NUMERIC(19) NOT NULL, {_CONTENT} VARCHAR(32))"
            )
        elif _CONTENT not in {one.name.lower() for one in columns_of(self.connection, table)}:
            self._update(f"ALTER TABLE {table} ADD {_CONTENT} VARCHAR(32)")

    def newest(self, writer: str) -> WrittenBatch | None:
        """Return the newest batch of a writer; None for none."""
        prepared = self.connection.prepareStatement(
            f"SELECT batch_id, {_CONTENT} FROM {self._beside(BATCHES)} WHERE writer = ?"  # noqa: S608 - names of ours
        )
        try:
            prepared.setString(1, writer)
            found = prepared.executeQuery()
            if not found.next():
                return None
            return WrittenBatch(int(found.getLong(1)), found.getString(2) or "")
        finally:
            prepared.close()

    def store(self, batch: SinkBatch) -> bool:
        """Store the id of a batch; return False where it or a later one is stored.

        The row is locked then, or its key: another run waits, or fails.
        """
        table, newest = self._beside(BATCHES), f"{batch.batch_id:d}"
        changed = self._update(
            f"UPDATE {table} SET batch_id = {newest}, {_CONTENT} = ?"  # noqa: S608 - names of ours
            f" WHERE writer = ? AND batch_id < {newest}",
            batch.content,
            batch.writer,
        )
        if changed:
            return True
        stored = self.newest(batch.writer)
        if stored is not None and stored.batch_id >= batch.batch_id:
            return False
        # Where an older batch is there all the same, the key refuses this row.
        self._update(
            f"INSERT INTO {table} (writer, batch_id, {_CONTENT}) VALUES (?, {newest}, ?)",  # noqa: S608 - the same
            batch.writer,
            batch.content,
        )
        return True

    def create_staging(self, name: str, columns: Sequence[str]) -> str:
        """Create an empty table with columns of this one; return its name as SQL has it."""
        staging = self._beside(name)
        listed = self._listed(columns)
        product = str(self.connection.getMetaData().getDatabaseProductName())
        source = f"SELECT {listed} FROM {self.name}"  # noqa: S608 - checked and quoted
        if product.startswith(_SELECT_INTO):
            create = f"SELECT {listed} INTO {staging} FROM {self.name} WHERE 1 = 0"  # noqa: S608 - the same
        elif product.startswith(_WITH_NO_DATA):
            create = f"CREATE TABLE {staging} AS ({source}) WITH NO DATA"
        else:
            create = f"CREATE TABLE {staging} AS {source} WHERE 1 = 0"
        self._update(create)
        return staging

    def drop_left(self, prefix: str) -> None:
        """Drop the staging tables of an earlier attempt, whose names begin with `prefix`."""
        for name in self._tables(f"{prefix}%"):
            if name.lower().startswith(prefix):
                self._update(f"DROP TABLE {self._beside(name)}")

    def take_over(
        self, staging: str, columns: Sequence[str], key: Sequence[str], latest_by: str | None
    ) -> int:
        """Take the rows of a staging table over, one of each key; return how many it had.

        Without a key they are appended.
        """
        older, listed = 0, self._listed(columns)
        if latest_by is not None:
            self.check_staged(staging, key)
            order = self._quoted(latest_by)
            same = " AND ".join(
                f"{self.name}.{name} = {staging}.{name}" for name in map(self._quoted, key)
            )
            older = self._update(
                f"DELETE FROM {staging} WHERE EXISTS (SELECT 1 FROM {self.name} WHERE {same} "  # noqa: S608 - quoted
                f"AND {self.name}.{order} IS NOT NULL AND ({staging}.{order} IS NULL "
                f"OR {staging}.{order} < {self.name}.{order}))"
            )
            self._update(
                f"DELETE FROM {self.name} WHERE EXISTS (SELECT 1 FROM {staging} WHERE {same})"  # noqa: S608 - quoted
            )
        return older + self._update(
            f"INSERT INTO {self.name} ({listed}) SELECT {listed} FROM {staging}"  # noqa: S608 - quoted
        )

    def _beside(self, name: str) -> str:
        return f"{qualifier(self.name)}{name}"

    def _quoted(self, name: str) -> str:
        quote = str(self.connection.getMetaData().getIdentifierQuoteString()).strip()
        return f"{quote}{name.replace(quote, quote * 2)}{quote}" if quote else name

    def _listed(self, columns: Sequence[str]) -> str:
        return ", ".join(map(self._quoted, columns))

    def _update(self, statement: str, *values: str) -> int:
        prepared = self.connection.prepareStatement(statement)
        try:
            for number, value in enumerate(values, 1):
                prepared.setString(number, value)
            return int(prepared.executeUpdate())
        finally:
            prepared.close()

    def _yields(self, query: str) -> bool:
        statement = self.connection.createStatement()
        try:
            return bool(statement.executeQuery(query).next())
        finally:
            statement.close()

    def _tables(self, pattern: str) -> list[str]:
        """Return the tables beside this one whose names match a pattern of ours."""
        metadata = self.connection.getMetaData()
        catalog, schema = self._where()
        found = metadata.getTables(catalog, schema, _stored(metadata, pattern), None)
        names = []
        while found.next():
            # The schema is a pattern here, too.
            if schema is None or found.getString("TABLE_SCHEM") == schema:
                names.append(str(found.getString("TABLE_NAME")))
        found.close()
        return names

    def _where(self) -> tuple[str | None, str | None]:
        """Return the catalog and the schema of the table."""
        metadata = self.connection.getMetaData()
        catalog, schema = self.connection.getCatalog(), None
        parts = re.findall(_PART, qualifier(self.name))
        if metadata.supportsSchemasInTableDefinitions():
            schema = _stored(metadata, parts[-1]) if parts else self.connection.getSchema()
            parts = parts[:-1]
        if parts:
            catalog = _stored(metadata, parts[-1])
        return catalog, schema


def columns_of(connection: Any, table: str) -> tuple[JdbcColumn, ...]:
    """Return the columns of a table, with their names as the database writes them."""
    product = str(connection.getMetaData().getDatabaseProductName())
    statement = connection.createStatement()
    try:
        found = statement.executeQuery(f"SELECT * FROM {table} WHERE 1 = 0").getMetaData()  # noqa: S608 - checked
        numbers = range(1, found.getColumnCount() + 1)
        return tuple(
            JdbcColumn(
                str(found.getColumnName(number)),
                int(found.getColumnType(number)),
                str(found.getColumnTypeName(number)),
                int(found.getPrecision(number)),
                _scale(found, number, product),
            )
            for number in numbers
        )
    finally:
        statement.close()


def _scale(found: Any, number: int, product: str) -> int:
    """Return the digits behind the point of a column, or of the seconds of one of times."""
    scale = int(found.getScale(number))
    if product in _BY_LENGTH and int(found.getColumnType(number)) == _TIMESTAMP:
        return max(scale, int(found.getPrecision(number)) - _WHOLE_SECONDS)
    return scale


def find_table(spark: SparkSession, connection: Any, table: str) -> JdbcTable:
    """Find a table.

    Raises:
        OptionError: There is no such table, or the user may not read it.
        SetupError: The database has no transactions.
    """
    if not connection.getMetaData().supportsTransactions():
        raise SetupError("the database of url has no transactions, which the sink needs")
    try:
        with sql_errors(spark):
            columns = columns_of(connection, table)
    except BatchNotWrittenError as error:
        raise OptionError(
            f"table={table!r} cannot be read: {error}; create it, with the columns of the "
            f"DataFrame, or grant SELECT on it"
        ) from error
    return JdbcTable(connection, table, columns)


def _stored(metadata: Any, name: str) -> str:
    """Return a name as the database stores it."""
    if not re.match(r"\w", name):
        return name[1:-1]
    if metadata.storesUpperCaseIdentifiers():
        return name.upper()
    return name.lower() if metadata.storesLowerCaseIdentifiers() else name
