"""Settings of a Spark session that stays on this machine, does little, and is to cost little."""

from __future__ import annotations

from typing import Any

import pyspark

from fanout.testing.spark_classes import java_options

__all__ = ("small_settings",)


def small_settings(java: str = "") -> dict[str, Any]:
    """Return the settings of a session without a user interface that only this machine reaches.

    Spark's usual way to write a checkpoint on a local disk starts forty processes for a batch
    (`readlink` and `chmod`, since Hadoop's native library is not there): half of the CPU of a small
    batch. The other way also writes a file under another name, and then renames it.

    Args:
        java: More options of its JVM.
    """
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
