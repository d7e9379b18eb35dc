"""Transactions while brokers die, hang, start and refuse, and while callers are cancelled."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from aiokafka.protocol.transaction import EndTxnRequest
from confluent_kafka.admin import AclOperation, ResourceType

from fanout.errors import ServiceError
from fanout.kafka.cluster import Cluster
from fanout.kafka.protocol.broker_connection import BrokerConnection
from fanout.kafka.transactions.outcome import TransactionOutcome
from tests.support.kafka.brokers import create
from tests.support.kafka.permissions import grant, permission
from tests.support.kafka.topics import eventually
from tests.support.kafka.transacting import LONG, Sink, new_sink, reported, transactions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from fanout.kafka.transactions.commit_token import CommitToken
    from fanout.kafka.transactions.transactions import Transactions
    from fanout.testing.kafka.broker import KafkaBroker
    from tests.kafka.secured import Secured

    Call: TypeAlias = Callable[[Transactions, CommitToken], Awaitable[Any]]


@pytest.mark.fault("A broker is killed or hangs between the marker")
@pytest.mark.long
async def test_a_transaction_outlives_a_broker_that_is_killed_before_the_commit(
    mortal_broker: KafkaBroker,
) -> None:
    sink = await new_sink(mortal_broker)
    async with transactions(mortal_broker, request_timeout=5.0) as connection:
        token = await sink.open(connection)
        await asyncio.to_thread(mortal_broker.kill)
        try:
            committing = asyncio.create_task(connection.commit(token))
        finally:
            await asyncio.to_thread(mortal_broker.restart)
        assert await committing is TransactionOutcome.COMMITTED
        assert await connection.marked(sink.group, token.topics) == 0
    await sink.until_committed(b"batch 0")


# A kill while the markers are written is no case here. Kafka 4.3 then drops some of them as it
# starts again, so a partition never shows what its coordinator has committed (KAFKA-20734).
@pytest.mark.fault("A broker is killed or hangs between the marker")
@pytest.mark.long
@pytest.mark.parametrize("lost", ["request", "answer"])
async def test_a_commit_that_a_killed_broker_never_answered_has_a_known_outcome(
    mortal_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    sink = await new_sink(mortal_broker)
    send = BrokerConnection.send
    ends: list[Any] = []
    killed = asyncio.Event()

    async def kill_at_the_end(self: BrokerConnection, request: Any, **options: Any) -> Any:
        if not isinstance(request, EndTxnRequest) or ends:
            return await send(self, request, **options)
        ends.append(request)
        if lost == "request":
            await asyncio.to_thread(mortal_broker.pause)
        answer = send(self, request, **options)
        if lost == "answer":
            await answer
            await reported(mortal_broker, sink.id)
        await asyncio.to_thread(mortal_broker.kill)
        killed.set()
        if lost == "request":
            await answer
        raise ConnectionResetError

    async with transactions(mortal_broker, request_timeout=5.0) as connection:
        token = await sink.open(connection)
        monkeypatch.setattr(BrokerConnection, "send", kill_at_the_end)
        committing = asyncio.create_task(connection.commit(token))
        try:
            await killed.wait()
        finally:
            await asyncio.to_thread(mortal_broker.restart)
        assert await committing is TransactionOutcome.COMMITTED
        assert await connection.commit(token) is TransactionOutcome.COMMITTED
    await sink.until_committed(b"batch 0")


@pytest.mark.fault("A broker is killed or hangs between the marker")
async def test_a_commit_survives_a_broker_that_hangs(kafka_broker: KafkaBroker) -> None:
    sink = await new_sink(kafka_broker)
    async with transactions(kafka_broker, request_timeout=0.5) as connection:
        token = await sink.open(connection)
        await asyncio.to_thread(kafka_broker.pause)
        try:
            committing = asyncio.create_task(connection.commit(token))
            await eventually(lambda: not any(c.connected() for c in opened(connection)))
            assert not committing.done()
        finally:
            await asyncio.to_thread(kafka_broker.resume)
        assert await committing is TransactionOutcome.COMMITTED
    await sink.until_committed(b"batch 0")


@pytest.mark.fault("A broker is killed or hangs between the marker")
async def test_a_commit_that_gets_no_answer_says_so_and_can_be_made_again(
    kafka_broker: KafkaBroker,
) -> None:
    sink = await new_sink(kafka_broker)
    async with transactions(kafka_broker, request_timeout=2.0, patience=2.5) as connection:
        token = await sink.open(connection, lasts=60.0)
        hasty = sink.token(token.incarnation, lasts=-1.0)
        await asyncio.to_thread(kafka_broker.pause)
        try:
            with pytest.raises(ServiceError, match=r"not known whether batch 0 of .* committed: "):
                await connection.commit(hasty)
        finally:
            await asyncio.to_thread(kafka_broker.resume)
    async with transactions(kafka_broker) as connection:
        assert await connection.commit(token) is TransactionOutcome.COMMITTED
    await sink.until_committed(b"batch 0")


@pytest.mark.fault("A coordinator is being elected, or has just started")
@pytest.mark.long
async def test_the_first_transaction_waits_for_a_broker_that_has_just_started(
    start_kafka_broker: Callable[..., KafkaBroker],
) -> None:
    broker = await asyncio.to_thread(start_kafka_broker)
    # No coordinator was requested before, so the topics of their state do not exist.
    async with transactions(broker) as connection:
        assert await connection.max_timeout() == 900.0
        sink = Sink(broker, "orders")
        incarnation = await connection.begin(sink.id, LONG)
        assert await connection.marked(sink.group) is None
        await create(broker, sink.topic)
        token = sink.token(incarnation)
        await sink.write(incarnation, b"first")
        await connection.mark(token)
        assert await connection.commit(token) is TransactionOutcome.COMMITTED
        await sink.until_committed(b"first")


@pytest.mark.fault("Writing in a transaction is not permitted")
async def test_what_is_not_permitted_is_named(cluster: Secured) -> None:
    broker, security = cluster.broker, cluster.guarded_login("job")
    sink = Sink(broker, "orders")
    await create(broker, sink.topic)

    async def allow(kind: ResourceType, name: str, operation: AclOperation) -> None:
        await asyncio.to_thread(grant, broker, permission("job", kind, name, operation))

    async with (
        transactions(broker) as admin,
        transactions(
            broker, cluster=Cluster(cluster.guarded, security=security), patience=5.0
        ) as connection,
    ):
        assert await connection.max_timeout() == 900.0
        token = sink.token(await admin.begin(sink.id, LONG))

        for use in (
            lambda: connection.begin(sink.id, LONG),
            lambda: connection.describe(sink.id),
            lambda: connection.abort(sink.id, token.incarnation),
        ):
            await denied(use, f"grant the principal WRITE on the transactional id {sink.id}")
        await allow(ResourceType.TRANSACTIONAL_ID, sink.id, AclOperation.WRITE)
        token = sink.token(await connection.begin(sink.id, LONG))
        await sink.write(token.incarnation, b"a")

        for group in (
            lambda: connection.mark(token),
            lambda: connection.commit(token),
            lambda: connection.marked(sink.group),
        ):
            await denied(group, f"grant the principal READ on the group {sink.group}")
        await allow(ResourceType.GROUP, sink.group, AclOperation.READ)

        await denied(
            lambda: connection.commit(token),
            f"grant the principal DESCRIBE on the topic {sink.topic}",
        )
        await denied(
            lambda: connection.partitions(sink.topic),
            f"grant the principal DESCRIBE on the topic {sink.topic}",
        )
        await allow(ResourceType.TOPIC, sink.topic, AclOperation.WRITE)
        assert await connection.partitions(sink.topic) == 1
        await denied(
            lambda: connection.mark(token), f"grant the principal READ on the topic {sink.topic}"
        )
        await allow(ResourceType.TOPIC, sink.topic, AclOperation.READ)
        await connection.mark(token)
        assert await connection.commit(token) is TransactionOutcome.COMMITTED
    await sink.until_committed(b"a")


CALLS: dict[str, Call] = {
    "begin": lambda connection, token: connection.begin(token.transactional_id, LONG),
    "mark": lambda connection, token: connection.mark(token),
    "commit": lambda connection, token: connection.commit(token),
    "marked": lambda connection, token: connection.marked(token.marker_group, token.topics),
    "abort": lambda connection, token: connection.abort(token.transactional_id, token.incarnation),
    "describe": lambda connection, token: connection.describe(token.transactional_id),
}
BECOMES = {"begin": TransactionOutcome.FENCED, "abort": TransactionOutcome.ABORTED}


@pytest.mark.fault("A caller is cancelled")
@pytest.mark.long
@pytest.mark.parametrize("step", CALLS)
async def test_cancelling_a_call_leaves_nothing_behind_and_it_can_be_made_again(
    kafka_broker: KafkaBroker, step: str
) -> None:
    sink = await new_sink(kafka_broker)
    call = CALLS[step]
    async with transactions(kafka_broker) as other:
        for turns in range(0, 20, 2):
            token = await sink.open(other, turns)
            async with nothing_left(), transactions(kafka_broker) as connection:
                calling = asyncio.create_task(make(call, connection, token))
                for _ in range(turns):
                    await asyncio.sleep(0.001)
                calling.cancel()
                await asyncio.wait([calling])
                if step != "marked":  # which waits for the end of the transaction
                    await call(connection, token)
            assert await other.commit(token) is BECOMES.get(step, TransactionOutcome.COMMITTED)


async def make(call: Call, connection: Transactions, token: CommitToken) -> None:
    await call(connection, token)


@asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    """Check that the block leaves no task or socket behind."""
    loop: Any = asyncio.get_running_loop()
    sockets = loop._selector.get_map()
    tasks, before = asyncio.all_tasks(), len(sockets)
    yield
    assert not asyncio.all_tasks() - tasks
    # asyncio closes a socket in the next turn of the loop.
    await eventually(lambda: len(sockets) <= before)


def opened(connection: Transactions) -> list[Any]:
    """Return the connections to brokers that were made."""
    return list(connection._calls._connections._open.values())


async def denied(call: Callable[[], Awaitable[Any]], message: str) -> None:
    with pytest.raises(ServiceError, match=f"{message}$"):
        await call()
