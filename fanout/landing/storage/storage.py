"""The protocol of a checkpoint's durable files, and the names that they may have."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class StoredFiles(Protocol):
    """The finished files of a checkpoint, for reading alone.

    Every call blocks: call it from a thread. Names are relative to the root, with `/` between
    components, none of which starts with `_` or `.`, except `_spark_metadata`.
    """

    @property
    def location(self) -> str:
        """The root, for messages: without secrets."""

    def read(self, name: str, *, limit: int) -> bytes | None:
        """Return a file's bytes, None if there is none; CheckpointError above `limit` bytes."""

    def list(self, directory: str) -> tuple[FileInfo, ...]:
        """Return the finished files of a directory, by name."""


class ReadableFiles(StoredFiles, Protocol):
    """Stored files of which a part can be read."""

    def open(self, name: str) -> Any:
        """Return what `pyarrow.parquet.ParquetFile` reads a file from; FileNotFoundError."""


class Storage(StoredFiles, Protocol):
    """Small files that are written once, and finished local files that are moved in.

    What `create` and `publish` promise beyond this depends on the file system: see LocalStorage,
    HadoopStorage and ObjectStorage.
    """

    def create(self, name: str, data: bytes) -> None:
        """Create a file; of several writers of one name one succeeds, the rest FileExistsError."""

    def walk(self, directory: str) -> tuple[str, ...]:
        """Return the names of all finished files of a directory and of those in it."""

    def size(self, name: str) -> int | None:
        """Return a file's size in bytes, or None if there is no such file."""

    def delete(self, name: str) -> None:
        """Delete a file; one that does not exist is no error."""

    def publish(self, local_file: Path, name: str) -> None:
        """Move a finished file of `scratch()` to its final name; FileExistsError if it is taken."""

    def scratch(self) -> Path:
        """Return the local directory in which a file is written before `publish`."""

    def uri(self, name: str) -> str:
        """Return what `spark.read` takes for a file."""

    def sweep(self) -> None:
        """Remove what a killed run left half written; for the owner, before it writes."""

    def close(self) -> None:
        """Remove what only this process needed. The files stay."""


class LandingStorage(Storage, ReadableFiles, Protocol):
    """What a landing needs: it also reads a part of a file that an earlier run has written."""


READERS: Final = "readers"
"""The directory in which others write than the owner of a landing."""

_TEMPORARY = "_tmp-"

SPARK_LOG: Final = "_spark_metadata"
"""The directory in `segments` in which Spark looks for the list of its files."""

DELTA_LOG: Final = "_delta_log"
"""The directory in `segments` in which a Delta table has its log."""


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One finished file."""

    name: str  # its last component; the directory is the one that was listed
    size: int  # bytes
    # Milliseconds since the Unix epoch, by the clock of the file system.
    written_at: int = field(default=0, compare=False)


def check_name(name: str) -> str:
    """Return `name` if it can name a finished file or a directory of them, below the root.

    A component must not start with `_` or `.`: Spark takes such a file for hidden and reads nothing
    from it, and temporary files have such names. Logs of tables are in such directories.
    """
    logs = {SPARK_LOG, DELTA_LOG}
    if any(not part or (part[0] in "_." and part not in logs) for part in name.split("/")):
        raise ValueError(f"not a name for a checkpoint file: {name!r}")
    return name


def finished(names: Iterable[str]) -> tuple[str, ...]:
    """Return the relative paths that can be those of finished files, sorted."""
    return tuple(
        sorted(name for name in names if all(p and p[0] not in "_." for p in name.split("/")))
    )


def temporary_name() -> str:
    """Return a fresh last component for a file that is still being written."""
    return f"{_TEMPORARY}{uuid.uuid4().hex}"


def is_temporary(name: str) -> bool:
    """Say whether a last component came from `temporary_name`, or is a checksum file beside one."""
    return name.removeprefix(".").startswith(_TEMPORARY)


def readable_path(path: str) -> str:
    """Return a path or URI escaped for `spark.read`, which would take it for a pattern."""
    return re.sub(r"([{}\[\]*?\\])", r"\\\1", path)
