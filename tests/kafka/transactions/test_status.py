"""What is made of what brokers say, where it takes rare moments or old brokers."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from fanout.kafka.transactions.commit_token import CommitToken, Incarnation
from fanout.kafka.transactions.outcome import Phase, TransactionState
from fanout.kafka.transactions.status import Standing, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

NOW = datetime.now(UTC)
TOKEN = CommitToken(
    transactional_id="fanout-query-kafka",
    incarnation=Incarnation(7, 3),
    marker_group="fanout-query-kafka-marker",
    batch_id=4,
    partitions={"out": (0, 2)},
    created_at=NOW,
    expires_at=NOW + timedelta(minutes=15),
)
OLD = replace(TOKEN, created_at=NOW - timedelta(days=6, minutes=1))
NOWHERE: Mapping[str, tuple[int, ...]] = {}


def state(phase: Phase, epoch: int = 3) -> TransactionState:
    return TransactionState(phase=phase, incarnation=Incarnation(7, epoch), partitions=NOWHERE)


def standing(
    state: TransactionState | None,
    marked: int | None,
    *,
    pending: bool = False,
    token: CommitToken = TOKEN,
    recorded: bool = True,
) -> Standing:
    return Standing(token=token, recorded=recorded, state=state, marked=marked, pending=pending)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (standing(None, 3, pending=True), Verdict.COMMITTABLE),
        (standing(None, 4), Verdict.COMMITTED),
        (standing(None, 5, pending=True), Verdict.COMMITTED),
        (standing(None, 3), Verdict.NOT_COMMITTED),
        (standing(None, None, token=OLD), Verdict.UNKNOWN),
        (standing(None, 4, recorded=False), Verdict.CLOSED),
        (standing(None, 4, pending=True, recorded=False), Verdict.UNRECORDED),
        (standing(state(Phase.ONGOING), 3, pending=True), Verdict.COMMITTABLE),
        (standing(state(Phase.ONGOING), 3, pending=True, token=OLD), Verdict.COMMITTABLE),
        (standing(state(Phase.ONGOING), 3), Verdict.NOT_COMMITTED),
        (standing(state(Phase.ONGOING, 4), 3, pending=True), Verdict.NOT_COMMITTED),
        (standing(state(Phase.PREPARE_COMMIT), 3, pending=True), Verdict.ENDING),
        (standing(state(Phase.PREPARE_ABORT, 4), 3, pending=True), Verdict.ENDING),
        (standing(state(Phase.PREPARE_COMMIT), 4, recorded=False), Verdict.ENDING),
        (standing(state(Phase.ONGOING, 4), 4, recorded=False), Verdict.UNRECORDED),
        (standing(state(Phase.COMPLETE_COMMIT), 4, recorded=False), Verdict.CLOSED),
        (standing(state(Phase.COMPLETE_ABORT), 3), Verdict.NOT_COMMITTED),
        # Its marker went with a topic that was deleted.
        (standing(state(Phase.COMPLETE_COMMIT), None, token=OLD), Verdict.COMMITTED),
        (standing(state(Phase.EMPTY, 4), None, token=OLD), Verdict.UNKNOWN),
        (standing(state(Phase.EMPTY, 4), 4, token=OLD), Verdict.COMMITTED),
    ],
)
def test_where_a_transaction_stands(found: Standing, verdict: Verdict) -> None:
    assert found.verdict is verdict
    assert verdict.needs_somebody == (
        verdict not in {Verdict.CLOSED, Verdict.COMMITTED, Verdict.NOT_COMMITTED}
    )
