from __future__ import annotations

import pytest

from fanout.kafka.transactions.commit_token import Incarnation
from fanout.kafka.transactions.outcome import (
    Outcome,
    Phase,
    TransactionState,
    outcome_without_marker,
)

OURS, NEWER, OTHER = Incarnation(7, 3), Incarnation(7, 5), Incarnation(8, 3)
ENDED = {Phase.UNKNOWN, Phase.EMPTY, Phase.COMPLETE_COMMIT, Phase.COMPLETE_ABORT, Phase.DEAD}
ABORTED = {Phase.PREPARE_ABORT, Phase.COMPLETE_ABORT, Phase.PREPARE_EPOCH_FENCE}
COMMITTED = {Phase.PREPARE_COMMIT, Phase.COMPLETE_COMMIT}


def told(phase: Phase, incarnation: Incarnation | None) -> Outcome:
    state = TransactionState(phase=phase, incarnation=incarnation, partitions={})
    return outcome_without_marker(OURS, state)


@pytest.mark.parametrize("phase", Phase)
def test_what_has_become_of_a_transaction_is_told_from_the_state_of_its_id(phase: Phase) -> None:
    assert told(phase, None) is Outcome.EXPIRED
    assert told(phase, OURS) is (Outcome.COMMITTED if phase in COMMITTED else Outcome.ABORTED)
    assert told(phase, NEWER) is (Outcome.EXPIRED if phase in ABORTED else Outcome.FENCED)
    assert told(phase, OTHER) is Outcome.FENCED


@pytest.mark.parametrize("phase", Phase)
def test_a_transaction_is_settled_when_nothing_is_open_or_still_being_ended(phase: Phase) -> None:
    state = TransactionState(phase=phase, incarnation=OURS, partitions={})
    assert state.settled is (phase in ENDED)
