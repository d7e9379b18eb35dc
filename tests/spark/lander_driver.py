"""A driver that runs landers on a cluster, and does what it reads from its input, line by line.

Its arguments: Spark's master, the cores of an executor, and the directory of its landers.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from pyspark.sql import SparkSession

from fanout.errors import OptionError
from fanout.landing.storage.local_storage import LocalStorage
from fanout.spark.landers import jobs
from fanout.spark.landers.checks import check_landers
from fanout.spark.landers.jobs import LanderJobs
from fanout.testing.spark.class_archive import java_options
from fanout.testing.spark.session import jvm_pid, small_settings
from tests.spark.lander_work import Ends, LanderWork
from tests.support.patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

LANDERS = 2


class Driver:
    """The commands."""

    def __init__(self, spark: SparkSession, work: LanderWork) -> None:
        self._spark = spark
        self._work = work
        self._ends = Ends()
        self._resources = ExitStack()

    def start(self) -> None:
        """Start the landers."""
        self._resources.enter_context(
            LanderJobs(self._spark, self._work.work(), landers=LANDERS, on_end=self._ends)
        )

    def check(self) -> str:
        """Check the session for its landers."""
        return self._check(LANDERS)

    def check_more(self) -> str:
        """Check the session for more landers than it can have, and return the error."""
        try:
            return self._check(2 * LANDERS)
        except OptionError as error:
            return str(error)

    def leave(self) -> float:
        """End the landers, and return how many seconds it took."""
        began = time.monotonic()
        self._resources.close()
        return time.monotonic() - began

    def job(self) -> int:
        """Run a job of the user's own beside the landers."""
        return self._spark.sparkContext.parallelize(range(100), 2).map(abs).sum()

    def ends(self) -> list[tuple[int, str]]:
        """Return what `on_end` was called with since the last time."""
        calls = self._ends.calls[:]
        del self._ends.calls[: len(calls)]
        return [(lander, str(error)) for lander, error in calls]

    def stop(self) -> None:
        """Stop the session under the landers."""
        self._spark.stop()

    def jvm(self) -> int:
        """Return the process of the driver's JVM."""
        return jvm_pid(self._spark)

    def _check(self, landers: int) -> str:
        storage = LocalStorage(self._work.directory / "checkpoint")
        return check_landers(
            self._spark, storage, landers=landers, modules=(), extras="kinesis,spark"
        )


def main(output: TextIO, master: str, cores: str, directory: str) -> None:
    # To wait for landers in vain takes longer than a test allows.
    jobs._JOBS_END = jobs._TASKS_END = 1.5 * PATIENCE  # type: ignore[misc]
    spark = (
        SparkSession.builder.master(master)
        .config(map=small_settings())
        .config("spark.driver.memory", "512m")
        .config("spark.executor.memory", "512m")
        .config("spark.executor.cores", cores)
        .config("spark.executor.extraJavaOptions", java_options())
        .getOrCreate()
    )
    driver = Driver(spark, LanderWork(Path(directory)))
    print(json.dumps("ready"), file=output, flush=True)
    for line in sys.stdin:
        command: Callable[[], Any] = getattr(driver, line.strip())
        print(json.dumps(command()), file=output, flush=True)
    spark.stop()


if __name__ == "__main__":
    # Spark's JVM prints to the same output.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    main(answers, *sys.argv[1:])
