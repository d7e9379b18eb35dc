"""Settings of a Spark session that stays on this machine, does little, and is to cost little."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql import SparkSession

from fanout.spark.hadoop.jvm import jvm
from fanout.testing.spark.class_archive import java_options

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def small_settings(java: str = "") -> dict[str, Any]:
    """Return the settings of a session without a user interface that only this machine reaches."""
    # Spark's usual way to write a checkpoint on a local disk starts forty processes for a batch
    # (`readlink` and `chmod`, since Hadoop's native library is not there): half of the CPU of a
    # small batch. The other way also writes a file under another name, and then renames it.
    moved = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 1)
    package = f"org.apache.spark.sql.execution.streaming{'.checkpointing' if moved else ''}"
    files = f"{package}.FileSystemBasedCheckpointFileManager"
    return {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"{java_options()} {java}".rstrip(),
        "spark.sql.streaming.checkpointFileManagerClass": files,
    }


@contextmanager
def short_lived_session(
    name: str, scratch: Path, *, master: str = "local[2]", **settings: str
) -> Iterator[SparkSession]:
    """Run a small session of two cores that is quick to start, in the driver itself.

    It and its JVM keep temporary files in `scratch`, so that a kill leaves none elsewhere. Settings
    have underscores instead of dots.
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
