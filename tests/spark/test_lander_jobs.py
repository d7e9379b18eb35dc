"""Jobs that carry landers, in a session on this machine."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import TaskContext
from pyspark.serializers import CPickleSerializer

from fanout.errors import LanderCancelledError
from fanout.spark.landers.jobs import LanderFailedError, LanderJobs, _run_task
from tests.spark.lander_work import Ends, LanderWork
from tests.support.spark.harness import eventually, fanout_threads

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


class NoWait(Random):
    """Draws the shortest waits."""

    def uniform(self, a: float, b: float) -> float:
        del b
        return a


@pytest.fixture
def work(tmp_path: Path) -> LanderWork:
    return LanderWork(tmp_path)


@contextmanager
def one_lander(spark: SparkSession, work: LanderWork, ends: Ends) -> Iterator[LanderJobs]:
    """Run a lander in the block; afterwards nothing of it is left."""
    with LanderJobs(spark, work.work(), landers=1, on_end=ends, random=NoWait()) as jobs:
        yield jobs
    assert fanout_threads() == []
    assert not spark.sparkContext.statusTracker().getActiveJobsIds()
    # Spark calls a task ended once it has told its daemon to kill the worker.
    eventually(lambda: not any(attempt.lives for attempt in work.attempts(0)))


def test_a_lander_runs_beside_other_jobs_until_the_block_ends(
    spark: SparkSession, work: LanderWork
) -> None:
    ends = Ends()
    context = spark.sparkContext
    context.setJobGroup("mine", "my own jobs")
    context.addJobTag("mine")
    try:
        with one_lander(spark, work, ends):
            attempt = work.running(0)
            assert spark.range(100).count() == 100
            # What cancels the user's jobs leaves the landers alone.
            context.cancelJobsWithTag("mine")
            context.cancelJobGroup("mine")
            assert spark.range(100).count() == 100
            assert context.getLocalProperty("spark.jobGroup.id") == "mine"
            assert context.getLocalProperty("spark.scheduler.pool") is None
            assert work.running(0) == attempt
    finally:
        context.removeJobTag("mine")
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
        context.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]
    assert ends.calls == []


@pytest.mark.prove
def test_a_lander_that_fails_or_dies_or_returns_runs_again(
    spark: SparkSession, work: LanderWork
) -> None:
    ends = Ends()
    with one_lander(spark, work, ends):
        first = work.running(0)
        work.fail(0)
        second = work.after(first)
        os.kill(second.pid, signal.SIGKILL)
        third = work.after(second)
        work.stop(0)
        work.after(third)
    (_, failure), (_, death), (_, end) = ends.calls
    assert isinstance(failure, LanderFailedError)
    assert str(failure) == "lander 0 failed: ValueError: no such shard"
    assert isinstance(death, LanderFailedError)
    assert str(death) == (
        "the Spark job of lander 0 failed: Python worker exited unexpectedly (crashed)"
    )
    assert death.__cause__ is not None
    assert end is None


def test_a_job_that_was_cancelled_in_spark_is_not_started_again(
    spark: SparkSession, work: LanderWork
) -> None:
    ends = Ends()
    java: Any = spark.sparkContext._jsc
    with one_lander(spark, work, ends):
        attempt = work.running(0)
        (job,) = spark.sparkContext.statusTracker().getActiveJobsIds()
        # As the button of Spark's user interface does.
        java.sc().cancelJob(job)
        ((lander, error),) = ends.wait_for()
        eventually(lambda: not attempt.lives)
        assert fanout_threads() == []
    assert lander == 0
    assert isinstance(error, LanderCancelledError)
    assert str(error) == (
        f"lander 0 was cancelled in Spark (Job {job} cancelled), and nothing else reads its "
        f"splits; start the query again on the same checkpoint"
    )
    assert len(ends.calls) == 1


def test_an_error_of_several_tasks_is_told_as_the_first_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = SimpleNamespace(taskAttemptId=lambda: 7)
    monkeypatch.setattr(TaskContext, "get", lambda: task)

    def work(lander: int, attempt: int) -> None:
        raise ExceptionGroup("tasks", [ExceptionGroup("more", [KeyError(f"{lander} {attempt}")])])

    assert list(_run_task(work, 3, ())) == ["KeyError: '3 7'"]


def test_what_is_sent_to_a_worker_is_small() -> None:
    serializer: Any = CPickleSerializer()
    pickled = serializer.dumps(partial(_run_task, print, 1))
    assert len(pickled) < 200
