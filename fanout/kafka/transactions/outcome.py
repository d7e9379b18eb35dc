"""Derive how a transaction ended from the state that its coordinator still has."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from fanout.kafka.transactions.commit_token import Incarnation


@final
class TransactionOutcome(Enum):
    """How a transaction ended. After all but the first, `read_committed` delivers none of it."""

    COMMITTED = "committed"
    """Every record of it is in Kafka, once."""
    ABORTED = "aborted"
    """It was aborted, or nothing was ever written in it."""
    EXPIRED = "expired"
    """It took longer than its timeout, so the broker aborted it."""
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
        return TransactionOutcome.EXPIRED
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
