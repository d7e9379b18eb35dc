"""What has become of a transaction, told from what the brokers still know of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from fanout.kafka.transactions.commit_token import Incarnation

__all__ = (
    "TransactionDescription",
    "TransactionOutcome",
    "TransactionState",
    "outcome_without_marker",
)


@final
class TransactionOutcome(Enum):
    """How a transaction has ended. All but the first leave nothing that `read_committed` sees."""

    COMMITTED = "committed"
    """Every record of it is there, once."""
    ABORTED = "aborted"
    """Somebody aborted it, or nothing was ever written in it."""
    EXPIRED = "expired"
    """It took longer than its timeout, so that the broker aborted it."""
    FENCED = "fenced"
    """Somebody has begun anew under its transactional id, which aborted it."""


@final
class TransactionState(Enum):
    """Where a transactional id stands, by the names of Kafka's coordinator (KIP-98, KIP-664)."""

    UNKNOWN = "Unknown"
    """The broker has no such transactional id: never used, or not for a week."""
    EMPTY = "Empty"
    """Begun, and nothing written since."""
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    """Committed for good; not all partitions have been told."""
    PREPARE_ABORT = "PrepareAbort"
    """Aborted for good; not all partitions have been told."""
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"
    """About to be aborted by the broker."""
    DEAD = "Dead"
    """About to be forgotten."""


_COMMITTED = {TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT}
_ABORTED = {
    TransactionState.PREPARE_ABORT,
    TransactionState.COMPLETE_ABORT,
    TransactionState.PREPARE_EPOCH_FENCE,
}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionDescription:
    """What the coordinator knows of a transactional id.

    Args:
        phase: Where it stands.
        incarnation: Who may write now; None where the id is unknown.
        timeout: Seconds after which the broker aborts what is open.
        started_at: When the newest transaction began, by the broker's clock; None where none did.
        partitions: The partitions of what is open, by topic; while it ends, those that have not
            been told. The partition of `__consumer_offsets` is that of the marker.
    """

    phase: TransactionState
    incarnation: Incarnation | None = None
    timeout: float = 0.0
    started_at: datetime | None = None
    partitions: Mapping[str, tuple[int, ...]]

    @property
    def settled(self) -> bool:
        """Whether nothing is open, and nothing is still being ended."""
        return self.phase in {
            TransactionState.UNKNOWN,
            TransactionState.EMPTY,
            TransactionState.COMPLETE_COMMIT,
            TransactionState.COMPLETE_ABORT,
            TransactionState.DEAD,
        }


def outcome_without_marker(
    incarnation: Incarnation, state: TransactionDescription
) -> TransactionOutcome:
    """Tell what has become of a transaction whose marker is neither there nor on its way.

    A transaction that expired and one that was fenced look alike where the id was begun again, and
    the transaction of that run expired as well: that is taken for the first. Either way nothing of
    it can be committed any more, and to begin again fences whoever is left.

    Args:
        incarnation: Who opened it.
        state: Where its transactional id stands.
    """
    if state.incarnation is None:
        return TransactionOutcome.EXPIRED
    if state.incarnation == incarnation:
        # Its marker went with a topic that was deleted, or nobody ever set it. What is still open
        # is not committed: it may be another transaction, which a zombie has opened.
        return (
            TransactionOutcome.COMMITTED
            if state.phase in _COMMITTED
            else TransactionOutcome.ABORTED
        )
    # The broker takes an epoch of its own to abort a transaction that has expired, and whoever
    # begins anew has to wait for the end of that.
    same_producer = state.incarnation.producer_id == incarnation.producer_id
    return (
        TransactionOutcome.EXPIRED
        if same_producer and state.phase in _ABORTED
        else TransactionOutcome.FENCED
    )
