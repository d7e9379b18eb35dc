"""The Spark jobs that carry landers: one job of one task for each, which never ends by itself."""

from __future__ import annotations

import logging
import re
import threading
import time
from contextlib import suppress
from functools import partial
from heapq import nlargest
from random import Random
from typing import TYPE_CHECKING, Any, Final, Self, final
from uuid import uuid4

from pyspark import InheritableThread, TaskContext

from fanout.core.backoff import Backoff, FullJitter
from fanout.core.error_text import first_error, text_of
from fanout.core.findings import LANDERS_APART
from fanout.errors import FanOutError, LanderCancelledError, SparkLostError
from fanout.spark.hadoop.jvm import JAVA_ERRORS, first_line, has_gone
from fanout.spark.workers.worker_check import python_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import TypeAlias

    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    LanderWork: TypeAlias = Callable[[int, int], None]
    OnLanderEnd: TypeAlias = Callable[[int, BaseException | None], None]

log = logging.getLogger(__name__)

# In a session that schedules fairly, jobs of one pool wait for each other. Landers have their own.
_POOL: Final = "fanout landers"
_BACKOFF: Final = Backoff(base=1.0, cap=30.0)
# A lander that has run for so long was well: the next failure is a first one.
_WELL: Final = 60.0
# Seconds for the end of all jobs, and then of their tasks. Spark looks every two seconds whether a
# task was cancelled, and kills its Python worker two seconds later (spark.python.task.killTimeout).
_JOBS_END: Final = 10.0
_TASKS_END: Final = 10.0
_CANCEL_AGAIN: Final = 1.0
_LOOK: Final = 0.1

# Spark 4 puts a name in brackets before its sentence, and a state behind it.
_CANCELLED: Final = re.compile(r"SparkException: (?:\[\w+\] )?(Job \d+ cancelled.*)")
_SQL_STATE: Final = re.compile(r"\s*SQLSTATE: \w+")
_SHUT_DOWN: Final = "SparkContext was shut down"


@final
class LanderFailedError(FanOutError):
    """The job of a lander failed; it is started again."""

    retryable = True


