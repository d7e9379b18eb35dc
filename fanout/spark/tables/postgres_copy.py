"""Copy the rows of a Spark task into a table of PostgreSQL of its own, in Spark's workers."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, final
from uuid import uuid4

import pyarrow as pa

from fanout._exports import naming_extras
from fanout.errors import BatchNotWrittenError, FanOutError, ServiceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

REPORT_SCHEMA: Final = "staging string, failure string, refused boolean"
"""What a task returns: the table that has its rows, or why there is none."""

# Seconds until a server that does not answer is an error; libpq waits without end by default.
_CONNECT_TIMEOUT: Final = 10
# The class of SQLSTATE whose messages show the value that is wrong.
_OF_DATA: Final = "22"
_MESSAGE: Final = b"PG_DIAG_MESSAGE_PRIMARY"


@final
@dataclass(frozen=True, slots=True)
class CopyTask:
    """What each task of a batch does.

    Args:
        dsn: The connection string, or a function that returns it.
        schema: The schema of the tables that are created.
        prefix: What their names begin with.
        columns: The name and the type of each column, as they are in the rows.
    """

    dsn: str | Callable[[], str]
    schema: str
    prefix: str
    columns: Sequence[tuple[str, str]]

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Copy rows, and yield one row of REPORT_SCHEMA if there are any."""
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return
        staging, failure, refused = f"{self.prefix}{uuid4().hex[:16]}", None, False
        rows = pa.RecordBatchReader.from_batches(first.schema, chain((first,), batches))
        try:
            with connected(self.dsn) as database:
                self._copy(database, staging, rows)
        except FanOutError as error:
            failure, refused = str(error), isinstance(error, ServiceError)
        yield pa.record_batch({"staging": [staging], "failure": [failure], "refused": [refused]})

    def _copy(self, database: Any, staging: str, rows: pa.RecordBatchReader) -> None:
        columns = ", ".join(f"{quoted(name)} {kind}" for name, kind in self.columns)
        with database.cursor() as cursor:
            # It lives as long as its batch: a log of its rows for a crash would be of no use.
            cursor.execute(f"CREATE UNLOGGED TABLE {quoted(self.schema, staging)} ({columns})")
            cursor.adbc_ingest(staging, rows, mode="append", db_schema_name=self.schema)
        database.commit()


def copy_rows(task: CopyTask) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that Spark runs in each task of a batch.

    Args:
        task: What it does.
    """

    def copy(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return task.run(batches)

    return copy


@contextmanager
def connected(dsn: str | Callable[[], str]) -> Iterator[Any]:
    """Connect to a database while a block runs, and roll back what it has not committed.

    Args:
        dsn: The connection string, or a function that returns it.

    Yields:
        A connection of the DB API without autocommit.

    Raises:
        SetupError: The driver is not installed.
        ServiceError: The server cannot be reached, or it refuses the user.
        BatchNotWrittenError: A statement of the block failed.
    """
    with naming_extras("PostgresSink"):
        from adbc_driver_manager import dbapi  # noqa: PLC0415 - an extra
        from adbc_driver_postgresql.dbapi import connect  # noqa: PLC0415
    try:
        database = connect(_with_timeout(dsn() if callable(dsn) else dsn))
    except dbapi.Error as error:
        raise ServiceError(f"PostgreSQL cannot be reached: {_text(error)}") from error
    try:
        with database:
            yield database
    except dbapi.Error as error:
        # 42501 is insufficient_privilege.
        kind = ServiceError if _state(error) == "42501" else BatchNotWrittenError
        raise kind(f"PostgreSQL refuses: {_text(error)}") from error


def quoted(*names: str) -> str:
    """Return a name of SQL with its qualifiers.

    Args:
        names: The name, after its qualifiers.
    """
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def _with_timeout(dsn: str) -> str:
    if "connect_timeout" in dsn:
        return dsn
    if "://" in dsn:
        return f"{dsn}{'&' if '?' in dsn else '?'}connect_timeout={_CONNECT_TIMEOUT}"
    return f"{dsn} connect_timeout={_CONNECT_TIMEOUT}"


def _state(error: Any) -> str:
    """Return the SQLSTATE of an error; empty where the server did not send it."""
    return getattr(error, "sqlstate", None) or ""


def _text(error: Any) -> str:
    """Return an error of PostgreSQL as one line without the values of rows."""
    if (state := _state(error)).startswith(_OF_DATA):
        return f"a value does not fit the type of its column (SQLSTATE {state})"
    said = dict(getattr(error, "details", None) or ()).get(_MESSAGE)
    # An error of libpq itself is text: its first line names the server and the user.
    text = said.decode() if said else str(error).partition("connect: ")[2] or str(error)
    return text.splitlines()[0].strip()
