"""Write a batch with its delivery guarantee; for `"exactly_once"` in one transaction of Kafka.

The driver begins the transaction, the Spark job writes in it, the driver adds a marker, stores a
token with which the transaction can be finished, and commits. Wherever a run is killed, the next
run finds a token with which it finishes the transaction, or no token and a transaction to abort.
"""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, final

from fanout.errors import (
    BatchNotWrittenError,
    CheckpointError,
    FanOutError,
    FencedError,
)
from fanout.kafka.transactions.commit_token import MARKERS_LAST, CommitToken, numbers_of
from fanout.kafka.transactions.outcome import TransactionOutcome
from fanout.kafka.writing.producer_id import Idempotent, Transactional, Unconfirmed
from fanout.spark.query.batch_context import batch_of_sink
from fanout.spark.sinks.kafka.connection import connect
from fanout.spark.sinks.kafka.job import AttemptFailedError, SinkJob
from fanout.spark.sinks.kafka.owned_rows import transform_rows, transformed_schema
from fanout.spark.sinks.kafka.partitioned_rows import check_columns
from fanout.spark.sinks.kafka.stored_tokens import SinkState
from fanout.spark.sinks.sink_batch import WrittenBatch, batch_for
from fanout.spark.workers.worker_check import check_workers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame

    from fanout.kafka.transactions.commit_token import Incarnation
    from fanout.kafka.writing.producer_id import WriteMode
    from fanout.spark.query.batch_context import BatchContext
    from fanout.spark.sinks.kafka.connection import SinkConnection, SinkTarget
    from fanout.spark.sinks.kafka.job import JobResult

log = logging.getLogger(__name__)

_ATTEMPTS: Final = 3


def write_batch(df: DataFrame, batch_id: int, target: SinkTarget) -> None:
    """Write a batch; see `KafkaSink.write`. For a shuffle there may be a column `eventTime`."""
    context = batch_of_sink(batch_id, target.name)
    files = _readable_files(df, target, context)
    if target.transform is not None:
        schema = transformed_schema(target.transform, df.schema)
        df = transform_rows(df, target.transform, schema)
    check_columns(df.schema, target.options.topic, event_times=target.framing is not None)
    check_workers(df.sparkSession, target.options)
    connection = connect(target, context.loop)
    job = SinkJob(df, target, context, connection, files)
    match target.options.delivery_guarantee:
        case "exactly_once":
            ExactlyOnce(target, context, connection).write(job)
        case "at_least_once":
            _in_attempts(batch_id, lambda: _run(job, Idempotent()))
        case "none":
            _in_attempts(batch_id, lambda: _run(job, Unconfirmed()))


def _run(job: SinkJob, mode: WriteMode) -> None:
    result = job.run(mode)
    job.target.counts.add(job.context.query_id, batches=1, records=result.rows, bytes=result.bytes)


def _readable_files(df: DataFrame, target: SinkTarget, context: BatchContext) -> Sequence[str]:
    """Return the files whose rows are those of a DataFrame, where the driver can read them."""
    return context.files if df is context.frame and target.framing is None else ()


def recover_sink(target: SinkTarget, context: BatchContext) -> None:
    """Finish the transactions that an earlier run has recorded, and abort any other open one.

    Raises:
        CheckpointError: It is unknown whether a batch was committed.
        ServiceError: No broker answers, or the transactional id may not be used.
    """
    if target.options.delivery_guarantee == "exactly_once":
        ExactlyOnce(target, context, connect(target, context.loop)).recover()


def _in_attempts(batch_id: int, attempt: Callable[[], object]) -> None:
    """Make up to three attempts to write a whole batch; AttemptFailedError says another may help.

    Raises:
        BatchNotWrittenError: All failed; the cause is the last failure.
    """
    failures: list[AttemptFailedError] = []
    while len(failures) < _ATTEMPTS:
        try:
            attempt()
        except AttemptFailedError as error:
            failures.append(error)
            log.warning("attempt %d to write batch %d: %s", len(failures), batch_id, error)
        else:
            return
    raise BatchNotWrittenError(
        f"batch {batch_id} could not be written to Kafka in {_ATTEMPTS} attempts; the last one: "
        f"{failures[-1]}"
    ) from failures[-1]


