"""Derive how a transaction ended, and what can be done about it, from its coordinator's state."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, final

from fanout.kafka.transactions.commit_token import MARKERS_LAST

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.kafka.transactions.commit_token import CommitToken, Incarnation


@final
class TransactionOutcome(Enum):
    """How a transaction ended. After all but the first, `read_committed` delivers none of it."""

    COMMITTED = "committed"
    """Every record of it is in Kafka, once."""
    ABORTED = "aborted"
    """It was aborted, or nothing was ever written in it."""
    EXPIRED = "expired"
    """It took longer than its timeout, so the broker aborted it."""
    FORGOTTEN = "forgotten"
    """The brokers have deleted its transactional id, which was not used for a week by default."""
    FENCED = "fenced"
    """Another run began under its transactional id, which aborted it."""


@final
class TransactionState(Enum):
    """The state of a transactional id, named as by Kafka's coordinator (KIP-98, KIP-664)."""

    UNKNOWN = "Unknown"
    """The broker has no such transactional id: never used, or not for a week."""
    EMPTY = "Empty"
    """Begun, with nothing written since."""
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    """Committed for good; not all partitions have the marker yet."""
    PREPARE_ABORT = "PrepareAbort"
    """Aborted for good; not all partitions have the marker yet."""
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"
    """About to be aborted by the broker."""
    DEAD = "Dead"
    """About to be deleted."""


_COMMITTED = {TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT}
_ABORTED = {
    TransactionState.PREPARE_ABORT,
    TransactionState.COMPLETE_ABORT,
    TransactionState.PREPARE_EPOCH_FENCE,
}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionDescription:
    """The coordinator's description of a transactional id.

    Args:
        incarnation: The producer that may write now; None where the id is unknown.
        timeout: Seconds after which the broker aborts an open transaction.
        started_at: When the newest transaction began, by the broker's clock; None for none.
        partitions: The partitions of the open transaction, by topic; while it ends, those without a
            marker yet. The partition of `__consumer_offsets` is that of our own marker.
    """

    state: TransactionState
    incarnation: Incarnation | None = None
    timeout: float = 0.0
    started_at: datetime | None = None
    partitions: Mapping[str, tuple[int, ...]]

    @property
    def settled(self) -> bool:
        """Whether no transaction is open or still being ended."""
        return self.state in {
            TransactionState.UNKNOWN,
            TransactionState.EMPTY,
            TransactionState.COMPLETE_COMMIT,
            TransactionState.COMPLETE_ABORT,
            TransactionState.DEAD,
        }


def outcome_without_marker(
    incarnation: Incarnation, description: TransactionDescription
) -> TransactionOutcome:
    """Return how a transaction ended whose marker is neither set nor pending.

    Where a later run began under the id and its transaction expired too, an expired transaction
    and a fenced one look alike, and count as expired. In either case nothing of the transaction
    can be committed any more, and the next run fences all former producers.
    """
    if description.incarnation is None:
        return TransactionOutcome.FORGOTTEN
    if description.incarnation == incarnation:
        # Its marker was deleted with a topic, or was never set. A transaction that is still open
        # is not committed: it may be another one, opened by a zombie.
        return (
            TransactionOutcome.COMMITTED
            if description.state in _COMMITTED
            else TransactionOutcome.ABORTED
        )
    # The broker raises the epoch to abort an expired transaction, and a new run has to wait until
    # that has ended.
    same_producer = description.incarnation.producer_id == incarnation.producer_id
    return (
        TransactionOutcome.EXPIRED
        if same_producer and description.state in _ABORTED
        else TransactionOutcome.FENCED
    )


@final
class TransactionVerdict(Enum):
    """What a person or a job can do about a transaction."""

    CLOSED = "closed"
    """Its newest batch is known to be committed, and nothing is open."""
    COMMITTABLE = "can be committed"
    """It is complete, recorded and open."""
    COMMITTED = "committed"
    """It is recorded and committed; the checkpoint does not have that yet."""
    NOT_COMMITTED = "not committed"
    """It is recorded, but was aborted, expired or fenced: none of it is in Kafka."""
    ENDING = "being ended"
    """The coordinator has decided, and not all partitions have the marker yet."""
    UNRECORDED = "open, not recorded"
    """A transaction is open that cannot be completed, unless the job is writing it now."""
    UNKNOWN = "nobody knows"
    """It is recorded, and older than the brokers' memory of markers."""

    @property
    def needs_action(self) -> bool:
        """Whether readers are blocked, or a person has to decide."""
        return self not in {
            TransactionVerdict.CLOSED,
            TransactionVerdict.COMMITTED,
            TransactionVerdict.NOT_COMMITTED,
        }


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionStatus:
    """The status of the newest transaction of a sink.

    Args:
        token: Its token; where `recorded` is False, the token of the last committed transaction.
        recorded: Whether the checkpoint records the token without its outcome.
        description: The coordinator's description of the transactional id; None before Kafka 3.0.
        marked: The newest batch that is marked as committed; None for none.
        pending: Whether an open transaction has set a marker.
    """

    token: CommitToken
    recorded: bool
    description: TransactionDescription | None
    marked: int | None
    pending: bool

    @property
    def verdict(self) -> TransactionVerdict:
        """What can be done about the transaction."""
        if self.recorded:
            return self._of_the_token()
        if self.description is None:
            return TransactionVerdict.UNRECORDED if self.pending else TransactionVerdict.CLOSED
        if self.description.settled:
            return TransactionVerdict.CLOSED
        return (
            TransactionVerdict.UNRECORDED
            if self.description.state is TransactionState.ONGOING
            else TransactionVerdict.ENDING
        )

    def _of_the_token(self) -> TransactionVerdict:
        token, description = self.token, self.description
        if self.marked is not None and self.marked >= token.batch_id:
            return TransactionVerdict.COMMITTED
        if self.pending and (description is None or description.state is TransactionState.ONGOING):
            ours = description is None or description.incarnation == token.incarnation
            return TransactionVerdict.COMMITTABLE if ours else TransactionVerdict.NOT_COMMITTED
        if self.pending:
            return TransactionVerdict.ENDING
        if description is not None:
            outcome = outcome_without_marker(token.incarnation, description)
            if outcome is TransactionOutcome.COMMITTED:
                return TransactionVerdict.COMMITTED
        age = datetime.now(UTC) - token.created_at
        return (
            TransactionVerdict.UNKNOWN if age > MARKERS_LAST else TransactionVerdict.NOT_COMMITTED
        )
