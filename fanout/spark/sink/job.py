"""The Spark job that writes a batch, and the check that it did what it had to, once."""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar, final

from pyspark.errors import PySparkException

from fanout.errors import BatchNotWrittenError, FanOutError, FencedError
from fanout.kafka.partitions import Partition
from fanout.kafka.writing.producer_id import Transactional
from fanout.spark.hadoop.jvm import JAVA_ERRORS, has_gone
from fanout.spark.sink.partitioned_rows import laid_out
from fanout.spark.sink.worker_task import REPORT_SCHEMA, read_report, task

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from fanout.spark.sink.options import Partitioner
    from fanout.spark.sink.worker_task import Delivery, Report

    _T = TypeVar("_T")

__all__ = (
    "AttemptFailedError",
    "Delivered",
    "deliver",
    "in_attempts",
    "raise_failure",
)


# Spark tells of a stage that has ended within milliseconds, but by a thread of its own.
_TOLD_SECONDS: Final = 10.0

_LOOK_SECONDS: Final = 0.002


@final
@dataclass(frozen=True, slots=True)
class Delivered:
    """What a job has written.

    Args:
        rows: How many records.
        bytes: Their bytes, as they were sent.
        written: Where they are, and how many in each partition.
        new_topics: Topics of rows that were not written, because nobody knew them.
        newest: The latest event time of the rows, in milliseconds, where they are encoded.
    """

    rows: int
    bytes: int
    written: Mapping[Partition, int]
    new_topics: frozenset[str] = frozenset()
    newest: int | None = None


def deliver(
    df: DataFrame, delivery: Delivery, *, counts: Mapping[str, int], assign: Partitioner | None
) -> Delivered:
    """Write a DataFrame to Kafka in one Spark job.

    Args:
        df: What is written; its columns were checked.
        delivery: How tasks write.
        counts: How many partitions the known topics have.
        assign: The user's partitioner, None for Kafka's own.

    Raises:
        AttemptFailedError: The job failed, or part of it may have been written twice.
        FanOutError: What a task raised.
    """
    spark = df.sparkSession
    tasks = max(1, min(spark.sparkContext.defaultParallelism, sum(counts.values())))
    rows = laid_out(df, topic=delivery.topic, counts=counts, tasks=tasks, assign=assign)
    try:
        found = rows.mapInArrow(task(delivery), REPORT_SCHEMA).collect()
    except (PySparkException, *JAVA_ERRORS) as error:
        if has_gone(error) or _was_cancelled(error):
            raise  # nobody wants it to be tried again
        raise AttemptFailedError(f"the Spark job failed: {_last_line(error)}") from error
    reports = [read_report(row.report) for row in found]
    # A job without rows may be done without tasks.
    if reports:
        _check_reports(reports, tasks)
        if isinstance(delivery.mode, Transactional):
            # Before anything else: where a stage ran twice, its tasks fail by what they did before.
            _check_that_it_ran_once(spark, reports[0].stage, tasks)
    for report in reports:
        if report.failure is not None:
            raise_failure(report.failure.error())
    return Delivered(
        rows=sum(report.rows for report in reports),
        bytes=sum(report.bytes for report in reports),
        written=_written(reports),
        new_topics=frozenset(topic for report in reports for topic in report.new_topics),
        newest=max((one.newest for one in reports if one.newest is not None), default=None),
    )


def raise_failure(error: FanOutError) -> NoReturn:
    """Raise what a task has raised; it may be over with a new transaction."""
    if error.retryable or isinstance(error, FencedError):
        raise AttemptFailedError(str(error)) from error
    raise error


def _check_reports(reports: Sequence[Report], tasks: int) -> None:
    """Check that every task of one stage has answered, and that no two wrote to a partition."""
    if {report.stage for report in reports} != {reports[0].stage} or sorted(
        report.task for report in reports
    ) != list(range(tasks)):
        raise AttemptFailedError(f"Spark's answers are not those of {tasks} tasks of one stage")
    writers = Counter(
        (topic, number)
        for report in reports
        for topic, numbers in report.partitions.items()
        for number in numbers
    )
    for (topic, number), count in writers.items():
        if count > 1:
            raise AttemptFailedError(f"{count} tasks wrote to {topic}-{number}")


def _check_that_it_ran_once(spark: SparkSession, stage: int, tasks: int) -> None:
    """Check that Spark did not begin the stage anew while tasks of it may still have written.

    It does where the output of the stage before it was lost, and nothing in a Python worker tells
    it apart: each of its tasks is a first attempt again.
    """
    tracker = spark.sparkContext.statusTracker()
    deadline = time.monotonic() + _TOLD_SECONDS
    while time.monotonic() < deadline:
        told = tracker.getStageInfo(stage)
        if told is not None and told.currentAttemptId > 0:
            raise AttemptFailedError("Spark began its stage anew, so rows may be there twice")
        if told is not None and told.numCompletedTasks == tasks:
            return
        time.sleep(_LOOK_SECONDS)
    raise AttemptFailedError(
        f"Spark did not tell within {_TOLD_SECONDS:g} s whether its stage ran once; its listeners "
        f"are too slow, or spark.ui.retainedStages is too small"
    )


def _written(reports: Sequence[Report]) -> dict[Partition, int]:
    return {
        Partition(topic, number): rows
        for report in reports
        for topic, counts in report.partitions.items()
        for number, rows in counts.items()
    }


def _was_cancelled(error: BaseException) -> bool:
    """Say whether somebody has stopped the query in Spark, which cancels its jobs."""
    text = str(error)
    return "cancelled" in text or "InterruptedException" in text


def _last_line(error: BaseException) -> str:
    """Return what a worker raised, which Spark tells last, or what Spark itself says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


log = logging.getLogger(__name__)

_ATTEMPTS: Final = 3


@final
class AttemptFailedError(FanOutError):
    """An attempt to write a batch failed, by what may be over; another begins from nothing."""

    retryable = True


def in_attempts(batch_id: int, attempt: Callable[[], _T]) -> _T:
    """Return what an attempt returns, and make up to three.

    Args:
        batch_id: The batch, for messages.
        attempt: Writes the whole batch; it raises AttemptFailedError where another may help.

    Raises:
        BatchNotWrittenError: All failed; the cause is why the last one did.
    """
    failures: list[AttemptFailedError] = []
    while len(failures) < _ATTEMPTS:
        try:
            return attempt()
        except AttemptFailedError as error:
            failures.append(error)
            log.warning("attempt %d to write batch %d: %s", len(failures), batch_id, error)
    raise BatchNotWrittenError(
        f"batch {batch_id} could not be written to Kafka in {_ATTEMPTS} attempts; the last one: "
        f"{failures[-1]}"
    ) from failures[-1]
