"""Open the storage of a checkpoint location."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fanout.entries import DIRECTORY
from fanout.spark.checkpoint.hadoop import HadoopStorage
from fanout.spark.checkpoint.jvm import hadoop_configuration, java_errors, jvm
from fanout.spark.checkpoint.local import LocalStorage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fanout.spark.checkpoint.storage import Storage

__all__ = ("open_storage",)


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
