"""Drivers, planners and workers of a query are killed; the next run goes on.

Delta has no jars for the newest pyspark: `make prove-4.0` runs it.
"""

from __future__ import annotations

import random
import threading
import uuid
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.spark.dataframe.driver_process import (
    VICTIMS,
    kill,
    running,
    wait_for_end,
    wait_until_running,
)
from tests.spark.dataframe.killed_query import expected
from tests.support.delta_table import files_of, submit_with_delta

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.spark.dataframe.landings import FilledLanding

pytestmark = [pytest.mark.spark, pytest.mark.prove, pytest.mark.timeout(400)]


@pytest.mark.parametrize(("sink", "seed"), [("parquet", 0), ("parquet", 1), ("delta", 2)])
def test_every_window_is_written_once(
    spark: SparkSession, landing: FilledLanding, tmp_path: Path, sink: str, seed: int
) -> None:
    environment = submit_with_delta() if sink == "delta" else {}
    drawn = random.Random(seed)
    mark = uuid.uuid4().hex
    arguments = [str(tmp_path / name) for name in ("landing", "checkpoint", "results", "scratch")]
    (tmp_path / "scratch").mkdir()
    run = partial(running, "killed_query", mark, *arguments, sink, **environment)
    killed = 0
    for victim in drawn.sample([*VICTIMS], len(VICTIMS)):
        landing.put(150)
        with run() as driver:
            wait_until_running(driver)
            threading.Event().wait(drawn.uniform(0.0, 8.0))
            killed += kill(mark, victim)
            if victim != "driver":
                driver.communicate(timeout=120)  # with an error, or at the end of a retried task
    assert killed
    landing.put(30)  # Spark writes complete windows in a run that has records
    with run() as driver:
        wait_for_end(driver)
    files = files_of(tmp_path / "results") if sink == "delta" else [tmp_path / "results"]
    rows = [row for file in files for row in spark.read.parquet(str(file)).collect()]
    assert sorted(rows) == sorted(expected(landing.sequences()).items())
