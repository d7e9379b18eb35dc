"""Durable files below a checkpoint location, wherever that is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fanout.entries import DIRECTORY
from fanout.spark.checkpoint.files import FileInfo
from fanout.spark.checkpoint.hadoop import HadoopStorage
from fanout.spark.checkpoint.jvm import hadoop_configuration, java_errors, jvm
from fanout.spark.checkpoint.local import LocalStorage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ("FileInfo", "Storage", "open_storage")


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


def open_storage(spark: SparkSession, checkpoint_location: str) -> Storage:
    """Open the part of a checkpoint location that belongs to fanout; make it when it is missing.

    The location is resolved as Spark resolves it: one without a scheme belongs to the default file
    system of the session (`fs.defaultFS`), a relative one to its working directory.

    Args:
        spark: A classic session; its Hadoop configuration holds schemes and credentials.
        checkpoint_location: What is also given to Spark as `checkpointLocation`.

    Returns:
        A LocalStorage if that is on this machine's file system, otherwise a HadoopStorage.

    Raises:
        CheckpointError: The scheme is unknown, or the location cannot be reached or written.
    """
    with java_errors(f"use the checkpoint location {checkpoint_location!r}"):
        location = jvm(spark).org.apache.hadoop.fs.Path(checkpoint_location)
        file_system = location.getFileSystem(hadoop_configuration(spark))
        root = jvm(spark).org.apache.hadoop.fs.Path(file_system.makeQualified(location), DIRECTORY)
        uri = root.toUri()
        scheme, path = uri.getScheme(), uri.getPath()
    if scheme == "file":
        return LocalStorage(Path(path))
    return HadoopStorage(spark, file_system, root)
