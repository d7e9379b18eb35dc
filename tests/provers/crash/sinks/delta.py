"""Two tables of Delta Lake: the files that their logs name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from tests.jars.fetch import delta_set, spark_jars
from tests.provers.crash.sinks.destination import NEWEST, ROWS, Row
from tests.provers.crash.sinks.parquet import read_files
from tests.provers.crash.sinks.submit_settings import submit_settings
from tests.support.delta_table import DELTA_SETTINGS, files_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ("DeltaTables",)

# Its default store of the log renames files by another class of Hadoop, which is not watched.
_LOG_STORE: Final = {"spark.delta.logStore.file.impl": "io.delta.storage.LocalLogStore"}


@final
class DeltaTables:
    """The tables, below the directory of a campaign.

    Args:
        root: The directory of the campaign.

    Raises:
        SetupError: Delta has no jars for the pyspark that is installed.
    """

    ordered = False
    repeated = 0

    def __init__(self, root: Path) -> None:
        self._root = root / "delta"
        self.location = str(self._root)
        jars = {"spark.jars": spark_jars(delta_set())}
        self.environment = submit_settings(jars | DELTA_SETTINGS | _LOG_STORE)

    def rows(self) -> Iterable[Row]:
        """See `Destination.rows`."""
        return read_files(files_of(self._root / ROWS))

    def newest(self) -> Iterable[Row]:
        """See `Destination.newest`."""
        return read_files(files_of(self._root / NEWEST))