@final
class LanderJobs:
    """Keep a lander running in each of some Spark tasks while the block runs.

    Landers are numbered from 0. Each has a job of its own, so that one can be started again without
    the others. Where its process, executor or machine dies, Spark starts the task again; where the
    job ends, it is started again here, with growing waits. One that was cancelled in Spark is not.

    The jobs belong to a job group of their own: they outlive what cancels the user's jobs, also the
    end of Spark's side of a query. Leaving the block cancels them, and takes 20 seconds at most.

    Args:
        spark: A classic session.
        work: Called in a Python worker with the number of its lander and of this attempt. It is
            pickled, and returns when the lander was told to stop. A later attempt of a lander has a
            greater number; no two of one session are alike.
        landers: How many run.
        on_end: Called in another thread each time that a job has ended in the block, with the
            lander and the error: None after `work` has returned, LanderFailedError where the job is
            started again; and, for the last time, LanderCancelledError, or SparkLostError without
            Spark. It must not raise.
        random: Draws the waits.
    """

    def __init__(
        self,
        spark: SparkSession,
        work: LanderWork,
        *,
        landers: int,
        on_end: OnLanderEnd,
        random: Random | None = None,
    ) -> None:
        self._context = spark.sparkContext
        self._work = work
        self._landers = landers
        self._on_end = on_end
        self._jitter = FullJitter(_BACKOFF, random or Random())  # noqa: S311 - no secret
        self._group = f"fanout-landers-{uuid4().hex}"
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        for lander in range(self._landers):
            thread = InheritableThread(
                target=partial(self._keep, lander),
                name=f"fanout lander {lander}",
                daemon=True,
            )
            thread.start()
            self._threads.append(thread)
        return self

    def start_no_more(self) -> None:
        """Let jobs end from now on: their landers are about to be told to stop."""
        self._closing.set()

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        with suppress(*JAVA_ERRORS):  # without a JVM there is nothing to wait for
            self._end_jobs()
            self._await_tasks()
        for thread in self._threads:
            thread.join(_CANCEL_AGAIN)

    def _keep(self, lander: int) -> None:
        """Run the job of a lander again and again, until the block ends or Spark refuses."""
        failures = -1
        self._closing.wait(lander * LANDERS_APART)
        while not self._closing.is_set():
            began = time.monotonic()
            error = self._run_job(lander)
            if self._closing.is_set():
                return
            if error is not None:
                log.warning("%s", error)
            self._on_end(lander, error)
            if isinstance(error, (LanderCancelledError, SparkLostError)):
                return
            failures = 0 if time.monotonic() - began >= _WELL else failures + 1
            self._closing.wait(self._jitter.delay(failures))

    def _run_job(self, lander: int) -> FanOutError | None:
        """Run one job of a lander to its end, and return why it ended; None if `work` returned."""
        name = f"lander {lander}"
        context = self._context
        try:
            description = f"fanout {name}, one of {self._landers}"
            context.setJobGroup(self._group, description, interruptOnCancel=False)
            # The thread has inherited what the user has set for jobs that are not landers.
            context.setLocalProperty("spark.job.tags", None)  # type: ignore[arg-type]
            context.setLocalProperty("spark.scheduler.pool", _POOL)
            failures = context.parallelize([lander], 1).mapPartitions(
                partial(_run_task, self._work, lander)
            )
            failure = next(iter(failures.collect()), None)
        except Exception as error:  # noqa: BLE001 - without a session pyspark raises anything
            return self._explain(name, error)
        return None if failure is None else LanderFailedError(f"{name} failed: {failure}")

    def _explain(self, name: str, error: Exception) -> FanOutError:
        """Return what the error of a job means for its lander."""
        line = first_line(error)
        cancelled = _CANCELLED.match(line)
        found: FanOutError
        if has_gone(error):
            found = SparkLostError(f"Spark's JVM has gone away under {name}")
        elif _SHUT_DOWN in line or is_stopped(self._context):
            found = SparkLostError(f"the Spark session was stopped under {name}")
        elif cancelled is not None:
            reason = _SQL_STATE.sub("", cancelled[1]).strip()
            found = LanderCancelledError(
                f"{name} was cancelled in Spark ({reason}), and nothing else reads its splits; "
                f"start the query again on the same checkpoint"
            )
        else:
            reason = python_error(str(error)) or line
            found = LanderFailedError(f"the Spark job of {name} failed: {reason}")
        found.__cause__ = error
        return found

    def _end_jobs(self) -> None:
        """Cancel the jobs until their threads have ended."""
        deadline = time.monotonic() + _JOBS_END
        while running := [thread for thread in self._threads if thread.is_alive()]:
            if time.monotonic() >= deadline:
                names = ", ".join(thread.name for thread in running)
                log.warning("Spark has not ended within %g s: %s", _JOBS_END, names)
                return
            if not is_stopped(self._context):
                # A job that is just being submitted is not cancelled: therefore more than once.
                self._context.cancelJobGroup(self._group)
            again = time.monotonic() + _CANCEL_AGAIN
            for thread in running:
                thread.join(max(0.0, again - time.monotonic()))

    def _await_tasks(self) -> None:
        """Wait until Spark has ended the tasks of jobs that were cancelled."""
        deadline = time.monotonic() + _TASKS_END
        while not is_stopped(self._context) and (tasks := self._active_tasks()):
            if time.monotonic() >= deadline:
                log.warning(
                    "%d tasks of landers still run %g s after their jobs were cancelled",
                    tasks,
                    _TASKS_END,
                )
                return
            time.sleep(_LOOK)  # Spark's tracker cannot be waited for

    def _active_tasks(self) -> int:
        """Return how many tasks of the newest jobs run."""
        tracker = self._context.statusTracker()
        jobs = nlargest(self._landers, tracker.getJobIdsForGroup(self._group))
        infos = [info for id_ in jobs if (info := tracker.getJobInfo(id_)) is not None]
        stages = [tracker.getStageInfo(id_) for info in infos for id_ in info.stageIds]
        return sum(stage.numActiveTasks for stage in stages if stage is not None)


def is_stopped(context: SparkContext) -> bool:
    """Say whether a session was stopped, from Python or in its JVM."""
    java_context: Any = context._jsc  # noqa: SLF001 - pyspark's only door to the JVM
    return java_context is None or bool(java_context.sc().isStopped())


def _run_task(work: LanderWork, lander: int, _: Iterable[int]) -> Iterator[str]:
    """Run a lander in a Python worker, and return its error as text.

    Spark would try an error again at once, and end the job after the fourth. It does so where the
    process dies. Because the rows are not read, the worker's process ends with its task, instead of
    waiting for another one.
    """
    task = TaskContext.get()
    assert task is not None
    try:
        work(lander, task.taskAttemptId())
    except Exception as raised:
        error = first_error(raised)
        log.exception("lander %d failed", lander)
        yield f"{type(error).__name__}: {text_of(error)}"
