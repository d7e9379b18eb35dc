"""Two tables of an H2 server, which the job reaches over JDBC; it lives as long as a campaign."""

from __future__ import annotations

import csv
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, final

from fanout.spark.hadoop.session_checks import require_java
from tests.jars.fetch import jar_set, spark_jars
from tests.provers.crash.sinks.destination import NEWEST, ROWS, Row
from tests.provers.crash.sinks.submit_settings import submit_settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

__all__ = ("DRIVER", "PROPERTIES", "JdbcTables", "open_jdbc")

DRIVER: Final = "org.h2.Driver"
PROPERTIES: Final = {"user": "etl", "password": "etl"}


@final
class JdbcTables:
    """The tables; made by `open_jdbc`.

    Args:
        location: The URL of JDBC.
        directory: Where the server writes what is read.
    """

    ordered = False
    repeated = 0

    def __init__(self, location: str, directory: Path) -> None:
        self.location = location
        self.environment: Mapping[str, str] = submit_settings({"spark.jars": spark_jars("h2")})
        self._directory = directory

    def rows(self) -> Iterable[Row]:
        """See `Destination.rows`."""
        return self._read(ROWS)

    def newest(self) -> Iterable[Row]:
        """See `Destination.newest`."""
        return self._read(NEWEST)

    def run(self, statement: str) -> None:
        """Run a statement.

        Args:
            statement: The statement.
        """
        user, password = PROPERTIES["user"], PROPERTIES["password"]
        login = ["-url", self.location, "-user", user, "-password", password]
        subprocess.run(  # noqa: S603 - our own
            [*_tool("Shell"), *login, "-sql", statement],
            check=True,
            stdout=subprocess.DEVNULL,
        )

    def _read(self, table: str) -> Iterable[Row]:
        file = self._directory / f"{table}.csv"
        query = f'SELECT "key", "value" FROM "{table}"'  # noqa: S608 - names of ours
        self.run(f"CALL CSVWRITE('{file}', '{query}')")
        with file.open(encoding="utf-8", newline="") as lines:
            rows = csv.reader(lines)
            next(rows)
            return [Row(key.encode(), value.encode()) for key, value in rows]


@contextmanager
def open_jdbc(root: Path) -> Iterator[JdbcTables]:
    """Run a server with empty tables while the block runs.

    Args:
        root: The directory of the campaign.
    """
    directory = root / "h2"
    directory.mkdir()
    where = ["-tcp", "-tcpPort", "0", "-ifNotExists"]
    # It listens on all addresses of the machine, unless it is told not to.
    options = ["-Dh2.bindAddress=127.0.0.1"]
    with subprocess.Popen(  # noqa: S603 - our own
        [*_tool("Server", *options), *where], stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            # TCP server running at tcp://127.0.0.1:35713 (only local connections)
            address = server.stdout.readline().split("tcp://")[1].split()[0]
            # In the server's memory, until it ends: it outlives each connection, and no job has it.
            location = f"jdbc:h2:tcp://{address}/mem:crash;DB_CLOSE_DELAY=-1"
            tables = JdbcTables(location, directory)
            tables.run(f'CREATE TABLE "{ROWS}" ("key" VARCHAR, "value" VARCHAR)')
            tables.run(
                f'CREATE TABLE "{NEWEST}" '
                f'("key" VARCHAR PRIMARY KEY, "number" BIGINT, "value" VARCHAR)'
            )
            yield tables
        finally:
            server.kill()


def _tool(name: str, *options: str) -> list[str]:
    (jar,) = jar_set("h2")
    return [str(require_java()), *options, "-cp", str(jar), f"org.h2.tools.{name}"]
