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


def told(phase: TransactionState, incarnation: Incarnation | None) -> TransactionOutcome:
    state = TransactionDescription(phase=phase, incarnation=incarnation, partitions={})
    return outcome_without_marker(OURS, state)


@pytest.mark.parametrize("phase", TransactionState)
def test_what_has_become_of_a_transaction_is_told_from_the_state_of_its_id(
    phase: TransactionState,
) -> None:
    assert told(phase, None) is TransactionOutcome.EXPIRED
    assert told(phase, OURS) is (
        TransactionOutcome.COMMITTED if phase in COMMITTED else TransactionOutcome.ABORTED
    )
    assert told(phase, NEWER) is (
        TransactionOutcome.EXPIRED if phase in ABORTED else TransactionOutcome.FENCED
    )
    assert told(phase, OTHER) is TransactionOutcome.FENCED


@pytest.mark.parametrize("phase", TransactionState)
def test_a_transaction_is_settled_when_nothing_is_open_or_still_being_ended(
    phase: TransactionState,
) -> None:
    state = TransactionDescription(phase=phase, incarnation=OURS, partitions={})
    assert state.settled is (phase in ENDED)
