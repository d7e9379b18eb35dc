"""Transactions of a database over JDBC, in the driver's JVM, and errors without values and secrets.

Spark connects, as its own reader and writer of JDBC do: so drivers of `--packages` are found.
"""

from __future__ import annotations

import re
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, final

from fanout.errors import BatchNotWrittenError, OptionError, ServiceError
from fanout.spark.hadoop.jvm import JAVA_ERRORS, has_gone, is_java, java_causes, jvm, require_class

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import SparkSession

# A password in a URL: a parameter, or as in jdbc:mysql://user:password@db and
# jdbc:oracle:thin:user/password@db.
_PASSWORD: Final = re.compile(
    r"(?i)(password|pwd|token|secret)\d*\s*=|//[^/?@]*:[^/?]*@|:(thin|oci8?):[^@]+/[^@]*@"
)
_SECRET: Final = re.compile(r"(?i)secret|password|pwd|token|credential|access[._]?key")
# What the sink says itself to Spark.
_RESERVED: Final = frozenset({"url", "driver", "dbtable", "query"})
# Spark takes options in any case; this one bounds its tasks.
_LIMIT: Final = "numpartitions"

# Classes of SQLSTATE whose messages have no values of rows: connections, rights, deadlocks, syntax.
_WITHOUT_VALUES: Final = ("08", "28", "40", "42")
_OF_VALUES: Final = {
    "22": "a value does not fit the type of its column",
    "23": "a constraint of the table refuses a row",
}
_HIDDEN: Final = "an error, which may quote values of rows and is not shown"
_OF_SQL: Final = re.compile(r"SQL\w*Exception|BatchUpdateException")


@final
@dataclass(frozen=True, slots=True)
class JdbcPlace:
    """A database, and how it is connected to."""

    url: str
    driver: str  # its class
    # Of a connection, or a function that returns them.
    properties: Mapping[str, str] | Callable[[], Mapping[str, str]] = field(repr=False)

    def check(self) -> None:
        """Check the options, as far as that is possible without the database."""
        if not isinstance(self.url, str) or not self.url.startswith("jdbc:"):
            raise OptionError('url must be the URL of a database, which begins with "jdbc:"')
        if _PASSWORD.search(self.url):
            raise OptionError(
                "url has a password in it, which drivers quote in their errors: give user and "
                "password in properties"
            )
        if not isinstance(self.driver, str) or not self.driver:
            raise OptionError(f"driver={self.driver!r} must be the name of the driver's class")
        if not callable(self.properties):
            self.options()

    def require_driver(self, spark: SparkSession) -> None:
        """Raise SetupError where a session has no such driver."""
        remedy = "the driver's jar: start Spark with --packages or --jars, or correct driver="
        require_class(spark, self.driver, remedy)

    def options(self) -> dict[str, str]:
        """Return the options of Spark's own reader and writer of JDBC, without a table.

        Raises:
            OptionError: The properties are malformed.
        """
        given = self.properties() if callable(self.properties) else self.properties
        try:
            named = dict(given)
        except (TypeError, ValueError):
            named = {"": ""}
        for name, value in named.items():
            if not (isinstance(name, str) and name and isinstance(value, str)):
                raise OptionError("properties must be a mapping of strings to strings")
            if name.lower() in _RESERVED:
                raise OptionError(f"properties must not have {name!r}: it is an option of the sink")
            if name.lower() == _LIMIT and not (value.isdecimal() and int(value)):
                raise OptionError(f"properties must have a number above 0 as {name!r}")
        return {**named, "url": self.url, "driver": self.driver}

    def writing(self) -> tuple[dict[str, str], int | None]:
        """Return the options of Spark's writer, and apart the greatest number of its tasks."""
        options = self.options()
        limits = [int(options.pop(name)) for name in [*options] if name.lower() == _LIMIT]
        return options, min(limits, default=None)

    @contextmanager
    def transaction(self, spark: SparkSession) -> Iterator[Any]:
        """Yield a `java.sql.Connection` without autocommit, and commit; an error rolls back.

        Raises:
            OptionError: The driver does not take the URL, or the properties are malformed.
            ServiceError: The database cannot be reached, or it refuses the user.
            BatchNotWrittenError: A statement of the block failed, or the commit; it is unknown
                then whether the database has committed.
        """
        connection = self._connect(spark)
        try:
            with sql_errors(spark):
                connection.setAutoCommit(False)
                yield connection
                connection.commit()
        except BaseException:
            with suppress(*JAVA_ERRORS):
                connection.rollback()
            raise
        finally:
            with suppress(*JAVA_ERRORS):
                connection.close()

    def _connect(self, spark: SparkSession) -> Any:
        options = self.options()
        java = jvm(spark)
        to_scala = java.org.apache.spark.api.python.PythonUtils.toScalaMap
        of_spark = java.org.apache.spark.sql
        try:
            # "dbtable" has to be there, and is not looked at.
            given = to_scala({**options, "dbtable": "fanout"})
            jdbc = of_spark.execution.datasources.jdbc.JDBCOptions(given)
            return of_spark.jdbc.JdbcDialects.get(self.url).createConnectionFactory(jdbc).apply(-1)
        except JAVA_ERRORS as error:
            if has_gone(error):
                raise
            if (found := _sql_exception(spark, error)) is None or is_java(
                error, "java.lang.IllegalArgumentException"
            ):
                raise OptionError(
                    f"url and driver do not belong together: {self.driver} takes no such url"
                ) from None  # the cause quotes the URL
            message = self._masked(str(found.getMessage()), options)
            # The cause may quote a secret.
            raise ServiceError(f"the database of url cannot be connected to: {message}") from None

    def _masked(self, message: str, options: Mapping[str, str]) -> str:
        for name, value in options.items():
            if value and _SECRET.search(name):
                message = message.replace(value, "***")
        return _line(message.replace(self.url, "url"))


@contextmanager
def sql_errors(spark: SparkSession) -> Iterator[None]:
    """Turn an error of the database in the block into one without the values of rows.

    Raises:
        ServiceError: The database refuses the user.
        BatchNotWrittenError: A statement failed, or a task of Spark that ran it.
    """
    try:
        yield
    except JAVA_ERRORS as error:
        found = _sql_exception(spark, error)
        if found is None:
            if not has_gone(error) and _OF_SQL.search(str(error)):
                # The driver has not the class of the exception, and its text has values of rows.
                raise BatchNotWrittenError(f"the database refuses: {_HIDDEN}") from None
            raise
        state, code = found.getSQLState() or "", found.getErrorCode()
        # 42501 and class 28 are about rights.
        kind = ServiceError if state == "42501" or state[:2] == "28" else BatchNotWrittenError
        where = f"(SQLSTATE {state}, code {code})"
        if state[:2] in _WITHOUT_VALUES:
            said = _line(str(found.getMessage()))
            raise kind(f"the database refuses: {said} {where}") from error
        said = _OF_VALUES.get(state[:2], _HIDDEN)
        # The cause quotes the statement with its values.
        raise kind(f"the database refuses: {said} {where}") from None


def _sql_exception(spark: SparkSession, error: BaseException) -> Any:
    """Return the last exception of SQL behind an error; None where there is none."""
    kind = jvm(spark).java.lang.Class.forName("java.sql.SQLException")
    found = [cause for cause in java_causes(error) if kind.isInstance(cause)]
    return found[-1] if found else None


def _line(message: str) -> str:
    return message.strip().partition("\n")[0].strip().removesuffix("; SQL statement:")
