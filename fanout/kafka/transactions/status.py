"""Read the status of a transaction that a job may have left open, without changing anything."""

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


async def transaction_status(
    transactions: Transactions, token: CommitToken, *, recorded: bool
) -> TransactionStatus:
    """Read the status of a transaction, without changing it or waiting for its end."""
    description = await transactions.describe(token.transactional_id)
    markers = await transactions.markers(token.marker_group, token.topics, stable=True)
    pending = markers.pending
    if pending:  # it hides the marker before it
        markers = await transactions.markers(token.marker_group, token.topics, stable=False)
    return TransactionStatus(
        token=token,
        recorded=recorded,
        description=description,
        marked=markers.newest,
        pending=pending,
    )
