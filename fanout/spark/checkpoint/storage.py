"""Durable files below a checkpoint location, wherever that is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from fanout.spark.checkpoint.files import FileInfo

__all__ = ("Storage",)


class Storage(Protocol):
    """Small files that are written once, and finished local files that are moved in.

    Every call blocks: call it from a thread. Names are relative to the root, with `/` between
    components, none of which starts with `_` or `.`. What `create` and `publish` promise beyond
    this depends on the file system: see LocalStorage and HadoopStorage.
    """

    @property
    def location(self) -> str:
        """The root, for messages: without secrets."""

    def create(self, name: str, data: bytes) -> None:
        """Create a file; of several writers of one name one succeeds, the rest FileExistsError."""

    def read(self, name: str, *, limit: int) -> bytes | None:
        """Return a file's bytes, None if there is none; CheckpointError above `limit` bytes."""

    def list(self, directory: str) -> tuple[FileInfo, ...]:
        """Return the finished files of a directory, by name."""

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
