"""A small Spark session for a driver that is started to be killed."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from fanout.spark.checkpoint.jvm import jvm
from fanout.testing.spark_settings import small_settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ("jvm_pid", "short_lived_session")


@contextmanager
def short_lived_session(
    name: str, scratch: Path, *, master: str = "local[2]", **settings: str
) -> Iterator[SparkSession]:
    """Run a small session of two cores that is quick to start, in the driver itself.

    Args:
        name: The name of the application.
        scratch: Where it and its JVM keep temporary files, so that a kill leaves none elsewhere.
        master: Spark's master.
        settings: More of Spark's configuration, with underscores instead of dots.
    """
    builder = (
        SparkSession.builder.master(master)
        .appName(name)
        .config(map=small_settings(f"-Djava.io.tmpdir={scratch}"))
        .config("spark.driver.memory", "512m")
        .config("spark.local.dir", str(scratch))
        .config("spark.sql.warehouse.dir", str(scratch))
    )
    for key, value in settings.items():
        builder = builder.config(key.replace("_", "."), value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


def jvm_pid(session: SparkSession) -> int:
    """Return the process id of a session's JVM."""
    return int(jvm(session).java.lang.ProcessHandle.current().pid())
