"""What a job has left open in Kafka: found by its checkpoint, and finished by hand.

It needs no Spark session: a local checkpoint is read as it is, and owned for as long as something
is changed. The order of things is that of `ExactlyOnce`: the marker is looked at before anything is
committed, and to abort is to begin anew, which fences whoever is left and makes the marker final.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Final, final

from fanout.errors import ServiceError
from fanout.kafka.transactions.outcome import TransactionOutcome
from fanout.kafka.transactions.status import (
    TransactionStatus,
    TransactionVerdict,
    transaction_status,
)
from fanout.kafka.transactions.stored_tokens import SINKS, SinkState, StoredTokens

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fanout.kafka.transactions.commit_token import CommitToken
    from fanout.kafka.transactions.transactions import Transactions
    from fanout.landing.local_storage import LocalStorage
    from fanout.landing.ownership import Ownership

# Of the incarnation that nobody writes with.
_TIMEOUT: Final = 60.0


@final
class Verb(Enum):
    """What somebody wants to be done."""

    COMMIT = "commit"
    ABORT = "abort"


@final
@dataclass(frozen=True, slots=True)
class Stored:
    """A token of a checkpoint.

    Args:
        sink: The name of its sink.
        token: The token.
        recorded: Whether it is not known to the checkpoint what became of it.
    """

    sink: str
    token: CommitToken
    recorded: bool


@final
@dataclass(frozen=True, slots=True)
class Leftover:
    """The newest transaction of a sink, or a recorded one.

    Args:
        sink: The name of the sink.
        standing: Where it stands.
    """

    sink: str
    standing: TransactionStatus


@final
@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done with a leftover.

    Args:
        possible: Whether it can be done.
        why: What it comes to, or why it cannot be done, as a clause.
        ask: Whether brokers have to be asked for it; otherwise it is only noted.
    """

    possible: bool
    why: str
    ask: bool = True


_AGAIN: Final = "the job writes the batch again when it starts"

_COMMITTING: Final = {
    TransactionVerdict.COMMITTABLE: Plan(possible=True, why="readers see all of it"),
    TransactionVerdict.ENDING: Plan(possible=True, why="the brokers are about to end it"),
    TransactionVerdict.COMMITTED: Plan(possible=True, why="it was committed before", ask=False),
    TransactionVerdict.UNKNOWN: Plan(possible=True, why="because you say so", ask=False),
    TransactionVerdict.NOT_COMMITTED: Plan(possible=False, why=f"nothing of it is left; {_AGAIN}"),
    TransactionVerdict.UNRECORDED: Plan(
        possible=False, why="no token says that it is complete; abort it, or start the job"
    ),
}
_ABORTING: Final = {
    TransactionVerdict.COMMITTABLE: Plan(possible=True, why=_AGAIN),
    TransactionVerdict.ENDING: Plan(possible=True, why=_AGAIN),
    TransactionVerdict.COMMITTED: Plan(possible=False, why="it is committed, and stays so"),
    TransactionVerdict.UNKNOWN: Plan(possible=True, why=_AGAIN),
    TransactionVerdict.NOT_COMMITTED: Plan(possible=True, why=_AGAIN),
    TransactionVerdict.UNRECORDED: Plan(possible=True, why=_AGAIN),
}


@final
@dataclass(frozen=True, slots=True)
class Deed:
    """What was done with a leftover, or would be.

    Args:
        leftover: The leftover, as it was before.
        plan: What was to be done.
        committed: Whether its recorded batch is committed, for good; None where that was not
            found out, or none is recorded.
        failure: Why it was not done; None where it was, or would be.
    """

    leftover: Leftover
    plan: Plan
    committed: bool | None = None
    failure: str | None = None


