"""Transactions of PostgreSQL, and the task of Spark that copies rows in one.

Their waits are bounded, and their errors have no values and no secrets.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, final
from uuid import uuid4

import pyarrow as pa

from fanout._exports import naming_extras
from fanout.core.remote_error import ErrorWire
from fanout.errors import BatchNotWrittenError, FanOutError, OptionError, ServiceError, SetupError
from fanout.spark.workers.spare_worker import spare_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

# Older drivers alter decimals.
_OLDEST: Final = (1, 13)
# Until a server that does not answer is an error; libpq waits without end, or for hours. Seconds,
# and milliseconds for tcp_user_timeout.
_OF_CONNECTION: Final = (
    "connect_timeout=10",
    "keepalives_idle=30",
    "keepalives_interval=10",
    "keepalives_count=3",
    "tcp_user_timeout=60000",
)
# The driver sends UTF-8, whatever the environment, the role, the database and the dsn say.
_UTF8: Final = "client_encoding=UTF8"
# Up to the parameters of a URI. As libpq reads it, a user and a password end at the first @ or /.
_URI: Final = re.compile(r"(postgres(?:ql)?://(?:[^@/]*@)?)([^?]*)\??(.*)", re.DOTALL)

# What a transaction sets where the server, the database, the role and the dsn leave the value that
# is named first. A transaction whose client has died ends before another one that waits for it.
_OF_TRANSACTION: Final = """
    SELECT set_config(name, value, true) FROM (VALUES
        -- In text columns a time must not depend on the order of day and month.
        ('DateStyle', current_setting('DateStyle'), 'ISO'),
        ('lock_timeout', '0', '2min'),
        ('idle_in_transaction_session_timeout', '0', '1min'),
        -- A commit that a crash may take back must not be reported to Spark.
        ('synchronous_commit', 'off', 'on')
    ) AS s (name, unset, value) WHERE current_setting(name) = unset"""

# What libpq says of a server; its other errors quote parts of the connection string.
_OF_SERVER: Final = re.compile(
    r'connection to server (?:at|on) .*|could not translate host name "[\w.-]*" to address: .*'
)
_NO_SERVICE: Final = re.compile(r'definition of service ".*" not found')
# The class of SQLSTATE whose messages show the value that is wrong, and what to say instead.
_OF_DATA: Final = "22"
_OF_VALUES: Final = {
    "22008": "a date or time is outside of the range of its type",
    "22021": "a string has a NUL, or bytes that are not UTF-8",
    "22P02": "a string is none that the type of its column can be read from",
    "22P05": "a string has a character that the encoding of the database has not",
}
_ANY_VALUE: Final = "a value does not fit the type of its column"
# Where a message alone does not say what to do.
_REMEDIES: Final = {
    "21000": "the database takes two keys of the batch for the same",
    "25006": "name the primary server in dsn, where it names a standby, or let the role write",
}
_LOST: Final = "the connection to PostgreSQL failed"
# Serialization failures and deadlocks: the transaction may succeed when it is tried again.
_CONFLICTS: Final = "40"
# 42501 is insufficient_privilege.
_OF_SERVICE: Final = ("25006", "42501")
_MESSAGE: Final = b"PG_DIAG_MESSAGE_PRIMARY"
# What the server says when it ends a connection; the driver quotes its own query before that.
_FATAL: Final = re.compile(r"(?:FATAL|PANIC):  (.*)")
# The driver quotes its query before the reason for which it failed.
_OF_QUERY: Final = re.compile(r".*Failed to execute query '.*': ", re.DOTALL)
# The driver says nothing else of a time before the first one of PostgreSQL.
_UNTOLD: Final = "Error occurred writing COPY data:"

REPORT_SCHEMA: Final = "staging string, rows bigint, failure string"
"""What a task returns: the table that has its rows and their number, or an error."""


@contextmanager
def transaction(dsn: str | Callable[[], str]) -> Iterator[Any]:
    """Yield a connection of the DB API without autocommit, and commit; an error rolls back.

    Raises:
        OptionError: The connection string is malformed.
        SetupError: The driver is not installed, or too old.
        ServiceError: The server cannot be reached, or it refuses the user.
        BatchNotWrittenError: A statement of the block failed, or the commit; it is unknown then
            whether the server has committed.
    """
    with naming_extras("PostgresSink"):
        from adbc_driver_manager import dbapi  # noqa: PLC0415 - an extra
        from adbc_driver_postgresql import __version__ as installed  # noqa: PLC0415
        from adbc_driver_postgresql.dbapi import connect  # noqa: PLC0415
    if tuple(map(int, installed.split(".")[:2])) < _OLDEST:
        raise SetupError(
            f"adbc-driver-postgresql {installed} alters values: install "
            f"{'.'.join(map(str, _OLDEST))} or newer here and for Spark's Python workers"
        )
    try:
        database = connect(with_limits(dsn() if callable(dsn) else dsn))
    except dbapi.Error as error:
        raised = _unconnected(error)
        # The cause of an OptionError quotes the string.
        raise raised from (error if isinstance(raised, ServiceError) else None)
    try:
        with database:
            with database.cursor() as cursor:
                cursor.execute(_OF_TRANSACTION)
                cursor.fetchall()
            yield database
            database.commit()
    except dbapi.Error as error:
        kind = ServiceError if _state(error) in _OF_SERVICE else BatchNotWrittenError
        raise kind(_text(error)) from error


def is_conflict(error: BatchNotWrittenError) -> bool:
    """Return whether a transaction failed because of another one, and can be tried again."""
    return _state(error.__cause__).startswith(_CONFLICTS)


def quoted(*names: str) -> str:
    """Return a name of SQL in quotation marks, behind its qualifiers."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def with_limits(dsn: str) -> str:
    """Return a connection string whose waits are bounded, and whose text is UTF-8.

    Limits that it has itself stay.

    Raises:
        OptionError: It is a URI with an @ that may belong to a password.
    """
    # Of two values of one parameter libpq takes the last.
    if (uri := _URI.fullmatch(dsn)) is None:
        return " ".join((*_OF_CONNECTION, dsn, _UTF8))
    user, place, parameters = uri.groups()
    if "@" in place:
        raise _malformed()
    return f"{user}{place}?{'&'.join(filter(None, (*_OF_CONNECTION, parameters, _UTF8)))}"


