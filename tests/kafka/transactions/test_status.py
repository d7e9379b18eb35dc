"""Derive the status of transactions from rare answers, and from those of old brokers."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from fanout.kafka.transactions.commit_token import CommitToken, Incarnation
from fanout.kafka.transactions.outcome import (
    TransactionDescription,
    TransactionState,
    TransactionStatus,
    TransactionVerdict,
)

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


def description(state: TransactionState, epoch: int = 3) -> TransactionDescription:
    return TransactionDescription(
        state=state, incarnation=Incarnation(7, epoch), partitions=NOWHERE
    )


def standing(
    description: TransactionDescription | None,
    marked: int | None,
    *,
    pending: bool = False,
    token: CommitToken = TOKEN,
    recorded: bool = True,
) -> TransactionStatus:
    return TransactionStatus(
        token=token, recorded=recorded, description=description, marked=marked, pending=pending
    )


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (standing(None, 3, pending=True), TransactionVerdict.COMMITTABLE),
        (standing(None, 4), TransactionVerdict.COMMITTED),
        (standing(None, 5, pending=True), TransactionVerdict.COMMITTED),
        (standing(None, 3), TransactionVerdict.NOT_COMMITTED),
        (standing(None, None, token=OLD), TransactionVerdict.UNKNOWN),
        (standing(None, 4, recorded=False), TransactionVerdict.CLOSED),
        (standing(None, 4, pending=True, recorded=False), TransactionVerdict.UNRECORDED),
        (
            standing(description(TransactionState.ONGOING), 3, pending=True),
            TransactionVerdict.COMMITTABLE,
        ),
        (
            standing(description(TransactionState.ONGOING), 3, pending=True, token=OLD),
            TransactionVerdict.COMMITTABLE,
        ),
        (standing(description(TransactionState.ONGOING), 3), TransactionVerdict.NOT_COMMITTED),
        (
            standing(description(TransactionState.ONGOING, 4), 3, pending=True),
            TransactionVerdict.NOT_COMMITTED,
        ),
        (
            standing(description(TransactionState.PREPARE_COMMIT), 3, pending=True),
            TransactionVerdict.ENDING,
        ),
        (
            standing(description(TransactionState.PREPARE_ABORT, 4), 3, pending=True),
            TransactionVerdict.ENDING,
        ),
        (
            standing(description(TransactionState.PREPARE_COMMIT), 4, recorded=False),
            TransactionVerdict.ENDING,
        ),
        (
            standing(description(TransactionState.ONGOING, 4), 4, recorded=False),
            TransactionVerdict.UNRECORDED,
        ),
        (
            standing(description(TransactionState.COMPLETE_COMMIT), 4, recorded=False),
            TransactionVerdict.CLOSED,
        ),
        (
            standing(description(TransactionState.COMPLETE_ABORT), 3),
            TransactionVerdict.NOT_COMMITTED,
        ),
        # Its marker went with a topic that was deleted.
        (
            standing(description(TransactionState.COMPLETE_COMMIT), None, token=OLD),
            TransactionVerdict.COMMITTED,
        ),
        (
            standing(description(TransactionState.EMPTY, 4), None, token=OLD),
            TransactionVerdict.UNKNOWN,
        ),
        (
            standing(description(TransactionState.EMPTY, 4), 4, token=OLD),
            TransactionVerdict.COMMITTED,
        ),
    ],
)
def test_where_a_transaction_stands(found: TransactionStatus, verdict: TransactionVerdict) -> None:
    assert found.verdict is verdict
    assert verdict.needs_action == (
        verdict
        not in {
            TransactionVerdict.CLOSED,
            TransactionVerdict.COMMITTED,
            TransactionVerdict.NOT_COMMITTED,
        }
    )
