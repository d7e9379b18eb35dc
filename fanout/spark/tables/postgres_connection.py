"""Transactions of PostgreSQL: bounded waits, and errors without values and secrets."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from fanout._exports import naming_extras
from fanout.errors import BatchNotWrittenError, OptionError, ServiceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Until a server that does not answer is an error; libpq waits without end, or for hours. Seconds,
# and milliseconds for tcp_user_timeout.
_OF_CONNECTION: Final = (
    "connect_timeout=10",
    "keepalives_idle=30",
    "keepalives_interval=10",
    "keepalives_count=3",
    "tcp_user_timeout=60000",
)
# Up to the parameters of a URI. As libpq reads it, a user and a password end at the first @ or /.
_URI: Final = re.compile(r"(postgres(?:ql)?://(?:[^@/]*@)?)([^?]*)\??(.*)", re.DOTALL)

# What a transaction sets where the server, the database, the role and the dsn leave the value that
# is named first. A transaction whose client has died ends before another one that waits for it.
_OF_TRANSACTION: Final = """
    SELECT set_config(name, value, true) FROM (VALUES
        ('lock_timeout', '0', '2min'),
        ('idle_in_transaction_session_timeout', '0', '1min'),
        -- A commit that a crash may take back must not be reported to Spark.
        ('synchronous_commit', 'off', 'on')
    ) AS s (name, unset, value) WHERE current_setting(name) = unset"""

# What libpq says of a server; its other errors quote parts of the connection string.
_OF_SERVER: Final = re.compile(
    r'connection to server (?:at|on) .*|could not translate host name "[\w.-]*" to address: .*'
)
# The class of SQLSTATE whose messages show the value that is wrong.
_OF_DATA: Final = "22"
_MESSAGE: Final = b"PG_DIAG_MESSAGE_PRIMARY"


@contextmanager
def transaction(dsn: str | Callable[[], str]) -> Iterator[Any]:
    """Connect to a database, and commit when the block has ended; an error rolls back.

    Args:
        dsn: The connection string, or a function that returns it.

    Yields:
        A connection of the DB API without autocommit.

    Raises:
        OptionError: The connection string is malformed.
        SetupError: The driver is not installed.
        ServiceError: The server cannot be reached, or it refuses the user.
        BatchNotWrittenError: A statement of the block failed, or the commit; it is unknown then
            whether the server has committed.
    """
    with naming_extras("PostgresSink"):
        from adbc_driver_manager import dbapi  # noqa: PLC0415 - an extra
        from adbc_driver_postgresql.dbapi import connect  # noqa: PLC0415
    try:
        database = connect(with_limits(dsn() if callable(dsn) else dsn))
    except dbapi.Error as error:
        said = _OF_SERVER.search(str(error))
        if said is None:
            raise _malformed() from None  # the cause quotes the string
        raise ServiceError(f"PostgreSQL cannot be reached: {said.group().strip()}") from error
    try:
        with database:
            with database.cursor() as cursor:
                cursor.execute(_OF_TRANSACTION)
                cursor.fetchall()
            yield database
            database.commit()
    except dbapi.Error as error:
        # 42501 is insufficient_privilege.
        kind = ServiceError if _state(error) == "42501" else BatchNotWrittenError
        says = "PostgreSQL refuses" if _state(error) else "the connection to PostgreSQL failed"
        raise kind(f"{says}: {_text(error)}") from error


def quoted(*names: str) -> str:
    """Return a name of SQL with its qualifiers.

    Args:
        names: The name, after its qualifiers.
    """
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def with_limits(dsn: str) -> str:
    """Return a connection string whose waits are bounded; what it has itself stays.

    Args:
        dsn: The connection string.

    Raises:
        OptionError: It is a URI with an @ that may belong to a password.
    """
    # Of two values of one parameter libpq takes the last.
    if (uri := _URI.fullmatch(dsn)) is None:
        return " ".join((*_OF_CONNECTION, dsn))
    user, place, parameters = uri.groups()
    if "@" in place:
        raise _malformed()
    return f"{user}{place}?{'&'.join((*_OF_CONNECTION, *filter(None, (parameters,))))}"


def _malformed() -> OptionError:
    return OptionError(
        "dsn is malformed: it must be a connection string of libpq, with the /, @, %, ? and : of a "
        "password in a URI written as %2F, %40, %25, %3F and %3A, and with '...' around a value "
        "with spaces in the other form"
    )


def _state(error: Any) -> str:
    """Return the SQLSTATE of an error; empty where the server did not send it."""
    return getattr(error, "sqlstate", None) or ""


def _text(error: Any) -> str:
    """Return an error of PostgreSQL as one line without the values of rows."""
    if (state := _state(error)).startswith(_OF_DATA):
        return f"a value does not fit the type of its column (SQLSTATE {state})"
    said = dict(getattr(error, "details", None) or ()).get(_MESSAGE)
    text = said.decode() if said else str(error)
    return text.splitlines()[0].strip()
