"""The planner, which lands the source of its query, and others are killed; content is compared."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tests.spark.dataframe.driver_process import VICTIMS, kill, wait_for_end, wait_until_running
from tests.spark.dataframe.test_killed_landers import Difference, Job
from tests.support.process_list import running_with
from tests.support.spark.harness import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from fanout.testing.kinesis.server import KinesisServer

pytestmark = [pytest.mark.spark, pytest.mark.prove, pytest.mark.timeout(400)]


@pytest.mark.parametrize("seed", [0])
def test_a_query_that_lands_its_source_and_is_killed_loses_repeats_and_alters_nothing(
    spark: SparkSession, kinesis: KinesisServer, tmp_path: Path, *, seed: int
) -> None:
    drawn = random.Random(seed)
    job, killed = Job(spark, kinesis, tmp_path, drawn), 0
    for victim in drawn.sample([*VICTIMS], len(VICTIMS)):
        with job.run("alone") as driver:
            wait_until_running(driver)
            before = job.entries()

            def landing(before: int = before) -> bool:
                job.put(20)
                return job.entries() >= before + drawn.randint(2, 6)

            eventually(landing, "entries")
            killed += kill(job.mark, victim)
            if victim == "worker":  # its task is tried again
                job.put()
                job.wait_for_all()
            elif victim == "planner":
                driver.communicate(timeout=120)  # the query ends with an error
        eventually(lambda: not running_with(job.mark), "the end of its processes")
    assert killed
    job.put()
    with job.run("alone") as driver:
        wait_until_running(driver)
        job.wait_for_all()
        job.end()
        wait_for_end(driver)
    assert job.difference() == Difference()
