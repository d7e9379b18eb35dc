"""Transactions on the real broker: who may finish one, what can be seen of it, and how it ended."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from fanout.errors import OptionError, ServiceError
from fanout.kafka.transactions.calls import Markers
from fanout.kafka.transactions.commit_token import CommitToken, Incarnation
from fanout.kafka.transactions.outcome import TransactionOutcome, TransactionState
from tests.support.kafka.brokers import produce
from tests.support.kafka.transacting import LONG, ended, gone, new_sink, transactions

if TYPE_CHECKING:
    from fanout.testing.kafka.broker import KafkaBroker


async def test_nothing_is_seen_before_the_commit_and_everything_after(
    kafka_broker: KafkaBroker,
) -> None:
    sink = await new_sink(kafka_broker)
    async with transactions(kafka_broker) as connection:
        token = await sink.open(connection, 3, b"a", b"b")
        assert await sink.committed() == []
        assert await connection.commit(token) is TransactionOutcome.COMMITTED
        assert await connection.marked(sink.group, token.topics) == 3
    await sink.until_committed(b"a", b"b")


async def test_several_tasks_write_in_one_transaction(kafka_broker: KafkaBroker) -> None:
    sink = await new_sink(kafka_broker)
    async with transactions(kafka_broker) as connection:
        incarnation = await connection.begin(sink.id, LONG)
        await asyncio.gather(
            sink.write(incarnation, b"a", b"b"), sink.write(incarnation, b"c", partition=1)
        )
        token = sink.token(incarnation)
        await connection.mark(token)
        description = await connection.describe(sink.id)
        assert description is not None
        assert description.state is TransactionState.ONGOING
        assert description.incarnation == incarnation
        assert description.timeout == LONG
        assert description.partitions[sink.topic] == (0, 1)
        assert set(description.partitions) == {sink.topic, "__consumer_offsets"}
        assert await connection.commit(token) is TransactionOutcome.COMMITTED
    await sink.until_committed(b"a", b"b")
    await sink.until_committed(b"c", partition=1)


@pytest.mark.fault("The writer of a transaction is gone before its commit")
async def test_another_process_commits_by_the_stored_token_alone(kafka_broker: KafkaBroker) -> None:
    sink = await new_sink(kafka_broker)
    async with transactions(kafka_broker) as connection:
        stored = (await sink.open(connection)).to_json()
    async with transactions(kafka_broker) as connection:
        token = CommitToken.from_json(stored)
        assert await connection.commit(token) is TransactionOutcome.COMMITTED
        assert await connection.marked(sink.group, token.topics) == 0
    await sink.until_committed(b"batch 0")


@pytest.mark.fault("The writer of a transaction is gone before its commit")
async def test_to_commit_twice_is_to_commit_once(kafka_broker: KafkaBroker) -> None:
    sink = await new_sink(kafka_broker)
    async with transactions(kafka_broker) as connection:
        token = await sink.open(connection)
        for _ in range(3):
            assert await connection.commit(token) is TransactionOutcome.COMMITTED
    await sink.until_committed(b"batch 0")


@pytest.mark.fault("The writer of a transaction is gone before its commit")
@pytest.mark.long
async def test_two_who_commit_at_the_same_time_both_hear_that_it_is_done(
    kafka_broker: KafkaBroker,
) -> None:
    sink = await new_sink(kafka_broker)
    async with transactions(kafka_broker) as connection, transactions(kafka_broker) as other:
        for batch in range(20):
            token = await sink.open(connection, batch)
            outcomes = await asyncio.gather(connection.commit(token), other.commit(token))
            assert set(outcomes) == {TransactionOutcome.COMMITTED}
    await sink.until_committed(*(b"batch %d" % batch for batch in range(20)))


async def test_what_is_committed_cannot_be_aborted(kafka_broker: KafkaBroker) -> None:
    sink = await new_sink(kafka_broker)
    async with transactions(kafka_broker) as connection:
        token = await sink.open(connection)
        await connection.commit(token)
        assert await connection.abort(sink.id, token.incarnation) is TransactionOutcome.COMMITTED
    await sink.until_committed(b"batch 0")


async def test_what_is_aborted_cannot_be_committed(kafka_broker: KafkaBroker) -> None:
    sink = await new_sink(kafka_broker)
    async with transactions(kafka_broker) as connection:
        token = await sink.open(connection)
        for _ in range(2):
            assert await connection.abort(sink.id, token.incarnation) is TransactionOutcome.ABORTED
        assert await connection.commit(token) is TransactionOutcome.ABORTED
        assert await connection.marked(sink.group, token.topics) is None
    assert await sink.committed() == []


async def test_where_nothing_was_written_there_is_nothing_to_commit_or_to_abort(
    kafka_broker: KafkaBroker,
) -> None:
    sink = await new_sink(kafka_broker)
    async with transactions(kafka_broker) as connection:
        incarnation = await connection.begin(sink.id, LONG)
        assert await connection.commit(sink.token(incarnation)) is TransactionOutcome.ABORTED
        assert await connection.abort(sink.id, incarnation) is TransactionOutcome.ABORTED
        description = await connection.describe(sink.id)
        assert description is not None
        assert description.state is TransactionState.EMPTY


async def test_what_is_open_without_a_marker_is_not_committed(kafka_broker: KafkaBroker) -> None:
    sink = await new_sink(kafka_broker)
    async with transactions(kafka_broker) as connection:
        incarnation = await connection.begin(sink.id, LONG)
        await sink.write(incarnation, b"unmarked")
        assert await connection.commit(sink.token(incarnation)) is TransactionOutcome.ABORTED
        await connection.begin(sink.id, LONG)
    assert await sink.committed() == []


@pytest.mark.parametrize("marked", [True, False])
async def test_a_producer_id_that_the_broker_does_not_have_commits_nothing(
    kafka_broker: KafkaBroker, *, marked: bool
) -> None:
    sink = await new_sink(kafka_broker)
    async with transactions(kafka_broker) as connection:
        token = await sink.open(connection)
        wrong = replace(token, incarnation=Incarnation(2**40, 0))
        if not marked:
            await connection.abort(sink.id, token.incarnation)
        assert await connection.commit(wrong) is TransactionOutcome.FENCED
        assert await connection.abort(sink.id, wrong.incarnation) is TransactionOutcome.FENCED
        assert await sink.committed() == []
        expected = TransactionOutcome.COMMITTED if marked else TransactionOutcome.ABORTED
        assert await connection.commit(token) is expected


async def test_an_id_that_the_broker_has_forgotten_counts_as_expired(
    kafka_broker: KafkaBroker,
) -> None:
    sink = await new_sink(kafka_broker)
    async with transactions(kafka_broker) as connection:
        description = await connection.describe(sink.id)
        assert description is not None
        assert (description.state, description.incarnation) == (TransactionState.UNKNOWN, None)
        forgotten = sink.token(Incarnation(1, 0))
        assert await connection.commit(forgotten) is TransactionOutcome.FORGOTTEN
        assert (
            await connection.abort(sink.id, forgotten.incarnation) is TransactionOutcome.FORGOTTEN
        )


@pytest.mark.fault("A dead run has left a transaction open")
async def test_whoever_begins_anew_fences_the_transaction_before(kafka_broker: KafkaBroker) -> None:
    sink = await new_sink(kafka_broker)
    async with transactions(kafka_broker) as old, transactions(kafka_broker) as new:
        token = await sink.open(old)
        begun = await new.begin(sink.id, LONG)
        assert begun != token.incarnation
        assert await new.marked(sink.group) is None
        assert await old.commit(token) is TransactionOutcome.FENCED
        assert await old.abort(sink.id, token.incarnation) is TransactionOutcome.FENCED
        await old.mark(token)
        assert await old.commit(token) is TransactionOutcome.FENCED
        await sink.write(begun, b"new")
        marked = sink.token(begun)
        await new.mark(marked)
        # The marker of the new run is pending, and not that of the old one.
        assert await old.commit(token) is TransactionOutcome.FENCED
        assert await sink.committed() == []
        assert await new.commit(marked) is TransactionOutcome.COMMITTED
    await sink.until_committed(b"new")


@pytest.mark.fault("A dead run has left a transaction open")
async def test_to_begin_lets_readers_get_on(kafka_broker: KafkaBroker) -> None:
    sink = await new_sink(kafka_broker)
    async with transactions(kafka_broker) as connection:
        await sink.open(connection)
        await produce(kafka_broker, sink.partition, b"behind")
        assert await sink.committed() == []
        await connection.begin(sink.id, LONG)
        # A reader is let on when the abort has reached the partition, which begin has waited for.
        assert await sink.committed() == [b"behind"]


@pytest.mark.fault("A commit comes late, after a newer run")
@pytest.mark.fault("EndTxn")
async def test_a_late_commit_after_a_newer_run_changes_nothing_and_tells_the_truth(
    kafka_broker: KafkaBroker,
) -> None:
    sink = await new_sink(kafka_broker)
    async with transactions(kafka_broker) as old, transactions(kafka_broker) as new:
        done = await sink.open(old, 4)
        assert await old.commit(done) is TransactionOutcome.COMMITTED
        lost = await sink.open(old, 5, b"lost")
        again = await sink.open(new, 5)
        # A marker that is pending hides the one of the batch that is committed.
        assert await old.commit(done) is TransactionOutcome.COMMITTED
        assert await old.commit(lost) is TransactionOutcome.FENCED
        assert await new.commit(again) is TransactionOutcome.COMMITTED
        for batch in (6, 7):
            token = await sink.open(new, batch)
            assert await new.commit(token) is TransactionOutcome.COMMITTED
        # The batch is committed, by this process or another one.
        for token in (done, lost, again):
            assert await old.commit(token) is TransactionOutcome.COMMITTED
    await sink.until_committed(b"batch 4", b"batch 5", b"batch 6", b"batch 7")


@pytest.mark.fault("A transaction takes longer than its timeout")
async def test_an_expired_transaction_is_told_as_such_and_its_batch_can_run_again(
    kafka_broker: KafkaBroker,
) -> None:
    sink = await new_sink(kafka_broker)
    async with transactions(kafka_broker) as connection:
        token = await sink.open(connection, lasts=4.0)
        stored = token.to_json()
        await ended(connection, sink)
        await connection.mark(token)
        for _ in range(2):
            assert (
                await connection.commit(CommitToken.from_json(stored)) is TransactionOutcome.EXPIRED
            )
        assert await connection.abort(sink.id, token.incarnation) is TransactionOutcome.EXPIRED
        assert await connection.marked(sink.group, token.topics) is None
        again = await sink.open(connection)
        assert await connection.commit(again) is TransactionOutcome.COMMITTED
    await sink.until_committed(b"batch 0")


@pytest.mark.fault("A zombie writes with the same epoch after the end")
async def test_a_zombie_that_opens_a_transaction_after_the_end_is_not_committed(
    kafka_broker: KafkaBroker,
) -> None:
    sink = await new_sink(kafka_broker)
    async with transactions(kafka_broker) as connection:
        token = await sink.open(connection)
        async with sink.writing(token.incarnation) as zombie:
            assert await connection.commit(token) is TransactionOutcome.COMMITTED
            await ended(connection, sink)
            await zombie.send_and_wait(sink.topic, b"zombie", partition=1)
        description = await connection.describe(sink.id)
        assert description is not None
        assert (description.state, description.incarnation) == (
            TransactionState.ONGOING,
            token.incarnation,
        )
        assert await connection.commit(token) is TransactionOutcome.COMMITTED
        await connection.begin(sink.id, LONG)
        assert await connection.marked(sink.group) == 0
    await sink.until_committed(b"batch 0")
    assert await sink.committed(partition=1) == []


@pytest.mark.fault("A zombie writes with the same epoch after the end")
async def test_a_zombie_that_opens_a_transaction_after_an_abort_is_not_committed(
    kafka_broker: KafkaBroker,
) -> None:
    sink = await new_sink(kafka_broker)
    async with transactions(kafka_broker) as connection:
        token = await sink.open(connection)
        async with sink.writing(token.incarnation) as zombie:
            assert await connection.abort(sink.id, token.incarnation) is TransactionOutcome.ABORTED
            await ended(connection, sink)
            await zombie.send_and_wait(sink.topic, b"zombie", partition=1)
        assert await connection.commit(token) is TransactionOutcome.ABORTED
        await connection.begin(sink.id, LONG)
    assert await sink.committed() == await sink.committed(partition=1) == []


@pytest.mark.fault("A topic that was written to is deleted before or after the commit")
async def test_a_transaction_in_several_topics_is_marked_in_each(kafka_broker: KafkaBroker) -> None:
    sink = await new_sink(kafka_broker, also=1)
    async with transactions(kafka_broker) as connection:
        token = await sink.open(connection)
        assert len(token.topics) == 2
        assert await connection.commit(token) is TransactionOutcome.COMMITTED
        await ended(connection, sink)
        for topic in token.topics:
            assert await connection._calls.markers(sink.group, [topic]) == Markers(0, pending=False)
        # So one of them may be deleted.
        await asyncio.to_thread(kafka_broker.delete_topic, sink.topic)
        await gone(connection, sink)
        await connection.begin(sink.id, LONG)
        assert await connection.commit(token) is TransactionOutcome.COMMITTED
    assert await sink.committed(sink.also[0]) == [b"batch 0"]


@pytest.mark.fault("A topic that was written to is deleted before or after the commit")
async def test_the_outcome_is_known_although_the_only_marked_topic_was_deleted(
    kafka_broker: KafkaBroker,
) -> None:
    sink = await new_sink(kafka_broker)
    async with transactions(kafka_broker) as connection:
        token = await sink.open(connection)
        assert await connection.commit(token) is TransactionOutcome.COMMITTED
        await ended(connection, sink)
        await asyncio.to_thread(kafka_broker.delete_topic, sink.topic)
        await gone(connection, sink)
        assert await connection.commit(token) is TransactionOutcome.COMMITTED


@pytest.mark.fault("A topic that was written to is deleted before or after the commit")
async def test_a_transaction_whose_marker_went_with_its_topic_is_not_committed(
    kafka_broker: KafkaBroker,
) -> None:
    sink = await new_sink(kafka_broker)
    other = await new_sink(kafka_broker)
    async with transactions(kafka_broker) as connection:
        token = await sink.open(connection)
        async with sink.writing(token.incarnation) as producer:
            await producer.send_and_wait(other.topic, b"unmarked", partition=0)
        await asyncio.to_thread(kafka_broker.delete_topic, sink.topic)
        await gone(connection, sink)
        assert await connection.commit(token) is TransactionOutcome.ABORTED
        await connection.begin(sink.id, LONG)
    assert await other.committed() == []


@pytest.mark.usefixtures("fanout_fast")
async def test_a_topic_that_does_not_exist_is_missing_long_before_the_patience_ends(
    kafka_broker: KafkaBroker,
) -> None:
    sentence = (
        "there is no topic no-such-topic: create it before it is written to, or check its name and "
        "the cluster"
    )
    async with transactions(kafka_broker, patience=40.0) as connection:
        with pytest.raises(ServiceError, match=f"^{sentence}$"):
            await connection.partitions("no-such-topic")


@pytest.mark.fault("A topic that was written to is deleted before or after the commit")
async def test_a_topic_that_does_not_exist_cannot_be_marked(kafka_broker: KafkaBroker) -> None:
    sink = await new_sink(kafka_broker)
    async with (
        transactions(kafka_broker) as connection,
        transactions(kafka_broker, patience=0.2) as impatient,
    ):
        token = sink.token(await connection.begin(sink.id, LONG))
        token = replace(token, partitions={sink.topic: (0,), "no-such-topic": (0,)})
        with pytest.raises(ServiceError, match=r"batch 0 cannot .* topic no-such-topic does not"):
            await impatient.mark(token)
        await connection.abort(sink.id, token.incarnation)
        assert await connection.marked(sink.group, token.topics) is None
        with pytest.raises(ServiceError, match="partitions of no-such-topic cannot be counted"):
            await impatient.partitions("no-such-topic")
        assert await connection.partitions(sink.topic) == 2


async def test_a_transaction_that_stays_open_is_not_waited_for_without_end(
    kafka_broker: KafkaBroker,
) -> None:
    sink = await new_sink(kafka_broker)
    async with transactions(kafka_broker, patience=0.2) as connection:
        token = await sink.open(connection)
        with pytest.raises(ServiceError, match=f"marker in {sink.group} is still open"):
            await connection.marked(sink.group, token.topics)
        assert await connection.commit(token) is TransactionOutcome.COMMITTED


async def test_a_timeout_that_the_broker_does_not_allow_is_an_error_of_options(
    kafka_broker: KafkaBroker,
) -> None:
    sink = await new_sink(kafka_broker)
    async with transactions(kafka_broker) as connection:
        assert await connection.max_timeout() == 900.0
        await connection.begin(sink.id, 900.0)
        with pytest.raises(OptionError, match=r"=901 seconds is longer .* which is 900 seconds"):
            await connection.begin(sink.id, 901.0)
        for timeout in (0, -1.0, float("nan"), float("inf"), 1e9):
            with pytest.raises(OptionError, match=r"transaction_timeout=.* must be from 0.001 to"):
                await connection.begin(sink.id, timeout)


@pytest.mark.fault("A commit is still reaching the partitions when its marker is looked for")
@pytest.mark.fault("OffsetFetch")
@pytest.mark.long
async def test_a_marker_that_is_on_its_way_is_never_absent(kafka_broker: KafkaBroker) -> None:
    sink = await new_sink(kafka_broker)
    async with transactions(kafka_broker) as connection, transactions(kafka_broker) as reader:
        for batch in range(200):
            incarnation = await connection.begin(sink.id, LONG)
            assert await reader.marked(sink.group) == (batch - 1 if batch else None)
            token = sink.token(incarnation, batch)
            await connection.mark(token)
            outcome, marked = await asyncio.gather(
                connection.commit(token), reader.marked(sink.group, token.topics)
            )
            assert (outcome, marked) == (TransactionOutcome.COMMITTED, batch)
            assert await reader.marked(sink.group, token.topics) == batch
