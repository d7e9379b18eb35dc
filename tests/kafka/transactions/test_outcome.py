from __future__ import annotations

import pytest

from fanout.kafka.transactions.commit_token import Incarnation
from fanout.kafka.transactions.outcome import (
    TransactionDescription,
    TransactionOutcome,
    TransactionState,
    outcome_without_marker,
)

OURS, NEWER, OTHER = Incarnation(7, 3), Incarnation(7, 5), Incarnation(8, 3)
ENDED = {
    TransactionState.UNKNOWN,
    TransactionState.EMPTY,
    TransactionState.COMPLETE_COMMIT,
    TransactionState.COMPLETE_ABORT,
    TransactionState.DEAD,
}
ABORTED = {
    TransactionState.PREPARE_ABORT,
    TransactionState.COMPLETE_ABORT,
    TransactionState.PREPARE_EPOCH_FENCE,
}
COMMITTED = {TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT}


def reported(state: TransactionState, incarnation: Incarnation | None) -> TransactionOutcome:
    description = TransactionDescription(state=state, incarnation=incarnation, partitions={})
    return outcome_without_marker(OURS, description)


@pytest.mark.parametrize("state", TransactionState)
def test_what_has_become_of_a_transaction_is_told_from_the_state_of_its_id(
    state: TransactionState,
) -> None:
    assert reported(state, None) is TransactionOutcome.FORGOTTEN
    assert reported(state, OURS) is (
        TransactionOutcome.COMMITTED if state in COMMITTED else TransactionOutcome.ABORTED
    )
    assert reported(state, NEWER) is (
        TransactionOutcome.EXPIRED if state in ABORTED else TransactionOutcome.FENCED
    )
    assert reported(state, OTHER) is TransactionOutcome.FENCED


@pytest.mark.parametrize("state", TransactionState)
def test_a_transaction_is_settled_when_nothing_is_open_or_still_being_ended(
    state: TransactionState,
) -> None:
    description = TransactionDescription(state=state, incarnation=OURS, partitions={})
    assert description.settled is (state in ENDED)
