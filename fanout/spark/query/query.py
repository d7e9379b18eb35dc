"""A running query: its progress, its end and its errors."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, final

from fanout.core.error_text import text_of
from fanout.core.lifecycle_log import LogEvent, totals, write
from fanout.core.statistics import BatchStatistics
from fanout.core.user_functions import call, check_function
from fanout.errors import BatchFailedError, CheckpointError, SparkLostError
from fanout.spark.hadoop.jvm import JAVA_ERRORS, has_gone, java_errors
from fanout.spark.query.batch_runner import BatchReport, BatchResult

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import ExitStack

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from fanout.core.statistics import LanderStatistics, Statistics
    from fanout.landing.claims import Ownership
    from fanout.landing.log.ledger import BatchLedger, LedgerBatch
    from fanout.spark.landers.stream import LandersStream
    from fanout.spark.query.batch_runner import BatchListener, BatchRunner
    from fanout.spark.query.query_stream import QueryStream

log = logging.getLogger(__name__)

# How often the query checks whether Spark's side of it was stopped.
_LOOK = 0.5
# How often it checks whether a newer run has taken over the checkpoint: a remote check costs 10 ms
# or more, and Kinesis lets two runs take a shard's subscription from each other every 5 s.
_CLAIM_LOOK = 5.0
# How long a stop waits for the next call of the batch function, which shows that Spark has
# committed the last batch; and how long for that commit where no call comes.
_NEXT_CALL = 0.5
_COMMIT = 30.0
# A line about a batch names a few of its splits in its text, and more in its fields.
_NAMED_PLACES = 5
_LOGGED_PLACES = 100


class _NotDone(Exception):  # noqa: N818 - it is what Spark gets in place of the error
    """A batch is not to be committed; the error itself is the query's."""


@final
@dataclass(frozen=True, slots=True)
class QueryProgress:
    """The work of a query so far.

    Args:
        batch_id: The latest batch that the handler has finished; None before the first.
        batches: Batches that the handler has finished in this run.
        rows: Records in the latest batch.
        bytes: Bytes of its segment.
        rows_per_second: Its records per second, from their arrival to the handler's return.
        total_rows: Records in all batches of this run.
        lag: Seconds behind the newest record, per split; None where the service did not report it.
        resubscriptions: Recoverable ends of subscriptions in this run.
        landers: The landers that are connected, by number; empty where the driver reads.
    """

    batch_id: int | None
    batches: int
    rows: int
    bytes: int
    rows_per_second: float
    total_rows: int
    lag: Mapping[str, float | None]
    resubscriptions: int
    landers: tuple[LanderStatistics, ...] = ()