def _unconnected(error: Any) -> OptionError | ServiceError:
    """Return the error of a connection that was not made, without parts of its string."""
    text = str(error)
    if (said := _OF_SERVER.search(text)) is not None:
        return ServiceError(f"PostgreSQL cannot be reached: {said.group().strip()}")
    # When it is connected, the driver reads the catalog; a limit of the role may end that, and the
    # server's reason is lost where its last words are overtaken by the end of the connection.
    if _OF_QUERY.search(text):
        return ServiceError(_text(error))
    if _NO_SERVICE.search(text):
        return OptionError("dsn or PGSERVICE names a service that no service file here defines")
    return _malformed()


def _malformed() -> OptionError:
    variables = sorted(name for name in os.environ if name.startswith("PG"))
    also = f"; libpq also reads {', '.join(variables)} of the environment" if variables else ""
    return OptionError(
        "dsn is malformed: it must be a connection string of libpq, with the /, @, %, ? and : of a "
        "password in a URI written as %2F, %40, %25, %3F and %3A, and with '...' around a value "
        f"with spaces in the other form{also}"
    )


def _state(error: Any) -> str:
    """Return the SQLSTATE of an error; empty where the server did not send it."""
    return getattr(error, "sqlstate", None) or ""


def _text(error: Any) -> str:
    """Return an error of PostgreSQL as one line without the values of rows."""
    state, text = _state(error), str(error).strip()
    if state.startswith(_OF_DATA):
        return f"PostgreSQL refuses: {_OF_VALUES.get(state, _ANY_VALUE)} (SQLSTATE {state})"
    if said := dict(getattr(error, "details", None) or ()).get(_MESSAGE):
        text = said.decode()
    elif ended := _FATAL.search(text):
        text = ended.group(1)
    elif text.endswith(_UNTOLD):
        return f"a row cannot be copied: {_OF_VALUES['22008']}"
    line = _OF_QUERY.sub("", text).partition("\n")[0].strip()
    remedy = f"; {_REMEDIES[state]}" if state in _REMEDIES else ""
    return f"PostgreSQL refuses: {line}{remedy}" if state else f"{_LOST}: {line}"


@final
@dataclass(frozen=True, slots=True)
class CopyTask:
    """What each task of a batch does."""

    dsn: str | Callable[[], str] = field(repr=False)  # or a function that returns it
    schema: str  # of the tables that are created
    prefix: str  # of their names
    columns: Sequence[tuple[str, str]]  # the name and the type of each, as they are in the rows

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Copy rows, and yield one row of REPORT_SCHEMA if there are any."""
        spare_worker()
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return
        staging, copied, failure = f"{self.prefix}{uuid4().hex[:16]}", 0, None

        def counted() -> Iterator[pa.RecordBatch]:
            nonlocal copied
            for batch in chain((first,), batches):
                copied += batch.num_rows
                yield batch

        try:
            with transaction(self.dsn) as database:
                rows = pa.RecordBatchReader.from_batches(first.schema, counted())
                self._copy(database, staging, rows)
        except FanOutError as error:
            failure = ErrorWire.of(error).to_json()
        report = {"staging": staging, "rows": copied, "failure": failure}
        yield pa.RecordBatch.from_pylist([report])

    def _copy(self, database: Any, staging: str, rows: pa.RecordBatchReader) -> None:
        columns = ", ".join(f"{quoted(name)} {kind}" for name, kind in self.columns)
        with database.cursor() as cursor:
            # It lives as long as its batch: a log of its rows would be of no use. As a crash
            # empties it, the driver counts the rows before it takes them over.
            cursor.execute(f"CREATE UNLOGGED TABLE {quoted(self.schema, staging)} ({columns})")
            cursor.adbc_ingest(staging, rows, mode="append", db_schema_name=self.schema)


def copy_rows(task: CopyTask) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that Spark runs in each task of a batch."""

    def copy(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return task.run(batches)

    return copy
