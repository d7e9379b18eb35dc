"""Two tables of Apache Iceberg: the files that the newest snapshot of each names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from tests.jars.fetch import iceberg_set, spark_jars
from tests.provers.crash.sinks.avro_file import read_avro
from tests.provers.crash.sinks.destination import NEWEST, ROWS, Row
from tests.provers.crash.sinks.parquet import read_files
from tests.provers.crash.sinks.submit_settings import submit_settings
from tests.support.spark.table_formats import CATALOG, ICEBERG_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ("NAMESPACE", "IcebergTables")

NAMESPACE: Final = f"{CATALOG}.crash"
"""The catalog and the namespace of the tables."""

_DELETED: Final = 2
_DATA: Final = 0


@final
class IcebergTables:
    """The tables of a catalog of Hadoop's kind, below the directory of a campaign.

    Args:
        root: The directory of the campaign.

    Raises:
        SetupError: Iceberg has no jar for the pyspark that is installed.
    """

    ordered = False
    repeated = 0

    def __init__(self, root: Path) -> None:
        warehouse = root / "iceberg"
        self._root = warehouse / "crash"
        self.location = NAMESPACE
        settings = ICEBERG_SETTINGS | {f"spark.sql.catalog.{CATALOG}.warehouse": str(warehouse)}
        self.environment = submit_settings(settings | {"spark.jars": spark_jars(iceberg_set())})

    def rows(self) -> Iterable[Row]:
        """See `Destination.rows`."""
        return read_files(_files_of(self._root / ROWS))

    def newest(self) -> Iterable[Row]:
        """See `Destination.newest`."""
        return read_files(_files_of(self._root / NEWEST))


def _files_of(table: Path) -> Iterator[Path]:
    """Return the files of the newest version of a table; its name has the number of the version."""
    versions = table.glob("metadata/v*.metadata.json")
    newest = max(versions, key=lambda path: int(path.name[1:].partition(".")[0]), default=None)
    if newest is None:
        return
    version: dict[str, Any] = json.loads(newest.read_text())
    for snapshot in version.get("snapshots", ()):
        if snapshot["snapshot-id"] == version["current-snapshot-id"]:
            for manifest in read_avro(_local(snapshot["manifest-list"])):
                for entry in read_avro(_local(manifest["manifest_path"])):
                    if entry["status"] != _DELETED:
                        file = entry["data_file"]
                        assert file.get("content", _DATA) == _DATA, "rows are deleted by a file"
                        yield _local(file["file_path"])


def _local(uri: str) -> Path:
    return Path(uri.removeprefix("file:"))