@final
class FanOutQuery:
    """A running query, with the verbs of Spark's StreamingQuery; made by `foreach_batch`.

    Stop it with `stop`, which lets a running handler finish. Stopping Spark's own query
    (`spark.streams`, `spark.stop()`) cancels the jobs of the handler: the query then ends as
    stopped, not as failed, and the batch comes again in the next run.
    """

    def __init__(
        self,
        stream: QueryStream | LandersStream,
        runner: BatchRunner,
        ledger: BatchLedger,
        ownership: Ownership,
        resources: ExitStack,
    ) -> None:
        self._stream = stream
        self._ledger = ledger
        self._runner = runner
        self._ownership = ownership
        self._resources = resources
        self._started: Future[StreamingQuery] = Future()
        self._latest = BatchResult(-1)
        self._last_with_rows = -1
        self._set_aside = 0
        self._batches = 0
        self._total_rows = 0
        self._total_bytes = 0
        self._seconds: dict[str, float] = {}
        self._listeners: list[BatchListener] = []
        self._label = ""
        self._fields: dict[str, object] = {}
        self._started_at = time.monotonic()
        self._error: BaseException | None = None
        self._idle = threading.Event()
        self._idle.set()
        self._finished = threading.Event()
        self._ending = threading.Event()
        self._terminated = threading.Event()
        self._interrupted = False
        self._handler_thread: int | None = None

    def __repr__(self) -> str:
        state = "running" if self.is_active else "failed" if self.exception() else "stopped"
        return f"<FanOutQuery {state}, {self._batches} batches, {self._total_rows} rows>"

    @property
    def id(self) -> str:
        """Spark's id of the query, the same after each restart from its checkpoint."""
        return str(self._started.result().id)

    @property
    def name(self) -> str | None:
        """The query's name, if it was given one."""
        name: str | None = self._started.result().name
        return name

    @property
    def is_active(self) -> bool:
        """Whether the query runs; False as soon as all of its resources are closed."""
        return not self._terminated.is_set()

    def exception(self) -> BaseException | None:
        """Return the error that ended the query, with its cause; None while there is none.

        A fatal error of the stream is here as soon as it is known, also while a handler runs.
        """
        return self._error or self._stream.failure

    def progress(self) -> QueryProgress:
        """Return the work of the query so far."""
        latest = self._latest
        statistics = self._stream.statistics()
        return QueryProgress(
            batch_id=latest.batch_id if self._batches else None,
            batches=self._batches,
            rows=latest.rows,
            bytes=latest.bytes,
            rows_per_second=latest.rows / latest.seconds if latest.seconds else 0.0,
            total_rows=self._total_rows,
            lag=MappingProxyType({id_: split.lag for id_, split in statistics.splits.items()}),
            resubscriptions=statistics.resubscriptions,
            landers=statistics.landers,
        )

    def statistics(self) -> Statistics:
        """Return the counters of the stream, of each split, and of the batches."""
        seconds = MappingProxyType(self._seconds.copy())
        batches = BatchStatistics(
            self._batches, self._total_rows, self._total_bytes, seconds, self._set_aside
        )
        return replace(self._stream.statistics(), batches=batches)

    def on_batch(self, listener: BatchListener) -> Callable[[], None]:
        """Call a function after each micro-batch with records, also after one that has failed.

        Args:
            listener: It gets a `BatchReport`, in the thread of the handler, and must not block.
                What it raises is logged, and the query goes on.

        Returns:
            A function that ends the calls; idempotent.

        Raises:
            OptionError: If the listener is no plain function.
        """
        check_function("listener", listener, "a function of a BatchReport", arguments=1)
        self._listeners.append(listener)

        def remove() -> None:
            with suppress(ValueError):
                self._listeners.remove(listener)

        return remove

    def batch(self, batch_id: int) -> LedgerBatch | None:
        """Return the ledger's entry of a batch: rows, ranges, watermark.

        Args:
            batch_id: Spark's id of the micro-batch, which the handler was called with.

        Returns:
            None where the batch is unknown or no longer kept; the newest ten batches with records
            are kept.
        """
        return self._ledger.batch(batch_id)

    def await_termination(self, timeout: float | None = None) -> bool:
        """Block until the query has ended.

        Args:
            timeout: Seconds to wait at most; None for no limit.

        Returns:
            Whether it has ended.

        Raises:
            FanOutError: The error that ended it.
        """
        if not self._terminated.wait(timeout):
            return False
        if (error := self.exception()) is not None:
            raise error
        return True

    def stop(self) -> None:
        """End the query and wait until all of its resources are closed; idempotent.

        It takes less than a second unless a handler is running, which it waits for, or Spark is
        committing its batch, for 30 seconds at most. Records that no handler was called with come
        again in the next run. Called inside the handler, it returns at once, and the query ends
        after this batch.
        """
        self._ending.set()
        if threading.get_ident() != self._handler_thread:
            self._terminated.wait()

    def start(self, writer: DataStreamWriter) -> None:
        """Start Spark's side of the query; from then on the query closes its own resources.

        Raises:
            CheckpointError: If Spark refuses: its own files are damaged, or the name is taken.
        """
        with java_errors("start Spark's side of the query"):
            spark_query = writer.foreachBatch(self._run_batch).start()
            self._started.set_result(spark_query)
            self._label = f"{self.id} ({self.name})" if self.name else self.id
            self._fields = {"fanout.query.id": self.id, "fanout.stream.name": self.name or ""}
        newest = self._ledger.newest
        self._log(
            logging.INFO,
            LogEvent.QUERY_STARTED,
            "the query %s %s",
            self._label,
            "starts on a new checkpoint"
            if newest is None
            else f"resumes; the newest batch of its checkpoint is {newest.batch_id}",
            fields={"fanout.query.resumed": newest is not None},
        )
        self._resources = self._resources.pop_all()
        threading.Thread(target=self._watch, name="fanout query", daemon=True).start()

    def _run_batch(self, _clock: DataFrame, batch_id: int) -> None:
        """Run one micro-batch in Spark's thread; the clock's row is not read."""
        self._idle.clear()
        self._handler_thread = threading.get_ident()
        try:
            result = self._runner.run(batch_id, self.id, self._stopped_in_spark)
            self._count(result)
            if result.failed is not None:
                self._tell(batch_id, error=result.failed, set_aside=True)
            elif result.rows:
                self._tell(batch_id, result.rows, result.bytes)
            # Spark commits the batch next. A newer run may repeat it already: it would end at that
            # commit, and if it died in its handler, its successor would take the batch for done.
            self._ownership.check()
        except BaseException as error:  # noqa: BLE001 - Spark gets another one
            if self._stopped_in_spark():
                self._interrupted = True
                cause = type(error.__cause__ or error).__name__
                log.warning("batch %d was interrupted and comes again: %s", batch_id, cause)
            else:
                self._error = self._error or error
                if isinstance(error, BatchFailedError):
                    self._tell(batch_id, error=error)
            self._ending.set()
            # Otherwise Spark would commit the batch. Spark and py4j log the traceback of what they
            # get, and `await_termination` raises the whole error.
            raise _NotDone(text_of(error)) from None
        finally:
            self._handler_thread = None
            self._idle.set()

    def _stopped_in_spark(self) -> bool:
        """Return whether Spark's side was stopped, which cancels the jobs of the handler."""
        try:
            return not self._started.result().isActive
        except JAVA_ERRORS:
            return False

    def _count(self, result: BatchResult) -> None:
        if result.rows:
            self._last_with_rows = result.batch_id
        if result.failed is not None:
            self._set_aside += 1
        elif result.rows:
            self._latest = result
            self._batches += 1
            self._total_rows += result.rows
            self._total_bytes += result.bytes
            for phase, seconds in self._runner.seconds.items():
                self._seconds[phase] = self._seconds.get(phase, 0.0) + seconds
        if result.finished:
            self._finished.set()
            self._ending.set()

    def _tell(
        self,
        batch_id: int,
        rows: int = 0,
        nbytes: int = 0,
        error: BatchFailedError | None = None,
        *,
        set_aside: bool = False,
    ) -> None:
        """Log a batch that is over, and tell the listeners of it."""
        cause = None if error is None else error.__cause__
        report = BatchReport(
            batch_id=batch_id,
            rows=rows,
            bytes=nbytes,
            seconds=MappingProxyType(dict(self._runner.seconds)),
            error=cause if isinstance(cause, Exception) else error,
            set_aside=set_aside,
        )
        if error is None:
            self._log_batch(report, logging.DEBUG, "has ended")
        else:
            outcome = "was set aside" if set_aside else "comes again"
            self._log_batch(report, logging.ERROR, f"{outcome} after", error)
        for listener in tuple(self._listeners):
            try:
                call(listener, report)
            except BaseException as raised:  # noqa: BLE001 - it is the user's function
                log.warning("a listener of batch %d failed: %s", batch_id, text_of(raised))

    def _log_batch(
        self, report: BatchReport, level: int, outcome: str, error: BatchFailedError | None = None
    ) -> None:
        """Log what became of a batch, with its place in the stream."""
        batch = self._ledger.batch(report.batch_id)
        assert batch is not None, "it is the newest one"
        name = "" if error is None else type(error.__cause__ or error).__name__
        places = batch.places(_LOGGED_PLACES)
        more = len(batch.ranges or {}) - _NAMED_PLACES
        self._log(
            level,
            LogEvent.BATCH_SET_ASIDE if report.set_aside else LogEvent.BATCH_FINISHED,
            "batch %d of the query %s %s: %d records, %d bytes%s%s",
            report.batch_id,
            self._label,
            f"{outcome} {name}".rstrip(),
            batch.rows,
            batch.bytes,
            "".join(f"; {place}" for place in places[:_NAMED_PLACES]),
            f" and {more} more" if more > 0 else "",
            fields={
                "fanout.batch.id": report.batch_id,
                "fanout.records": batch.rows,
                "fanout.bytes": batch.bytes,
                "fanout.batch.seconds": dict(report.seconds),
                "fanout.batch.ranges": places,
                **({"error.type": name} if name else {}),
            },
        )

    def _log(
        self, level: int, event: LogEvent, message: str, *args: object, fields: Mapping[str, object]
    ) -> None:
        write(level, event, message, *args, fields={**self._fields, **fields})

    def _watch(self) -> None:
        """Wait for the end of the query, and clean up."""
        spark_query = self._started.result()
        try:
            self._await_end(spark_query)
            self._stream.stop()
            self._idle.wait()
            if self._error is None:
                self._await_commit(spark_query)
            spark_query.stop()
            if not self._interrupted:
                self._error = self._error or _failure_of(spark_query)
        except Exception as error:  # noqa: BLE001 - any error is the query's
            if has_gone(error):
                self._lose_spark(error)
            else:
                self._error = self._error or error
        finally:
            self._close()

    def _await_end(self, spark_query: StreamingQuery) -> None:
        """Return when the query is to end, or when Spark's side of it has ended."""
        checked = time.monotonic()
        while not self._ending.wait(_LOOK):
            if not spark_query.isActive:
                self._look_at_claim()  # a newer query of this session may be the reason
                return
            if time.monotonic() - checked >= _CLAIM_LOOK:
                self._look_at_claim()
                checked = time.monotonic()

    def _await_commit(self, spark_query: StreamingQuery) -> None:
        """Wait until Spark has committed the latest batch; without that the next run repeats it."""
        deadline = time.monotonic() + _COMMIT
        while spark_query.isActive and not self._finished.wait(_NEXT_CALL):
            # The trigger is not due yet. Spark reports the progress of a committed batch.
            progress = spark_query.lastProgress
            if self._last_with_rows <= (-1 if progress is None else progress["batchId"]):
                return
            # It may keep no reports (numRecentProgressUpdates=1): then the trigger ends after both.
            if not spark_query.status["isTriggerActive"] and not spark_query.recentProgress:
                return
            if time.monotonic() >= deadline:
                return

    def _look_at_claim(self) -> None:
        """End the query if a newer run owns the checkpoint, also when there is nothing to write."""
        try:
            loss = self._ownership.loss()
        except CheckpointError as error:
            log.warning("cannot see who owns the checkpoint; the next write will: %s", error)
            return
        if loss is not None:
            self._error = self._error or loss
            self._ending.set()

    def _lose_spark(self, error: BaseException) -> None:
        """Make the death of the JVM the query's error, instead of an error that it has caused."""
        cause = None if self._error is None else self._error.__cause__
        if self._error is None or (cause is not None and has_gone(cause)):
            lost = SparkLostError(
                "Spark's JVM has gone away under the query; start the query again on the same "
                "checkpoint, in a new process"
            )
            lost.__cause__ = self._error or error
            self._error = lost

    def _close(self) -> None:
        self._stream.stop()
        self._idle.wait()
        try:
            self._resources.close()
        finally:
            error = self.exception()
            name = None if error is None else type(error).__name__
            seconds = time.monotonic() - self._started_at
            self._log(
                logging.INFO if name is None else logging.ERROR,
                LogEvent.QUERY_STOPPED,
                "the query %s has %s after %.1f s; its handler has finished %d batches with %d "
                "records and %d bytes",
                self._label,
                "ended" if name is None else f"failed with {name}",
                seconds,
                self._batches,
                self._total_rows,
                self._total_bytes,
                fields=totals(
                    seconds, self._total_rows, self._total_bytes, self._batches, error=name
                ),
            )
            self._terminated.set()


def _failure_of(spark_query: StreamingQuery) -> CheckpointError | None:
    """Return the error of Spark's side of a query whose batch function did not fail."""
    cause = spark_query.exception()
    if cause is None:
        return None
    reason = str(cause).partition("\n")[0]
    error = CheckpointError(
        f"Spark ended its side of the query: {reason}; look at its checkpoint and its log"
    )
    error.__cause__ = cause
    return error
