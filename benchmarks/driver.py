"""What the processes of contenders on Spark have in common: a session, and what they are asked."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from benchmarks.harness import own_cpu_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.reading import Reading

__all__ = ("answer", "cpu_seconds", "session")


def session(packages: str = "") -> SparkSession:
    """Start Spark on two cores.

    Args:
        packages: Jars that it needs, by their Maven coordinates.
    """
    os.environ["PYSPARK_PYTHON"] = sys.executable  # or workers are whatever python3 is
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "3g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.jars.packages", packages)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def cpu_seconds(spark: SparkSession) -> float:
    """Return the CPU seconds of this process, of its JVM and of the JVM's Python workers."""
    assert spark.sparkContext._jvm is not None  # noqa: SLF001 - no public way to it
    jvm = spark.sparkContext._jvm.java.lang.ProcessHandle.current()  # noqa: SLF001
    spent = [process.info().totalCpuDuration() for process in (jvm, *jvm.descendants().toArray())]
    # A worker may have just ended.
    milliseconds: int = sum(one.get().toMillis() for one in spent if one.isPresent())
    return own_cpu_seconds() + milliseconds / 1000


def answer(run: Callable[[int], Reading]) -> None:
    """Say that it is warm, and run once for each number of records that standard input has.

    Args:
        run: Runs, and returns what is printed as a line of JSON.
    """
    print("warm", flush=True)  # noqa: T201 - the caller waits for it
    for line in sys.stdin:
        print(json.dumps(asdict(run(int(line)))), flush=True)  # noqa: T201 - the caller reads it
