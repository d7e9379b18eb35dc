"""The Spark job that writes a batch to Kafka, and the checks that it wrote each row once."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, final

from pyspark.errors import PySparkException

from fanout.errors import BatchNotWrittenError, FanOutError, FencedError, UnwritableRecordError
from fanout.kafka.partitions import Partition
from fanout.kafka.writing.producer_id import Transactional
from fanout.spark.hadoop.jvm import JAVA_ERRORS, first_and_last_cause, has_gone
from fanout.spark.sinks.kafka.owned_rows import SharedFiles, row_count
from fanout.spark.sinks.kafka.partitioned_rows import partitioned
from fanout.spark.sinks.kafka.shuffle_frames import announce
from fanout.spark.sinks.kafka.worker_task import (
    REPORT_SCHEMA,
    TaskOptions,
    file_task,
    read_report,
    task,
    write_files,
)
from fanout.spark.workers.worker_check import import_error, python_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from fanout.kafka.writing.partitioner import Partitioner
    from fanout.kafka.writing.producer_id import WriteMode
    from fanout.spark.query.batch_context import BatchContext
    from fanout.spark.sinks.kafka.connection import SinkConnection, SinkTarget
    from fanout.spark.sinks.kafka.shuffle_frames import ShuffleFraming
    from fanout.spark.sinks.kafka.worker_task import TaskReport

# Spark reports a stage that has ended within milliseconds, but by a thread of its own.
_STAGE_REPORT_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.002
# The most rows and bytes of a batch that the driver writes without a job of Spark.
_SMALL_ROWS: Final = 10_000
_SMALL_BYTES: Final = 16 << 20


@final
class AttemptFailedError(FanOutError):
    """An attempt to write a batch failed for a reason that may be temporary."""

    retryable = True


@final
@dataclass(frozen=True, slots=True)
class JobResult:
    """The records that a job has written."""

    rows: int  # their number
    bytes: int  # as they were sent
    written: Mapping[Partition, int]  # the number of records in each partition
    # Of rows that were not written, because the driver did not know them.
    new_topics: frozenset[str] = frozenset()
    # The latest event time of the rows, in milliseconds, where they are encoded.
    newest: int | None = None


@final
@dataclass(frozen=True, slots=True, eq=False)
class SinkJob:
    """The write of one batch; each run writes the whole of it."""

    df: DataFrame  # the rows; their columns were checked
    target: SinkTarget
    context: BatchContext
    connection: SinkConnection
    # The Parquet files with the rows before the target's transform, on a disk of the driver; empty
    # where the rows come from the DataFrame alone.
    files: Sequence[str] = ()

    def run(self, mode: WriteMode) -> JobResult:
        """Write the batch in a transaction or by a producer.

        Raises:
            AttemptFailedError: The job failed, or part of it may have been written twice.
            FanOutError: Another attempt cannot help.
        """
        options = self.target.options
        task_options = TaskOptions(
            cluster=options.cluster.for_workers(),
            mode=mode,
            producing=options.producing,
            topic=options.topic,
        )
        topics = [] if options.topic is None else [options.topic]
        counts = self.connection.partitions(topics)
        if self.target.framing is not None:
            return self._write_frames(task_options, counts, self.target.framing)
        result = self._write_unchanged(task_options, counts)
        if result.new_topics:
            # Their partition counts decide which task writes a row: all rows are written again.
            self.connection.partitions(result.new_topics)
            raise AttemptFailedError(f"its rows name new topics: {', '.join(result.new_topics)}")
        return result

    def _write_unchanged(self, options: TaskOptions, counts: Mapping[str, int]) -> JobResult:
        """Write the rows from the batch's files where that is possible, else by a job of SQL."""
        if self.files and _is_small(self.files):
            # The start of a job takes longer than the writing.
            return _result([write_files(options, self._shared(counts, tasks=1))])
        spark = self.df.sparkSession
        # The tasks of a cluster may run where the disk of the driver is not. Each task reads all
        # rows, so that many tasks would read more than the shuffle costs.
        if not self.files or not str(spark.sparkContext.master).startswith("local["):
            partitioner = self.target.partitioner
            return write_rows(self.df, options, counts=counts, partitioner=partitioner)
        shared = self._shared(counts, tasks=_tasks(spark, counts))
        # Without SQL a job starts in three quarters of the time.
        tasks = spark.sparkContext.parallelize(range(shared.tasks), shared.tasks)
        writing = tasks.mapPartitions(file_task(options, shared))
        return _run_job(spark, writing.collect, options, shared.tasks)

    def _shared(self, counts: Mapping[str, int], *, tasks: int) -> SharedFiles:
        return SharedFiles(
            paths=self.files,
            transform=self.target.transform,
            topic=self.target.options.topic,
            counts=counts,
            tasks=tasks,
            partitioner=self.target.partitioner,
        )

    def _write_frames(
        self, options: TaskOptions, counts: Mapping[str, int], framing: ShuffleFraming
    ) -> JobResult:
        """Write the rows as frames, and then the announcements to all partitions."""
        topic = framing.options.topic
        hello = framing.hello(self.context, self.target.name, counts[topic])
        encoded = replace(options, encoder=framing.encoder(hello))
        result = write_rows(self.df, encoded, counts={topic: counts[topic]}, partitioner=None)
        announcements = framing.announcements(
            hello, rows=result.rows, newest=result.newest, watermark=self.context.watermark
        )
        try:
            written = self.connection.call(
                announce(options, result.written, hello.partitions, announcements)
            )
        except FanOutError as error:
            _raise_failure(error)
        return replace(
            result,
            rows=result.rows + written.rows,
            bytes=result.bytes + written.bytes,
            written=Counter(result.written) + Counter(written.partitions),
        )


