"""Queries with landers and a checkpoint on S3: the driver uses s3a there, and landers obstore."""

from __future__ import annotations

import os
import re
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.driver_on_s3 import MAX_RECORDS
from tests.spark.test_driver_on_s3 import START, Job, Moment, at
from tests.spark.test_driver_on_s3 import kinesis as kinesis  # noqa: PLC0414 - a fixture
from tests.spark.test_driver_on_s3 import store as store  # noqa: PLC0414 - a fixture
from tests.support.groups import SPARK_CLUSTERS
from tests.support.s3_faults import cut_in_the_middle, faulty_s3, passed
from tests.support.spark.harness import eventually

if TYPE_CHECKING:
    from fanout.testing.kinesis.server import KinesisServer

pytestmark = [SPARK_CLUSTERS, pytest.mark.spark, pytest.mark.prove, pytest.mark.timeout(300)]


@pytest.fixture
def job(kinesis: KinesisServer, store: str, tmp_path: Path) -> Job:
    return Job(kinesis, store, tmp_path, "tests.spark.landers_on_s3")


def landers(job: Job) -> list[int]:
    """Return the processes of all landers that have connected so far."""
    return [int(pid) for pid in re.findall(r"lander \d+ \(process (\d+)", job.log.read_text())]


def kill_landers(job: Job) -> list[int]:
    """Kill all landers, and return their processes."""
    pids = landers(job)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return pids


def test_landers_and_a_driver_that_are_killed_lose_and_repeat_nothing(job: Job, store: str) -> None:
    job.put(5 * MAX_RECORDS)
    published = Moment("after", "PUT", "/fanout/segments/")
    named = Moment("after", "PUT", "/fanout/batches/")
    with faulty_s3(store) as s3, job.driver(s3.endpoint, "on") as driver:
        killed: list[int] = []
        # One segment is there, and no lander tells of it.
        rule = at(published, lambda: killed.extend(kill_landers(job)), passed)
        s3.follow(lambda request: None if killed else rule(request))
        eventually(lambda: killed or not driver.runs, "a segment", patience=START)
        eventually(lambda: job.is_written() or not driver.runs)
        assert driver.runs, driver.end()
        driver.stop()
        assert driver.end() == (0, [])
    job.put(5 * MAX_RECORDS)
    with faulty_s3(store) as s3, job.driver(s3.endpoint, "on") as doomed:
        s3.follow(at(named, doomed.kill, cut_in_the_middle))
        job.put(MAX_RECORDS)
        assert doomed.end() == (-signal.SIGKILL, [])
    job.finish()
    job.check()
    job.check_segments()
    assert not [pid for pid in landers(job) if Path(f"/proc/{pid}").exists()]


@pytest.mark.parametrize(
    ("setting", "error", "text"),
    [
        ("storage.endpoint=http://127.0.0.1:9", "CheckpointError", "cannot write|cannot read"),
        ("storage.no_such_option=1", "OptionError", "no_such_option"),
    ],
)
def test_landers_that_cannot_reach_the_checkpoint_say_so(
    job: Job, store: str, setting: str, error: str, text: str
) -> None:
    with job.driver(store, "once", setting) as driver:
        code, [[kind, message]] = driver.end()
    assert (code, kind) == (0, error)
    assert re.match(r"a lander on \S+: ", message), message
    assert re.search(text, message), message
    assert "\n" not in message