def stored_tokens(storage: LocalStorage, sink: str | None = None) -> list[Stored]:
    """Read the tokens of a checkpoint: the recorded ones, or else the newest of each sink.

    Args:
        storage: The checkpoint.
        sink: The name of a sink; None for all.

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
            found += [Stored(name, token, recorded=True) for token in unfinished]
        elif (newest := tokens.newest()) is not None:
            found.append(Stored(name, newest, recorded=False))
    return found


async def look(transactions: Transactions, stored: Iterable[Stored]) -> list[Leftover]:
    """Ask the brokers where each stands; nothing is changed.

    Raises:
        ServiceError: They do not answer, or not us.
    """
    return [
        Leftover(one.sink, await transaction_status(transactions, one.token, recorded=one.recorded))
        for one in stored
    ]


def plan(leftover: Leftover, verb: Verb, *, force: bool) -> Plan | None:
    """Say what can be done with a leftover; None where there is nothing to do.

    Args:
        leftover: The leftover.
        verb: What somebody wants.
        force: Whether somebody has looked into the topics, and vouches for what brokers forgot.
    """
    standing = leftover.standing
    verdict = standing.verdict
    if verdict is TransactionVerdict.CLOSED:
        return None
    if verdict is TransactionVerdict.UNKNOWN and not force:
        topics = ", ".join(standing.token.topics)
        return Plan(
            possible=False,
            why=f"brokers have forgotten what became of it: look whether its records are in "
            f"{topics}, and say --force to commit if they are, or to abort if they are not",
        )
    if verdict is TransactionVerdict.ENDING and not standing.recorded:
        return Plan(possible=False, why="the brokers are about to end it; look again")
    return (_COMMITTING if verb is Verb.COMMIT else _ABORTING)[verdict]


async def work(
    transactions: Transactions, stored: Iterable[Stored], verb: Verb, *, force: bool, yes: bool
) -> list[Deed]:
    """Look at what is stored, and do what is wanted of it where that is possible.

    Args:
        transactions: The calls.
        stored: What the checkpoint says.
        verb: What somebody wants.
        force: Whether they vouch for what brokers forgot.
        yes: Whether it is done, rather than planned; then `note` each deed afterwards.

    Raises:
        ServiceError: The brokers do not say where something stands.
    """
    deeds = []
    for leftover in await look(transactions, stored):
        planned = plan(leftover, verb, force=force)
        if planned is None:
            continue
        deed = Deed(leftover, planned, failure=None if planned.possible else planned.why)
        if yes and planned.possible:
            deed = await _carry_out(transactions, deed, verb)
        deeds.append(deed)
    return deeds


def note(storage: LocalStorage, ownership: Ownership, deed: Deed) -> None:
    """Store what became of a recorded batch, so that the job need not find it out. It blocks.

    Raises:
        CheckpointError: The checkpoint cannot be written.
    """
    state = SinkState(storage, ownership, deed.leftover.sink)
    batch_id = deed.leftover.standing.token.batch_id
    if deed.committed:
        state.record_committed(batch_id)
    elif deed.committed is False:
        state.forget(batch_id)


async def _carry_out(transactions: Transactions, deed: Deed, verb: Verb) -> Deed:
    if not deed.plan.ask:
        return replace(deed, committed=True)
    try:
        if verb is Verb.COMMIT:
            return await _commit(transactions, deed)
        return await _abort(transactions, deed)
    except ServiceError as error:
        return replace(deed, failure=str(error))


async def _commit(transactions: Transactions, deed: Deed) -> Deed:
    outcome = await transactions.commit(deed.leftover.standing.token)
    if outcome is TransactionOutcome.COMMITTED:
        return replace(deed, committed=True)
    return replace(deed, failure=f"it was {outcome.value}; {_AGAIN}")


async def _abort(transactions: Transactions, deed: Deed) -> Deed:
    token = deed.leftover.standing.token
    await transactions.begin(token.transactional_id, _TIMEOUT)
    if not deed.leftover.standing.recorded:
        return deed
    # Only now nobody else can commit it, so that what is not marked will never be.
    marked = await transactions.marked(token.marker_group, token.topics)
    if marked is not None and marked >= token.batch_id:
        return replace(deed, committed=True, failure="it was committed meanwhile, and stays so")
    return replace(deed, committed=False)
