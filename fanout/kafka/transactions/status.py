"""Where a transaction stands that a job may have left open, told without changing anything."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, final

from fanout.kafka.transactions.commit_token import MARKERS_LAST
from fanout.kafka.transactions.outcome import (
    TransactionDescription,
    TransactionOutcome,
    TransactionState,
    outcome_without_marker,
)

if TYPE_CHECKING:
    from fanout.kafka.transactions.commit_token import CommitToken
    from fanout.kafka.transactions.transactions import Transactions

__all__ = ("TransactionStatus", "TransactionVerdict", "transaction_status")


@final
class TransactionVerdict(Enum):
    """What is to be made of it."""

    CLOSED = "closed"
    """Its newest batch is known to be committed, and nothing is open."""
    COMMITTABLE = "can be committed"
    """It is complete, recorded and open."""
    COMMITTED = "committed"
    """It is recorded, and committed; the checkpoint does not know yet."""
    NOT_COMMITTED = "not committed"
    """It is recorded, but was aborted, has expired, or was fenced: nothing of it is there."""
    ENDING = "being ended"
    """The coordinator has decided, and not all partitions have been told."""
    UNRECORDED = "open, not recorded"
    """A transaction is open that nobody can complete, unless the job is writing it right now."""
    UNKNOWN = "nobody knows"
    """It is recorded, and older than what brokers remember."""

    @property
    def needs_somebody(self) -> bool:
        """Whether readers are held up, or a person has to decide."""
        return self not in {
            TransactionVerdict.CLOSED,
            TransactionVerdict.COMMITTED,
            TransactionVerdict.NOT_COMMITTED,
        }


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionStatus:
    """What is known about the newest transaction of a sink.

    Args:
        token: Its token; where `recorded` is False, that of the last one that was committed.
        recorded: Whether it is not known to the checkpoint what became of the token.
        state: What the coordinator says of the transactional id; None before Kafka 3.0.
        marked: The newest batch that is marked as committed; None where none is.
        pending: Whether an open transaction has set a marker.
    """

    token: CommitToken
    recorded: bool
    state: TransactionDescription | None
    marked: int | None
    pending: bool

    @property
    def verdict(self) -> TransactionVerdict:
        """What is to be made of it."""
        if self.recorded:
            return self._of_the_token()
        if self.state is None:
            return TransactionVerdict.UNRECORDED if self.pending else TransactionVerdict.CLOSED
        if self.state.settled:
            return TransactionVerdict.CLOSED
        return (
            TransactionVerdict.UNRECORDED
            if self.state.phase is TransactionState.ONGOING
            else TransactionVerdict.ENDING
        )

    def _of_the_token(self) -> TransactionVerdict:
        token, state = self.token, self.state
        if self.marked is not None and self.marked >= token.batch_id:
            return TransactionVerdict.COMMITTED
        if self.pending and (state is None or state.phase is TransactionState.ONGOING):
            ours = state is None or state.incarnation == token.incarnation
            return TransactionVerdict.COMMITTABLE if ours else TransactionVerdict.NOT_COMMITTED
        if self.pending:
            return TransactionVerdict.ENDING
        if state is not None:
            outcome = outcome_without_marker(token.incarnation, state)
            if outcome is TransactionOutcome.COMMITTED:
                return TransactionVerdict.COMMITTED
        age = datetime.now(UTC) - token.created_at
        return (
            TransactionVerdict.UNKNOWN if age > MARKERS_LAST else TransactionVerdict.NOT_COMMITTED
        )


async def transaction_status(
    transactions: Transactions, token: CommitToken, *, recorded: bool
) -> TransactionStatus:
    """Ask where a transaction stands. Nothing is changed, and nothing that is open is waited for.

    Args:
        transactions: The calls.
        token: Its token.
        recorded: Whether it is not known to the checkpoint what became of it.

    Raises:
        ServiceError: The id or the group may not be used, or the cluster does not answer.
    """
    state = await transactions.describe(token.transactional_id)
    marks = await transactions.marks(token.marker_group, token.topics, stable=True)
    pending = marks.pending
    if pending:  # it hides the marker before it
        marks = await transactions.marks(token.marker_group, token.topics, stable=False)
    return TransactionStatus(
        token=token, recorded=recorded, state=state, marked=marks.newest, pending=pending
    )
