"""Find the transactions that a job has left open in Kafka, and commit or abort them by hand.

It needs no Spark session: a local checkpoint is read as it is, and owned during changes. The order
of the steps is that of the sink: the marker is read before a transaction is committed. To abort, a
new incarnation of the transactional id is begun, which fences all former producers, so that the
marker is final.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Final, final

from fanout.errors import ServiceError
from fanout.kafka.transactions.outcome import (
    TransactionOutcome,
    TransactionStatus,
    TransactionVerdict,
)
from fanout.kafka.transactions.transactions import transaction_status
from fanout.spark.sinks.kafka.stored_tokens import SINKS, SinkState, StoredTokens

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fanout.kafka.transactions.commit_token import CommitToken
    from fanout.kafka.transactions.transactions import Transactions
    from fanout.landing.claims import Ownership
    from fanout.landing.storage.local_storage import LocalStorage

# Seconds; the transaction timeout of an incarnation that writes nothing.
_TIMEOUT: Final = 60.0


@final
class FinishAction(Enum):
    """The action on a transaction that the user requests."""

    COMMIT = "commit"
    ABORT = "abort"


@final
@dataclass(frozen=True, slots=True)
class SinkToken:
    """A token of a checkpoint."""

    sink: str  # the name of the sink
    token: CommitToken
    recorded: bool  # whether the checkpoint records the token without its outcome


@final
@dataclass(frozen=True, slots=True)
class SinkTransaction:
    """The newest transaction of a sink, or a recorded one."""

    sink: str  # the name of the sink
    status: TransactionStatus


@final
@dataclass(frozen=True, slots=True)
class FinishPlan:
    """Whether an action on a transaction is possible, and its effect."""

    possible: bool
    reason: str  # its effect, or why it is not possible, as a clause
    calls_brokers: bool = True  # otherwise only the checkpoint changes


_AGAIN: Final = "the job writes the batch again when it starts"

_COMMITTING: Final = {
    TransactionVerdict.COMMITTABLE: FinishPlan(possible=True, reason="readers see all of it"),
    TransactionVerdict.ENDING: FinishPlan(possible=True, reason="the brokers are about to end it"),
    TransactionVerdict.COMMITTED: FinishPlan(
        possible=True, reason="it was committed before", calls_brokers=False
    ),
    TransactionVerdict.UNKNOWN: FinishPlan(
        possible=True, reason="--force says that its records are there", calls_brokers=False
    ),
    TransactionVerdict.NOT_COMMITTED: FinishPlan(
        possible=False, reason=f"none of its records is left; {_AGAIN}"
    ),
    TransactionVerdict.UNRECORDED: FinishPlan(
        possible=False, reason="no token shows that it is complete; abort it, or start the job"
    ),
}
_ABORTING: Final = {
    TransactionVerdict.COMMITTABLE: FinishPlan(possible=True, reason=_AGAIN),
    TransactionVerdict.ENDING: FinishPlan(possible=True, reason=_AGAIN),
    TransactionVerdict.COMMITTED: FinishPlan(
        possible=False, reason="it is committed, and stays so"
    ),
    TransactionVerdict.UNKNOWN: FinishPlan(possible=True, reason=_AGAIN),
    TransactionVerdict.NOT_COMMITTED: FinishPlan(possible=True, reason=_AGAIN),
    TransactionVerdict.UNRECORDED: FinishPlan(possible=True, reason=_AGAIN),
}


@final
@dataclass(frozen=True, slots=True)
class FinishResult:
    """The result of an action on a transaction, or the result that it would have."""

    transaction: SinkTransaction  # with its status before the action
    plan: FinishPlan
    # Whether its recorded batch is finally committed; None if that is not known, or no batch is
    # recorded.
    committed: bool | None = None
    failure: str | None = None  # why the action was not carried out, or is not possible


def stored_tokens(storage: LocalStorage, sink: str | None = None) -> list[SinkToken]:
    """Read the tokens of a checkpoint: the recorded ones, or else the newest of each sink.

    Raises:
        CheckpointError: A token is damaged, or of a newer version.
    """
    root = storage.root / SINKS
    names = sorted(path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    found = []
    for name in names:
        if sink not in {None, name}:
            continue
        tokens = StoredTokens(storage, name)
        if unfinished := tokens.unfinished():
            found += [SinkToken(name, token, recorded=True) for token in unfinished]
        elif (newest := tokens.newest()) is not None:
            found.append(SinkToken(name, newest, recorded=False))
    return found


async def describe_transactions(
    transactions: Transactions, tokens: Iterable[SinkToken]
) -> list[SinkTransaction]:
    """Read the status of the transaction of each token from the brokers; nothing is changed.

    Raises:
        ServiceError: The brokers do not answer, or refuse the client.
    """
    return [
        SinkTransaction(
            each.sink, await transaction_status(transactions, each.token, recorded=each.recorded)
        )
        for each in tokens
    ]


def plan_finish(
    transaction: SinkTransaction, action: FinishAction, *, force: bool
) -> FinishPlan | None:
    """Return whether an action on a transaction is possible; None where there is nothing to do.

    `force` says that the user has checked the topics, and decides where brokers have forgotten.
    """
    status = transaction.status
    verdict = status.verdict
    if verdict is TransactionVerdict.CLOSED:
        return None
    if verdict is TransactionVerdict.UNKNOWN and not force:
        topics = ", ".join(status.token.topics)
        return FinishPlan(
            possible=False,
            reason=f"brokers have forgotten its outcome: look whether its records are in {topics}, "
            f"and pass --force to commit if they are, or to abort if they are not",
        )
    if verdict is TransactionVerdict.ENDING and not status.recorded:
        return FinishPlan(possible=False, reason="the brokers are about to end it; try again")
    return (_COMMITTING if action is FinishAction.COMMIT else _ABORTING)[verdict]


async def finish_transactions(
    transactions: Transactions,
    tokens: Iterable[SinkToken],
    action: FinishAction,
    *,
    force: bool,
    yes: bool,
) -> list[FinishResult]:
    """Read the status of the transaction of each token, and finish it where that is possible.

    Args:
        transactions: Makes the calls.
        tokens: The tokens of the checkpoint.
        action: The requested action.
        force: Whether the user decides where brokers have forgotten the outcome.
        yes: Whether to carry out the action, rather than plan it; then pass each result to
            `record_result` afterwards.

    Raises:
        ServiceError: The brokers do not report the status of a transaction.
    """
    results = []
    for transaction in await describe_transactions(transactions, tokens):
        plan = plan_finish(transaction, action, force=force)
        if plan is None:
            continue
        result = FinishResult(transaction, plan, failure=None if plan.possible else plan.reason)
        if yes and plan.possible:
            result = await _carry_out(transactions, result, action)
        results.append(result)
    return results


def record_result(storage: LocalStorage, ownership: Ownership, result: FinishResult) -> None:
    """Store the outcome of a recorded batch, so that the job need not find it out. It blocks."""
    state = SinkState(storage, ownership, result.transaction.sink)
    batch_id = result.transaction.status.token.batch_id
    if result.committed:
        state.record_committed(batch_id)
    elif result.committed is False:
        state.forget(batch_id)


async def _carry_out(
    transactions: Transactions, result: FinishResult, action: FinishAction
) -> FinishResult:
    if not result.plan.calls_brokers:
        return replace(result, committed=True)
    try:
        if action is FinishAction.COMMIT:
            return await _commit(transactions, result)
        return await _abort(transactions, result)
    except ServiceError as error:
        return replace(result, failure=str(error))


async def _commit(transactions: Transactions, result: FinishResult) -> FinishResult:
    outcome = await transactions.commit(result.transaction.status.token)
    if outcome is TransactionOutcome.COMMITTED:
        return replace(result, committed=True)
    return replace(result, failure=f"it was {outcome.value}; {_AGAIN}")


async def _abort(transactions: Transactions, result: FinishResult) -> FinishResult:
    token = result.transaction.status.token
    await transactions.begin(token.transactional_id, _TIMEOUT)
    if not result.transaction.status.recorded:
        return result
    # From here on no other producer can commit it: a batch without a marker will never have one.
    marked = await transactions.marked(token.marker_group, token.topics)
    if marked is not None and marked >= token.batch_id:
        return replace(result, committed=True, failure="it was committed meanwhile, and stays so")
    return replace(result, committed=False)