def write_rows(
    df: DataFrame,
    options: TaskOptions,
    *,
    counts: Mapping[str, int],
    partitioner: Partitioner | None,
) -> JobResult:
    """Write a DataFrame, whose columns were checked, to Kafka in one Spark job.

    Raises:
        AttemptFailedError: The job failed, or part of it may have been written twice.
        SetupError: A worker cannot import a module.
        FanOutError: A task raised it.
    """
    spark = df.sparkSession
    tasks = _tasks(spark, counts)
    rows = partitioned(df, topic=options.topic, counts=counts, tasks=tasks, partitioner=partitioner)
    writing = rows.mapInArrow(task(options), REPORT_SCHEMA)
    return _run_job(spark, lambda: [row.report for row in writing.collect()], options, tasks)


def _tasks(spark: SparkSession, counts: Mapping[str, int]) -> int:
    return max(1, min(spark.sparkContext.defaultParallelism, sum(counts.values())))


def _run_job(
    spark: SparkSession, run: Callable[[], Sequence[str]], options: TaskOptions, tasks: int
) -> JobResult:
    """Run the tasks, and check the reports that they return."""
    try:
        found = run()
    except (PySparkException, *JAVA_ERRORS) as error:
        if has_gone(error) or _was_cancelled(error):
            raise  # the query ends: no other attempt
        if (lasting := import_error(error)) is not None:
            raise lasting from error
        raise AttemptFailedError(f"the Spark job failed: {_cause(error)}") from error
    reports = [read_report(text) for text in found]
    # A job without rows may be done without tasks.
    if reports:
        _check_reports(reports, tasks)
        if isinstance(options.mode, Transactional):
            # Before failures are raised: where a stage ran twice, its tasks fail because of
            # the first run.
            _check_that_it_ran_once(spark, reports[0].stage, tasks)
    return _result(reports)


def _is_small(files: Sequence[str]) -> bool:
    size = sum(Path(file).stat().st_size for file in files)
    return size <= _SMALL_BYTES and sum(map(row_count, files)) <= _SMALL_ROWS


def _result(reports: Sequence[TaskReport]) -> JobResult:
    """Return what the tasks of a batch have written together, or raise the failure of one."""
    for report in reports:
        if report.failure is not None:
            _raise_failure(report.failure.error())
    return JobResult(
        rows=sum(report.rows for report in reports),
        bytes=sum(report.bytes for report in reports),
        written=_written(reports),
        new_topics=frozenset(topic for report in reports for topic in report.new_topics),
        newest=max((one.newest for one in reports if one.newest is not None), default=None),
    )


def _raise_failure(error: FanOutError) -> NoReturn:
    """Raise the error of a task, as AttemptFailedError where another transaction may help."""
    if error.retryable or isinstance(error, FencedError | BatchNotWrittenError):
        raise AttemptFailedError(str(error)) from error
    raise error


def _check_reports(reports: Sequence[TaskReport], tasks: int) -> None:
    """Check that every task of one stage has answered, and that no two wrote to a partition."""
    if {report.stage for report in reports} != {reports[0].stage} or sorted(
        report.task for report in reports
    ) != list(range(tasks)):
        raise AttemptFailedError(f"Spark's answers are not those of {tasks} tasks of one stage")
    if len({report.checksum for report in reports if report.failure is None}) > 1:
        raise UnwritableRecordError(
            "the tasks have shared out the rows of a batch in different ways: transform_arrow and "
            "partitioner must return the same each time that they are given the same"
        )
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
    """Check that Spark did not repeat the stage while tasks of it may still have written.

    It does so where the output of the stage before it was lost. A Python worker cannot see it,
    because each task of the new stage is a first attempt again.
    """
    tracker = spark.sparkContext.statusTracker()
    deadline = time.monotonic() + _STAGE_REPORT_SECONDS
    while time.monotonic() < deadline:
        stage_info = tracker.getStageInfo(stage)
        if stage_info is not None and stage_info.currentAttemptId > 0:
            raise AttemptFailedError("Spark began its stage anew, so rows may be there twice")
        if stage_info is not None and stage_info.numCompletedTasks == tasks:
            return
        time.sleep(_LOOK_SECONDS)  # the tracker cannot be waited for
    raise AttemptFailedError(
        f"Spark did not report within {_STAGE_REPORT_SECONDS:g} s whether its stage ran once: its "
        f"listeners are too slow, or spark.ui.retainedStages is too small"
    )


def _written(reports: Sequence[TaskReport]) -> dict[Partition, int]:
    return {
        Partition(topic, number): rows
        for report in reports
        for topic, counts in report.partitions.items()
        for number, rows in counts.items()
    }


def _was_cancelled(error: BaseException) -> bool:
    """Return whether the query was stopped in Spark, which cancels its jobs."""
    text = str(error)
    return "cancelled" in text or "InterruptedException" in text


def _cause(error: BaseException) -> str:
    """Return the error of a Python worker, or what Java says first and last."""
    return python_error(str(error)) or first_and_last_cause(error)
