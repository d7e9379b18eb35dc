"""Drivers, planners and workers of a query are killed; the next run goes on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.process_list import running_with
from tests.spark.dataframe.killed_query import expected

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tests.spark.dataframe.landings import FilledLanding

pytestmark = [pytest.mark.spark, pytest.mark.prove, pytest.mark.timeout(400)]
ROOT = Path(__file__).parents[3]
# What the command lines of its processes have in them; Spark's JVM is the driver too.
VICTIMS: Final = {
    "driver": ("killed_query", "org.apache.spark"),
    "planner": ("python_streaming_source_runner",),
    "worker": ("pyspark.daemon", "pyspark.worker"),
}


@contextmanager
def running(mark: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run the query; nothing of it is left after the block."""
    driver = subprocess.Popen(  # noqa: S603 - our own interpreter and module
        [sys.executable, "-m", "tests.spark.dataframe.killed_query", *arguments],
        cwd=ROOT,
        env=os.environ | {"FANOUT_TEST_MARK": mark, "PYSPARK_PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with driver:
        try:
            yield driver
        finally:
            kill(mark, *VICTIMS)


def kill(mark: str, *victims: str) -> int:
    """Kill all processes of these kinds; return how many there were."""
    words = [word for victim in victims for word in VICTIMS[victim]]
    found = [pid for pid, line in running_with(mark).items() if any(one in line for one in words)]
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(found)


@pytest.mark.parametrize("seed", range(2))
def test_every_window_is_written_once(
    spark: SparkSession, landing: FilledLanding, tmp_path: Path, seed: int
) -> None:
    drawn = random.Random(seed)
    mark = uuid.uuid4().hex
    arguments = [str(tmp_path / name) for name in ("landing", "checkpoint", "results", "scratch")]
    (tmp_path / "scratch").mkdir()
    killed = 0
    for victim in drawn.sample([*VICTIMS], len(VICTIMS)):
        landing.put(150)
        with running(mark, *arguments) as driver:
            assert driver.stdout is not None
            assert driver.stdout.readline() == "running\n"
            threading.Event().wait(drawn.uniform(0.0, 8.0))
            killed += kill(mark, victim)
            if victim != "driver":
                driver.communicate(timeout=120)  # with an error, or at the end of a retried task
    assert killed
    with running(mark, *arguments) as driver:
        _, errors = driver.communicate(timeout=200)
        assert driver.returncode == 0, errors
    rows = spark.read.parquet(str(tmp_path / "results")).collect()
    assert len(rows) == len({row["start"] for row in rows})
    assert {row["start"]: row["count"] for row in rows} == expected(landing.sequences())
