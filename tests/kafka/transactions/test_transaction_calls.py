"""Handle each answer that a broker may give about transactions, by a script."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka.errors import (
    IncompatibleBrokerVersion,
    KafkaConnectionError,
    KafkaError,
    RequestTimedOutError,
)
from aiokafka.protocol.admin import DescribeConfigsResponse_v0
from aiokafka.protocol.coordination import FindCoordinatorResponse_v1
from aiokafka.protocol.metadata import MetadataResponse_v5
from aiokafka.protocol.transaction import (
    AddOffsetsToTxnResponse_v0,
    EndTxnResponse_v0,
    InitProducerIdResponse_v0,
)

from fanout.core.backoff import Backoff, FullJitter
from fanout.errors import ServiceError
from fanout.kafka.protocol.messages.consumer_groups import OffsetFetchResponse_v7
from fanout.kafka.protocol.messages.transactions import (
    DescribeTransactionsResponse_v0,
    TxnOffsetCommitResponse_v3,
)
from fanout.kafka.transactions.calls import TransactionCalls
from fanout.kafka.transactions.commit_token import Incarnation
from fanout.kafka.transactions.outcome import TransactionOutcome
from fanout.kafka.transactions.transactions import Transactions
from fanout.testing.virtual_time.loop import simulate
from tests.support.kafka.transacting import Sink

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

OURS, NEWER = Incarnation(7, 3), Incarnation(7, 4)
SINK = Sink(None, "orders")  # type: ignore[arg-type]  # its broker is not used
TOKEN = SINK.token(OURS, 5, lasts=86_400.0)
OLD = SINK.token(OURS, 5, lasts=-1.0)
LOST = KafkaConnectionError("lost")
PASSING = [14, 15, 16, 51]


class Scripted:
    """Connections that answer by a script, in order: the name of a request, and its answer."""

    def __init__(self, *answers: tuple[str, Any]) -> None:
        self._answers = list(answers)
        self.coordinators = 0

    def set_brokers(self, brokers: Any) -> None: ...

    def add_broker(self, broker: int, server: Any) -> None: ...

    async def send_to_any(self, request: Any) -> Any:
        if type(request).__name__ == "FindCoordinatorRequest":
            self.coordinators += 1
            return FindCoordinatorResponse_v1(0, 0, "", self.coordinators, "a", 1)
        return await self.send(0, request)

    async def send(self, _broker: int, request: Any) -> Any:
        assert self._answers, f"unexpected request: {type(request).__name__}"
        name, answer = self._answers.pop(0)
        assert type(request).__name__.startswith(name)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def run(self, call: Callable[[Transactions], Awaitable[Any]], patience: float = 60.0) -> Any:
        """Make a call in virtual time, and check that the whole script was played."""
        connections: Any = self
        jitter = FullJitter(Backoff(base=0.02, cap=2.0), Random(7))
        transactions = Transactions(TransactionCalls(connections), jitter=jitter, patience=patience)

        async def main() -> Any:
            return await call(transactions)

        result = simulate(main)
        assert self._answers == []
        return result


def begun(code: int = 0, who: Incarnation = OURS) -> tuple[str, Any]:
    return "InitProducerId", InitProducerIdResponse_v0(0, code, who.producer_id, who.epoch)


def ended(code: int = 0) -> tuple[str, Any]:
    return "EndTxn", EndTxnResponse_v0(0, code)


def announced(code: int = 0) -> tuple[str, Any]:
    return "AddOffsetsToTxn", AddOffsetsToTxnResponse_v0(0, code)


def marked(code: int = 0) -> tuple[str, Any]:
    return "TxnOffsetCommit", TxnOffsetCommitResponse_v3(0, [("orders", [(0, code, {})], {})], {})


def marks(offset: int = -1, code: int = 0, whole: int = 0) -> tuple[str, Any]:
    row: Any = (0, offset, -1, "", code, {})
    return "CommittedOffsets", OffsetFetchResponse_v7(0, [("orders", [row], {})], whole, {})


def state(phase: str, who: Incarnation, code: int = 0) -> tuple[str, Any]:
    row: Any = (code, "id", phase, 1000, 0, who.producer_id, who.epoch, [], {})
    return "DescribeTransactions", DescribeTransactionsResponse_v0(0, [row], {})


PENDING = marks(code=88)
TOO_OLD = ("DescribeTransactions", IncompatibleBrokerVersion("too old"))


@pytest.mark.fault("A coordinator is being elected, or has just started")
@pytest.mark.fault("InitProducerId")
@pytest.mark.parametrize("code", [*PASSING, 7, LOST, RequestTimedOutError("late")])
def test_a_coordinator_that_is_busy_or_moves_is_asked_again(code: Any) -> None:
    def failing(answer: tuple[str, Any]) -> tuple[str, Any]:
        name, made = answer
        return name, code if isinstance(code, Exception) else type(made)(0, code, *_rest(made))

    assert Scripted(failing(begun()), begun()).run(lambda t: t.begin("id", 1.0)) == OURS
    Scripted(failing(announced()), announced(), marked()).run(lambda t: t.mark(TOKEN))
    script = Scripted(PENDING, failing(ended()), PENDING, ended())
    assert script.run(lambda t: t.commit(TOKEN)) is TransactionOutcome.COMMITTED
    script = Scripted(failing(ended()), ended())
    assert script.run(lambda t: t.abort("id", OURS)) is TransactionOutcome.ABORTED


def _rest(response: Any) -> tuple[Any, ...]:
    return tuple(getattr(response, name) for name in response.SCHEMA.names[2:])


@pytest.mark.fault("A coordinator is being elected, or has just started")
@pytest.mark.fault("AddPartitionsToTxn, TxnOffsetCommit")
@pytest.mark.parametrize("code", PASSING)
def test_a_marker_group_that_is_busy_or_moves_is_asked_again(code: int) -> None:
    Scripted(announced(), marked(code), announced(), marked()).run(lambda t: t.mark(TOKEN))
    if code != 51:
        script = Scripted(marks(whole=code), marks(5))
        assert script.run(lambda t: t.marked("group")) == 5


@pytest.mark.fault("FindCoordinator")
def test_a_coordinator_that_has_moved_is_looked_up_again() -> None:
    script = Scripted(begun(16), begun(), begun())

    async def twice(transactions: Transactions) -> None:
        await transactions.begin("id", 1.0)
        await transactions.begin("id", 1.0)

    script.run(twice)
    assert script.coordinators == 2


@pytest.mark.fault("A zombie writes with the same epoch after the end")
@pytest.mark.fault("EndTxn")
@pytest.mark.long
@pytest.mark.parametrize("failure", [LOST, RequestTimedOutError("late")])
def test_what_a_lost_answer_may_have_committed_is_looked_at_before_it_is_committed_again(
    failure: Exception,
) -> None:
    async def commit(transactions: Transactions) -> TransactionOutcome:
        # So that the coordinators are known, and one that fails could be wrong.
        await transactions.abort("id", OURS)
        await transactions.describe(TOKEN.transactional_id)
        return await transactions.commit(TOKEN)

    script = Scripted(ended(), state("Ongoing", OURS), PENDING, ("EndTxn", failure), marks(5))
    assert script.run(commit) is TransactionOutcome.COMMITTED


@pytest.mark.fault("A transaction takes longer than its timeout")
def test_a_transaction_that_the_broker_is_just_aborting_is_waited_for() -> None:
    script = Scripted(
        PENDING,
        ended(47),
        state("PrepareAbort", NEWER),
        PENDING,
        ended(47),
        state("CompleteAbort", NEWER),
        marks(),
        state("CompleteAbort", NEWER),
    )
    assert script.run(lambda t: t.commit(TOKEN)) is TransactionOutcome.EXPIRED


@pytest.mark.fault("A zombie writes with the same epoch after the end")
def test_a_zombie_of_the_same_epoch_is_not_taken_for_a_newer_run() -> None:
    script = Scripted(PENDING, ended(48), state("Ongoing", OURS), marks(), state("Ongoing", OURS))
    assert script.run(lambda t: t.commit(TOKEN)) is TransactionOutcome.ABORTED


@pytest.mark.fault("A commit comes late, after a newer run")
@pytest.mark.parametrize(
    ("before", "outcome"), [(4, TransactionOutcome.FENCED), (5, TransactionOutcome.COMMITTED)]
)
def test_the_marker_that_a_newer_run_hides_is_looked_up(
    before: int, outcome: TransactionOutcome
) -> None:
    script = Scripted(PENDING, ended(47), state("Ongoing", NEWER), marks(before))
    assert script.run(lambda t: t.commit(TOKEN)) is outcome


@pytest.mark.parametrize("code", [47, 48, 49])
def test_a_transaction_that_is_not_open_cannot_be_marked_which_commit_tells(code: int) -> None:
    Scripted(announced(code)).run(lambda t: t.mark(TOKEN))
    Scripted(announced(), marked(code)).run(lambda t: t.mark(TOKEN))


@pytest.mark.fault("The brokers are too old to describe transactions, or to show an open marker")
@pytest.mark.fault("DescribeTransactions")
def test_a_broker_that_cannot_describe_transactions_is_enough() -> None:
    assert Scripted(TOO_OLD).run(lambda t: t.describe("id")) is None
    script = Scripted(PENDING, ended(51), PENDING, ended(47), TOO_OLD, marks(), TOO_OLD)
    assert script.run(lambda t: t.commit(TOKEN)) is TransactionOutcome.FENCED
    assert Scripted(marks(4), TOO_OLD).run(lambda t: t.commit(OLD)) is TransactionOutcome.EXPIRED
    script = Scripted(ended(48), TOO_OLD)
    assert script.run(lambda t: t.abort("id", OURS)) is TransactionOutcome.ABORTED


@pytest.mark.fault("The brokers are too old to describe transactions, or to show an open marker")
def test_a_broker_that_cannot_tell_an_open_marker_is_refused() -> None:
    script = Scripted(("CommittedOffsets", IncompatibleBrokerVersion("too old")))
    with pytest.raises(ServiceError, match=r"exactly-once needs Kafka 2.5 or later"):
        script.run(lambda t: t.marked("group"))


def test_a_state_that_is_not_known_is_an_error_not_a_guess() -> None:
    with pytest.raises(ServiceError, match="name an unknown state: Prepared"):
        Scripted(marks(), state("Prepared", OURS)).run(lambda t: t.commit(TOKEN))


def test_an_outcome_that_cannot_be_found_out_in_time_is_an_error() -> None:
    class Hanging(Scripted):
        async def send(self, _broker: int, _request: Any) -> Any:
            raise LOST

    async def commit(transactions: Transactions, *, lasts: float) -> float:
        begun_at = asyncio.get_running_loop().time()
        with pytest.raises(ServiceError, match=r"not known whether batch 5 .* committed: .*lost"):
            await transactions.commit(SINK.token(OURS, 5, lasts=lasts))
        return asyncio.get_running_loop().time() - begun_at

    assert 60 <= Hanging().run(lambda t: commit(t, lasts=-1.0)) < 70
    assert 295 <= Hanging().run(lambda t: commit(t, lasts=300.0)) < 310


@pytest.mark.parametrize("code", [1, 42, 107])
def test_an_error_that_stays_is_raised_at_once(code: int) -> None:
    for script, call in (
        (Scripted(begun(code)), lambda t: t.begin("id", 1.0)),
        (Scripted(announced(code)), lambda t: t.mark(TOKEN)),
        (Scripted(announced(), marked(code)), lambda t: t.mark(TOKEN)),
        (Scripted(PENDING, ended(code)), lambda t: t.commit(TOKEN)),
        (Scripted(marks(code=code)), lambda t: t.commit(TOKEN)),
        (Scripted(ended(code)), lambda t: t.abort("id", OURS)),
        (Scripted(state("Ongoing", OURS, code)), lambda t: t.describe("id")),
    ):
        with pytest.raises(ServiceError) as caught:
            script.run(call)
        assert isinstance(caught.value.__cause__, KafkaError)


def test_a_broker_that_is_just_starting_and_knows_no_broker_is_asked_again() -> None:
    no_broker = "Metadata", MetadataResponse_v5(0, [], "id", 1, [])
    one_broker = "Metadata", MetadataResponse_v5(0, [(3, "a", 1, None)], "id", 1, [])
    entry = ("transaction.max.timeout.ms", "60000", False, False, False)
    configs = "DescribeConfigs", DescribeConfigsResponse_v0(0, [(0, "", 4, "3", [entry])])
    assert Scripted(no_broker, one_broker, configs).run(lambda t: t.max_timeout()) == 60.0


def test_a_configuration_that_may_not_be_read_is_taken_for_kafkas_default() -> None:
    one_broker = "Metadata", MetadataResponse_v5(0, [(3, "a", 1, None)], "id", 1, [])
    configs = "DescribeConfigs", DescribeConfigsResponse_v0(0, [(31, "", 4, "3", [])])
    assert Scripted(one_broker, configs).run(lambda t: t.max_timeout()) == 900.0
