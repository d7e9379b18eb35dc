"""One transaction per batch: in which order it is begun, written, marked, recorded and committed.

The order is what makes it exact. Whatever is killed in between, a later run finds a token that it
can finish, or no token and a transaction that it aborts.
"""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, final

from fanout.errors import BatchNotWrittenError, CheckpointError, FanOutError, FencedError
from fanout.kafka.transactions.commit_token import MARKERS_LAST, CommitToken, numbers_of
from fanout.kafka.transactions.outcome import TransactionOutcome
from fanout.kafka.writing.producer_id import Transactional
from fanout.spark.sink.job import AttemptFailedError, in_attempts
from fanout.spark.sink.stored_tokens import SinkState

if TYPE_CHECKING:
    from collections.abc import Callable

    from fanout.kafka.transactions.commit_token import Incarnation
    from fanout.spark.current_batch import BatchContext
    from fanout.spark.sink.cluster import Cluster
    from fanout.spark.sink.job import Delivered
    from fanout.spark.sink.options import KafkaSinkOptions

__all__ = ("ExactlyOnce",)

log = logging.getLogger(__name__)


@final
class ExactlyOnce:
    """The transactions of one sink in one batch.

    Args:
        options: The sink's options.
        context: The batch.
        cluster: The cluster.
    """

    def __init__(self, options: KafkaSinkOptions, context: BatchContext, cluster: Cluster) -> None:
        self._batch_id = context.batch_id
        self._ownership = context.ownership
        self._id = options.transactional_id(context.query_id)
        self._wanted_timeout = options.transaction_timeout
        self._marker_group = options.marker_group(context.query_id)
        self._state = SinkState(context.storage, context.ownership, options.sink_name)
        self._cluster = cluster
        self._calls = cluster.transactions
        self._has_token = False

    def recover(self) -> None:
        """Finish every recorded transaction, and abort whatever else an earlier run left open."""
        tokens = self._state.unfinished()
        for token in tokens:
            self._finish(token)
        self._begin(self._cluster.transaction_timeout(self._wanted_timeout))

    def write(self, send: Callable[[Transactional], Delivered]) -> None:
        """Write the batch and commit it, unless it is committed already.

        Args:
            send: Runs the job, as part of a transaction.

        Raises:
            BatchNotWrittenError: It failed too often, or it takes longer than a transaction may.
            CheckpointError: A newer run owns the checkpoint, or it cannot be told whether the
                batch was committed by an earlier run.
            FencedError: Somebody else uses the transactional id.
            FanOutError: What trying again cannot help.
        """
        if self._state.is_committed(self._batch_id):
            return
        token = self._state.token(self._batch_id)
        if token is not None and self._finish(token):
            return
        self._has_token = token is not None
        in_attempts(self._batch_id, lambda: self._attempt(send))

    def _finish(self, token: CommitToken) -> bool:
        """Commit a recorded transaction, and return whether it is committed."""
        outcome = self._cluster.call(self._calls.commit(token))
        if outcome is TransactionOutcome.COMMITTED:
            self._state.record_committed(token.batch_id)
            return True
        age = datetime.now(UTC) - token.created_at
        if age > MARKERS_LAST:
            raise CheckpointError(
                f"nobody knows any more whether batch {token.batch_id} was committed to Kafka: its "
                f"token is from {token.created_at:%Y-%m-%d %H:%M} UTC, and brokers forget after a "
                f"week; look whether its records are in {', '.join(token.topics)}, and say `fanout "
                f"transactions commit --force` if they are, or `abort --force` if they are not"
            )
        log.info("batch %d was not committed (%s)", token.batch_id, outcome.value)
        return False

    def _begin(self, timeout: float) -> Incarnation:
        # Beginning aborts what is open: only the owner of the checkpoint may.
        self._ownership.check()
        return self._cluster.call(self._calls.begin(self._id, timeout))

    def _attempt(self, send: Callable[[Transactional], Delivered]) -> None:
        timeout = self._cluster.transaction_timeout(self._wanted_timeout)
        started, expires_at = time.monotonic(), datetime.now(UTC) + timedelta(seconds=timeout)
        incarnation = self._begin(timeout)
        # Only now nobody else can commit, so that what is not marked will never be.
        marked = self._cluster.call(self._calls.marked(self._marker_group))
        if marked is not None and marked >= self._batch_id:
            self._state.record_committed(self._batch_id)
            return
        if self._has_token:
            self._state.forget(self._batch_id)
            self._has_token = False
        try:
            delivered = send(Transactional(self._id, incarnation))
            if not delivered.rows:
                return
            token = self._token(delivered, incarnation, expires_at)
            self._cluster.call(self._calls.mark(token))
            self._check_time(started, timeout)
            self._state.record(token)
        except BaseException as error:
            self._abort(incarnation)
            if isinstance(error, AttemptFailedError):
                self._check_time(started, timeout)
            raise
        self._has_token = True
        self._commit(token, started, timeout)

    def _commit(self, token: CommitToken, started: float, timeout: float) -> None:
        outcome = self._cluster.call(self._calls.commit(token))
        match outcome:
            case TransactionOutcome.COMMITTED:
                self._state.record_committed(token.batch_id)
            case TransactionOutcome.ABORTED | TransactionOutcome.EXPIRED:
                self._check_time(started, timeout)
                raise AttemptFailedError(
                    f"its transaction {self._id} was {outcome.value} before it was committed"
                )
            case TransactionOutcome.FENCED:
                self._ownership.check()
                raise FencedError(
                    f"somebody else has begun a transaction of {self._id}, which aborted this one: "
                    f"give each job a transactional_id_prefix of its own"
                )

    def _token(
        self, delivered: Delivered, incarnation: Incarnation, expires_at: datetime
    ) -> CommitToken:
        return CommitToken(
            transactional_id=self._id,
            incarnation=incarnation,
            marker_group=self._marker_group,
            batch_id=self._batch_id,
            partitions=numbers_of(delivered.written),
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
        """Let readers get on; where that fails, the next attempt or the brokers' clock does it."""
        try:
            self._cluster.call(self._calls.abort(self._id, incarnation))
        except FanOutError as error:
            log.warning("a transaction of %s could not be aborted: %s", self._id, error)
