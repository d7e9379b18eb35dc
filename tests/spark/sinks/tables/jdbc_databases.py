"""Databases for tests of JDBC, in Spark's JVM: Derby, which Spark brings, and H2."""

from __future__ import annotations

import itertools
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

import pytest

from fanout.errors import SetupError
from fanout.spark import JdbcSink
from fanout.spark.hadoop.jvm import JAVA_ERRORS
from tests.jars.fetch import jar_set

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

__all__ = ("PASSWORD", "Database", "database")

PASSWORD: Final = "hunter2"
_NAMES = itertools.count(1)


@final
@dataclass(frozen=True)
class Database:
    """A database in memory.

    Args:
        spark: The session whose JVM has it.
        url: Its URL.
        driver: The class of its driver.
    """

    spark: SparkSession
    url: str
    driver: str

    @property
    def properties(self) -> dict[str, str]:
        """The properties of a connection."""
        return {"user": "etl", "password": PASSWORD}

    def sink(self, **options: Any) -> JdbcSink:
        """Return a sink for the table `orders`."""
        place = {"url": self.url, "driver": self.driver, "properties": self.properties}
        return JdbcSink(**({"table": "orders"} | place | options))

    @contextmanager
    def connection(self) -> Iterator[Any]:
        """Connect, and roll back what is not committed."""
        java: Any = self.spark._jvm
        properties = java.java.util.Properties()
        for name, value in self.properties.items():
            properties.setProperty(name, value)
        kind = java.org.apache.spark.util.Utils.classForName(self.driver, True, False)  # noqa: FBT003
        connection = kind.getConstructor(None).newInstance(None).connect(self.url, properties)
        try:
            connection.setAutoCommit(False)
            yield connection
        finally:
            with suppress(*JAVA_ERRORS):
                connection.rollback()
            connection.close()

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements in one transaction, and return the rows of the last one, in order."""
        with self.connection() as connection:
            rows: list[tuple[Any, ...]] = []
            for each in statements:
                rows = _rows(connection.createStatement(), each)
            connection.commit()
        return sorted(rows, key=repr)

    def staging(self) -> list[str]:
        """Return the names of staging tables."""
        system = "SYS.SYSTABLES" if "derby" in self.url else "INFORMATION_SCHEMA.TABLES"
        column = "TABLENAME" if "derby" in self.url else "TABLE_NAME"
        found = self.run(f"SELECT {column} FROM {system} WHERE {column} LIKE 'FANOUT%'")  # noqa: S608 - names of ours
        return [name for (name,) in found if name != "FANOUT_BATCHES"]


def _rows(statement: Any, sql: str) -> list[tuple[Any, ...]]:
    if not statement.execute(sql):
        return []
    found = statement.getResultSet()
    numbers = range(1, found.getMetaData().getColumnCount() + 1)
    rows = []
    while found.next():
        rows.append(tuple(found.getObject(number) for number in numbers))
    return rows


@contextmanager
def database(spark: SparkSession, kind: str, directory: Path) -> Iterator[Database]:
    """Run a database, without tables, until the block ends.

    Args:
        spark: The session whose JVM has it.
        kind: `derby` or `h2`.
        directory: For its log.
    """
    java: Any = spark._jvm
    name = f"orders{next(_NAMES)}"
    if kind == "derby":
        java.java.lang.System.setProperty("derby.stream.error.file", str(directory / "derby.log"))
        driver, memory = "org.apache.derby.jdbc.EmbeddedDriver", f"jdbc:derby:memory:{name}"
        yield Database(spark, f"{memory};create=true", driver)
        with suppress(*JAVA_ERRORS):  # it says so with an exception
            java.java.sql.DriverManager.getConnection(f"{memory};drop=true")
        return
    try:
        (jar,) = jar_set("h2")
    except SetupError as error:
        pytest.skip(str(error))
    # As with --packages.
    loader = java.java.lang.Thread.currentThread().getContextClassLoader()
    loader.addURL(java.java.io.File(str(jar)).toURI().toURL())
    yield Database(spark, f"jdbc:h2:mem:{name};DB_CLOSE_DELAY=-1", "org.h2.Driver")
