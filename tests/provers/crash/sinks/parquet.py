"""The directory of a ParquetSink: the files of the batches that have a marker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import pyarrow.parquet as pq

from tests.provers.crash.sinks.destination import ROWS, Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

__all__ = ("ParquetDirectory", "read_files")

_MARKERS: Final = "query=*/sink=parquet/batch=*/_SUCCESS"


def read_files(files: Iterable[Path]) -> Iterator[Row]:
    """Read the rows of Parquet files, one after the other."""
    for file in files:
        columns = pq.read_table(file, columns=["key", "value"], partitioning=None).columns
        for key, value in zip(*(column.to_pylist() for column in columns), strict=True):
            yield Row(key.encode(), value.encode())


@final
class ParquetDirectory:
    """A directory below that of a campaign.

    Args:
        root: The directory of the campaign.
    """

    ordered = False
    repeated = 0

    def __init__(self, root: Path) -> None:
        self._directory = root / ROWS
        self.location = str(self._directory)
        self.environment: Mapping[str, str] = {}

    def rows(self) -> Iterable[Row]:
        """See `Destination.rows`."""
        for marker in sorted(self._directory.glob(_MARKERS)):
            yield from read_files(sorted(marker.parent.glob("*.parquet")))

    def newest(self) -> None:
        """See `Destination.newest`."""
