from __future__ import annotations

from typing import TYPE_CHECKING

from fanout.kafka.outcomes import Outcome, Phase
from fanout.kafka.tokens import CommitToken
from tests.kafka.transacting import new_sink, transactions, until

if TYPE_CHECKING:
    from fanout.testing.kafka_broker import KafkaBroker


async def test_nothing_is_seen_before_the_commit_and_everything_after(
    kafka_broker: KafkaBroker,
) -> None:
    sink = await new_sink(kafka_broker)
    async with transactions(kafka_broker) as connection:
        token = await sink.open(connection, 3, b"a", b"b")
        assert await sink.committed() == []
        assert await connection.commit(token) is Outcome.COMMITTED
        assert await connection.marked(sink.group, token.topics) == 3
        await sink.until_committed(b"a", b"b")


async def test_another_process_commits_by_the_stored_token_alone(kafka_broker: KafkaBroker) -> None:
    sink = await new_sink(kafka_broker)
    async with transactions(kafka_broker) as connection:
        stored = (await sink.open(connection)).to_json()
    async with transactions(kafka_broker) as connection:
        token = CommitToken.from_json(stored)
        assert await connection.commit(token) is Outcome.COMMITTED
        assert await connection.marked(sink.group, token.topics) == 0
    await sink.until_committed(b"batch 0")


async def test_to_commit_twice_is_to_commit_once(kafka_broker: KafkaBroker) -> None:
    sink = await new_sink(kafka_broker)
    async with transactions(kafka_broker) as connection:
        token = await sink.open(connection)
        for _ in range(3):
            assert await connection.commit(token) is Outcome.COMMITTED
    await sink.until_committed(b"batch 0")


async def test_what_is_committed_cannot_be_aborted(kafka_broker: KafkaBroker) -> None:
    sink = await new_sink(kafka_broker)
    async with transactions(kafka_broker) as connection:
        token = await sink.open(connection)
        await connection.commit(token)
        assert await connection.abort(sink.id, token.incarnation) is Outcome.COMMITTED
    await sink.until_committed(b"batch 0")


async def test_what_is_aborted_cannot_be_committed(kafka_broker: KafkaBroker) -> None:
    sink = await new_sink(kafka_broker)
    async with transactions(kafka_broker) as connection:
        token = await sink.open(connection)
        for _ in range(2):
            assert await connection.abort(sink.id, token.incarnation) is Outcome.ABORTED
        assert await connection.commit(token) is Outcome.ABORTED
        assert await connection.marked(sink.group, token.topics) is None
    assert await sink.committed() == []


async def test_an_expired_transaction_is_told_as_such(kafka_broker: KafkaBroker) -> None:
    sink = await new_sink(kafka_broker)
    async with transactions(kafka_broker) as connection:
        token = await sink.open(connection, lasts=1.0)

        async def aborted() -> bool:
            state = await connection.describe(sink.id)
            assert state is not None
            return state.phase is Phase.COMPLETE_ABORT

        await until(aborted)
        assert await connection.commit(token) is Outcome.EXPIRED
        assert await connection.marked(sink.group, token.topics) is None
        again = await sink.open(connection)
        assert await connection.commit(again) is Outcome.COMMITTED
        assert await connection.commit(token) is Outcome.COMMITTED
    await sink.until_committed(b"batch 0")
