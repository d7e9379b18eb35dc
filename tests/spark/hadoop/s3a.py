"""Hadoop's real s3a."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fanout.spark.hadoop.jvm import hadoop_configuration, jvm
from fanout.spark.hadoop.storage import HadoopStorage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession


def class_loader(spark: SparkSession, jars: Sequence[Path]) -> Any:
    """Return a class loader that adds jars to those of a session that runs already."""
    java: Any = jvm(spark)
    urls = spark.sparkContext._gateway.new_array(java.java.net.URL, len(jars))  # type: ignore[union-attr]
    for number, jar in enumerate(jars):
        urls[number] = java.java.io.File(str(jar)).toURI().toURL()
    parent = java.java.lang.Thread.currentThread().getContextClassLoader()
    return java.java.net.URLClassLoader(urls, parent)


@contextmanager
def s3a_storage(
    spark: SparkSession, loader: Any, location: str, settings: dict[str, str]
) -> Iterator[HadoopStorage]:
    """Open a checkpoint with a file system of its own, as another driver would.

    Args:
        spark: The session.
        loader: What `class_loader` returns.
        location: A location on s3a.
        settings: Of the Hadoop configuration.
    """
    java: Any = jvm(spark)
    configuration = java.org.apache.hadoop.conf.Configuration(hadoop_configuration(spark))
    configuration.setClassLoader(loader)
    for name, value in settings.items():
        configuration.set(name, value)
    root = java.org.apache.hadoop.fs.Path(location)
    file_system = java.org.apache.hadoop.fs.FileSystem.newInstance(root.toUri(), configuration)
    storage = HadoopStorage(spark, file_system, root)
    try:
        yield storage
    finally:
        storage.close()
        file_system.close()