@final
class ExactlyOnce:
    """The transactions of one sink in one batch."""

    def __init__(
        self, target: SinkTarget, context: BatchContext, connection: SinkConnection
    ) -> None:
        self._batch = batch_for(target.name, context)
        self._batch_id = context.batch_id
        self._ownership = context.ownership
        self._id = target.transactional_id(context.query_id)
        self._wanted_timeout = target.options.transaction_timeout
        self._marker_group = target.marker_group(context.query_id)
        self._state = SinkState(context.storage, context.ownership, target.name)
        self._connection = connection
        self._calls = connection.transactions
        self._has_token = False
        self._count = partial(target.counts.add, context.query_id)

    def recover(self) -> None:
        """Finish every recorded transaction, and abort any other that an earlier run left open."""
        for token in self._state.unfinished():
            self._finish(token)
        self._begin(self._connection.transaction_timeout(self._wanted_timeout))

    def write(self, job: SinkJob) -> None:
        """Write the batch and commit it, unless it is committed already.

        Raises:
            BatchNotWrittenError: It failed too often, or it takes longer than a transaction may.
            CheckpointError: A newer run owns the checkpoint, it is unknown whether an earlier run
                committed the batch, or the sink holds another batch with its id, or a later one.
            FencedError: Another job uses the transactional id.
            FanOutError: Another attempt cannot help.
        """
        token = self._state.token(self._batch_id)
        if self._state.is_committed(self._batch_id) or (token is not None and self._finish(token)):
            self._is_marked()  # or it is another batch with this id
            return
        self._has_token = token is not None
        _in_attempts(self._batch_id, lambda: self._attempt(job))

    def _finish(self, token: CommitToken) -> bool:
        """Commit a recorded transaction, and return whether it is committed."""
        outcome = self._connection.call(self._calls.commit(token))
        if outcome is TransactionOutcome.COMMITTED:
            self._state.record_committed(token.batch_id)
            return True
        age = datetime.now(UTC) - token.created_at
        if age > MARKERS_LAST:
            raise CheckpointError(
                f"it is unknown whether batch {token.batch_id} was committed to Kafka: its token "
                f"is from {token.created_at:%Y-%m-%d %H:%M} UTC, and brokers forget after a week; "
                f"look whether its records are in {', '.join(token.topics)}, and run `fanout "
                f"transactions commit --force` if they are, or `abort --force` if they are not"
            )
        log.info("batch %d was not committed (%s)", token.batch_id, outcome.value)
        return False

    def _begin(self, timeout: float) -> Incarnation:
        # To begin aborts an open transaction: only the owner of the checkpoint may do so.
        self._ownership.check()
        return self._connection.call(self._calls.begin(self._id, timeout))

    def _is_marked(self) -> bool:
        """Return whether the batch has a marker; raise where another one has its id."""
        mark = self._connection.call(self._calls.newest_mark(self._marker_group))
        newest = None if mark.newest is None else WrittenBatch(mark.newest, mark.content)
        return self._batch.is_in("Kafka", newest)

    def _attempt(self, job: SinkJob) -> None:
        timeout = self._connection.transaction_timeout(self._wanted_timeout)
        started, expires_at = time.monotonic(), datetime.now(UTC) + timedelta(seconds=timeout)
        incarnation = self._begin(timeout)
        # From here on no other run can commit: a batch without a marker will never have one.
        if self._is_marked():
            self._state.record_committed(self._batch_id)
            return
        if self._has_token:
            self._state.forget(self._batch_id)
            self._has_token = False
        self._count(begun=1)
        try:
            result = job.run(Transactional(self._id, incarnation))
            if not result.rows:
                self._count(batches=1, committed=1)
                return
            token = self._token(result, incarnation, expires_at)
            self._connection.call(self._calls.mark(token, self._batch.content))
            self._check_time(started, timeout)
            self._state.record(token)
        except BaseException as error:
            self._abort(incarnation)
            if isinstance(error, AttemptFailedError):
                self._check_time(started, timeout)
            raise
        self._has_token = True
        self._commit(token, started, timeout)
        self._count(batches=1, committed=1, records=result.rows, bytes=result.bytes)

    def _commit(self, token: CommitToken, started: float, timeout: float) -> None:
        outcome = self._connection.call(self._calls.commit(token))
        match outcome:
            case TransactionOutcome.COMMITTED:
                self._state.record_committed(token.batch_id)
            case (
                TransactionOutcome.ABORTED
                | TransactionOutcome.EXPIRED
                | TransactionOutcome.FORGOTTEN
            ):
                self._count(aborted=1)
                self._check_time(started, timeout)
                raise AttemptFailedError(
                    f"its transaction {self._id} was {outcome.value} before it was committed"
                )
            case TransactionOutcome.FENCED:
                self._count(aborted=1)
                self._ownership.check()
                raise FencedError(
                    f"another job has begun a transaction of {self._id}, which aborted this one: "
                    f"give each job a transactional_id_prefix of its own"
                )

    def _token(
        self, result: JobResult, incarnation: Incarnation, expires_at: datetime
    ) -> CommitToken:
        return CommitToken(
            transactional_id=self._id,
            incarnation=incarnation,
            marker_group=self._marker_group,
            batch_id=self._batch_id,
            partitions=numbers_of(result.written),
            created_at=datetime.now(UTC),
            expires_at=expires_at,
        )

    def _check_time(self, started: float, timeout: float) -> None:
        """Check that the transaction may still be open."""
        taken = time.monotonic() - started
        if taken >= timeout:
            raise BatchNotWrittenError(
                f"batch {self._batch_id} took {taken:.1f} s, but Kafka aborts a transaction after "
                f"{timeout:g} s: make batches smaller (max_records, max_bytes), or raise "
                f"transaction_timeout, and transaction.max.timeout.ms at the brokers"
            )

    def _abort(self, incarnation: Incarnation) -> None:
        """Abort, so that readers go on; if that fails, the next attempt or the timeout aborts."""
        try:
            self._connection.call(self._calls.abort(self._id, incarnation))
        except FanOutError as error:
            log.warning("a transaction of %s could not be aborted: %s", self._id, error)
        else:
            self._count(aborted=1)
