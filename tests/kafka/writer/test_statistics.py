"""What a writer to Kafka counts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka.errors import KafkaConnectionError

from fanout import Origin, TransactionStatistics, WriterStatistics
from fanout.errors import BatchNotWrittenError
from fanout.kafka.protocol.connections import Connections, Lane
from fanout.kafka.transactions.outcome import TransactionOutcome
from fanout.kafka.transactions.transactions import Transactions
from tests.kafka.writer.writers import rows, writing
from tests.support.kafka.topics import new_topic

if TYPE_CHECKING:
    from fanout.testing.kafka.broker import KafkaBroker


async def test_records_bytes_and_requests_are_counted_once_confirmed(
    kafka_broker: KafkaBroker,
) -> None:
    topic = (await new_topic(kafka_broker)).name
    async with writing(kafka_broker, topic) as writer:
        assert writer.statistics() == WriterStatistics(origin=Origin("kafka", topic))
        await writer.write(rows("a" * 1_000, "b", "c"))
        assert writer.statistics().waiting_bytes > 1_000
        await writer.flush()
        found = writer.statistics()
        assert (found.records, found.requests, found.retries, found.waiting_bytes) == (3, 1, 0, 0)
        assert 1_000 < found.bytes < 1_200
        assert found.throttled == 0
        assert found.transactions is None


async def test_records_that_are_sent_again_are_counted(
    kafka_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = Connections.send
    failures = iter([KafkaConnectionError("broken"), KafkaConnectionError("broken")])

    async def unreliable(
        self: Connections, broker: int, request: Any, lane: Lane = Lane.CALLS, **how: Any
    ) -> Any:
        answer = await send(self, broker, request, lane, **how)
        if lane is Lane.WRITES and (failure := next(failures, None)) is not None:
            raise failure
        return answer

    topic = (await new_topic(kafka_broker)).name
    async with writing(kafka_broker, topic) as writer:
        monkeypatch.setattr(Connections, "send", unreliable)
        await writer.write(rows("a", "b"))
        await writer.flush()
        found = writer.statistics()
        assert (found.records, found.requests, found.retries) == (2, 3, 4)
        assert found.waiting_bytes == 0


async def test_answers_of_a_broker_that_keeps_a_quota_are_counted(
    kafka_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = Connections.send

    async def throttled(self: Connections, broker: int, request: Any, lane: Any, **how: Any) -> Any:
        answer = await send(self, broker, request, lane, **how)
        if lane is Lane.WRITES:
            return SimpleNamespace(topics=answer.topics, throttle_time_ms=5)
        return answer

    topic = (await new_topic(kafka_broker)).name
    async with writing(kafka_broker, topic) as writer:
        monkeypatch.setattr(Connections, "send", throttled)
        await writer.write(rows("a"))
        await writer.flush()
        assert writer.statistics().throttled == 1


async def test_transactions_are_counted_from_their_first_record_to_their_end(
    kafka_broker: KafkaBroker,
) -> None:
    topic = (await new_topic(kafka_broker)).name
    async with writing(kafka_broker, topic, transactional_id=f"{topic}-counted") as writer:
        await writer.commit()
        assert writer.statistics().transactions == TransactionStatistics()
        await writer.write(rows("a"))
        await writer.write(rows("b"))
        assert writer.statistics().transactions == TransactionStatistics(begun=1)
        await writer.commit()
        await writer.write(rows("c"))
        await writer.abort()
        await writer.write(rows("d"))
    assert writer.statistics().transactions == TransactionStatistics(3, committed=1, aborted=2)


async def test_a_transaction_that_brokers_have_aborted_counts_once(
    kafka_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def expired(*_: object, **__: object) -> TransactionOutcome:
        return TransactionOutcome.EXPIRED

    topic = (await new_topic(kafka_broker)).name
    async with writing(kafka_broker, topic, transactional_id=f"{topic}-expired") as writer:
        monkeypatch.setattr(Transactions, "end", expired)
        await writer.write(rows("a"))
        for _ in range(2):
            with pytest.raises(BatchNotWrittenError):
                await writer.commit()
        assert writer.statistics().transactions == TransactionStatistics(1, aborted=1)
