from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from unittest.mock import Mock

import pytest
from aiokafka.errors import KafkaError as AioKafkaError
from aiokafka.errors import RequestTimedOutError
from aiokafka.structs import RecordMetadata
from confluent_kafka import Consumer, KafkaError, TopicPartition

from fanout.demo.kafka import KafkaStream
from fanout.demo.options import STREAM, DemoFailedError
from fanout.demo.plan import Action, Kind
from fanout.testing.trials.records import RecordProducer, read_number
from tests.support.groups import KAFKA

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from fanout.demo.verification import SentRecord
    from fanout.testing.kafka.broker import KafkaBroker

pytestmark = KAFKA

RECORDS = RecordProducer(STREAM, Random(1)).make(200)
NAMES = itertools.count(1)


Found: TypeAlias = "list[tuple[tuple[str, int], bytes]]"


class Topic:
    """A topic of the demo, and what another client finds in it."""

    def __init__(self, broker: KafkaBroker, name: str, stream: KafkaStream) -> None:
        self.name = name
        self.stream = stream
        self._broker = broker
        self.times: dict[int, int] = {}

    async def records(self, count: int, *, isolation: str = "read_committed") -> Found:
        """Read the places and data of all records, once so many are there.

        A transaction has not ended yet when its producer has been answered.
        """
        return await asyncio.to_thread(self._read, count, isolation)

    async def numbers(
        self, count: int, *, isolation: str = "read_committed"
    ) -> Counter[int | None]:
        """Count the records by the numbers that they carry."""
        return Counter(
            number_in(data) for _, data in await self.records(count, isolation=isolation)
        )

    async def end(self) -> int:
        """Add up the offsets at which the partitions end."""
        return await asyncio.to_thread(self._end)

    def _read(self, count: int, isolation: str) -> Found:
        with self._consumer(isolation) as (consumer, partitions):
            consumer.assign(partitions)
            found: Found = []
            behind = {each.partition for each in partitions}
            while behind or len(found) < count:
                message = consumer.poll(20)
                assert message is not None
                partition: Any = message.partition()
                if (error := message.error()) is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    behind.discard(partition)
                    continue
                offset, data = message.offset(), message.value()
                assert offset is not None
                assert data is not None
                number = number_in(data)
                assert number is not None
                self.times[number] = message.timestamp()[1]
                found.append(((f"{message.topic()}-{partition}", offset), data))
                behind.add(partition)
            return found

    def _end(self) -> int:
        with self._consumer("read_committed") as (consumer, partitions):
            return sum(consumer.get_watermark_offsets(each, 20)[1] for each in partitions)

    @contextmanager
    def _consumer(self, isolation: str) -> Iterator[tuple[Consumer, list[TopicPartition]]]:
        topic = self.name
        consumer = Consumer(
            {
                "bootstrap.servers": self._broker.bootstrap_servers,
                "group.id": "nobody",
                "isolation.level": isolation,
                "enable.partition.eof": True,
                "log_level": 0,
            }
        )
        try:
            numbers = consumer.list_topics(topic, timeout=20).topics[topic].partitions
            yield consumer, [TopicPartition(topic, number, 0) for number in numbers]
        finally:
            consumer.close()


@asynccontextmanager
async def opened(broker: KafkaBroker, partitions: int = 2) -> AsyncIterator[Topic]:
    name = f"demo{next(NAMES)}"
    await asyncio.to_thread(broker.create_topic, name, partitions)
    stream = KafkaStream(broker, name, partitions)
    async with stream.connect():
        yield Topic(broker, name, stream)


@pytest.fixture
async def topic(kafka_broker: KafkaBroker) -> AsyncIterator[Topic]:
    """A topic of two partitions."""
    async with opened(kafka_broker) as topic:
        yield topic


def action(kind: Kind) -> Action:
    return Action(1, kind, 0.5)


def number_in(data: bytes) -> int | None:
    """Return the number that a record carries; None if it is none of these records."""
    number = int(data.partition(b":")[0])
    return read_number(STREAM, RECORDS[number].key, data)


def places(sent: Sequence[SentRecord]) -> set[tuple[tuple[str, int], bytes]]:
    """Return the places and data of what was sent: all records, in their order."""
    pairs = zip(sent, RECORDS, strict=True)
    return {((place.split, int(place.sequence)), record.value) for place, record in pairs}


def arrived(found: Found) -> set[tuple[tuple[str, int], bytes]]:
    return set(found)


async def test_records_are_where_they_are_told_to_be(topic: Topic) -> None:
    sent = await topic.stream.put(RECORDS)
    assert len(sent) == 200
    found = await topic.records(200)
    assert len(found) == 200
    assert arrived(found) == places(sent)
    assert topic.times == {number: record.time for number, record in enumerate(sent)}
    # Or a broker that was killed would not know their producer again.
    day = 86_400_000
    assert 0 < datetime.now(UTC).timestamp() * 1000 - min(topic.times.values()) < day / 2
    assert await topic.end() == 200
    assert topic.stream.faults() == {}


async def test_a_committed_transaction_holds_the_next_records_alone(topic: Topic) -> None:
    done = await topic.stream.perform(action(Kind.COMMIT))
    assert "transaction" in done.description
    sent = [*await topic.stream.put(RECORDS[:100]), *await topic.stream.put(RECORDS[100:])]
    assert arrived(await topic.records(200)) == places(sent)
    assert await topic.end() == 200 + 2, "a marker of the transaction's end in each partition"
    assert topic.stream.faults() == {}


async def test_the_twins_of_an_aborted_transaction_are_there_and_do_not_count(
    topic: Topic,
) -> None:
    await topic.stream.perform(action(Kind.ABORT))
    sent = await topic.stream.put(RECORDS)
    everything = await topic.numbers(400, isolation="read_uncommitted")
    assert everything == Counter(dict.fromkeys(range(200), 2))
    found = await topic.records(200)
    assert len(found) == 200
    assert arrived(found) == places(sent)
    assert topic.stream.faults() == {"AbortTransaction": 1}


async def test_each_call_is_struck_by_one_act(topic: Topic) -> None:
    for kind in (Kind.ABORT, Kind.ABORT, Kind.COMMIT):
        await topic.stream.perform(action(kind))
    for begin in range(0, 200, 50):
        await topic.stream.put(RECORDS[begin : begin + 50])
    everything = await topic.numbers(300, isolation="read_uncommitted")
    twice = {number for number, times in everything.items() if times == 2}
    assert twice == set(range(100))
    assert await topic.numbers(200) == Counter(range(200))


async def test_a_topic_grows_and_its_new_partitions_get_records_at_once(topic: Topic) -> None:
    name = topic.name
    await topic.stream.perform(action(Kind.COMMIT))
    await topic.stream.put(RECORDS[:50])
    await topic.stream.put(RECORDS[50:100])
    done = await topic.stream.perform(action(Kind.GROW))
    assert (done.ended, done.born) == ((), (f"{name}-2", f"{name}-3"))
    assert done.description == f"add the partitions {name}-2 and {name}-3"
    await topic.stream.perform(action(Kind.COMMIT))
    for call in (RECORDS[100:150], RECORDS[150:]):
        sent = await topic.stream.put(call)
        assert {record.split for record in sent} == {f"{name}-{number}" for number in range(4)}
    assert await topic.numbers(200) == Counter(range(200))


@pytest.mark.long
async def test_a_broker_that_is_killed_has_each_record_once(
    mortal_broker: KafkaBroker,
) -> None:
    before = await asyncio.to_thread(lambda: mortal_broker.pid)
    async with opened(mortal_broker) as topic:
        await topic.stream.perform(action(Kind.RESTART))
        sent = await topic.stream.put(RECORDS)
        assert await asyncio.to_thread(lambda: mortal_broker.pid) not in {before, None}
        found = await topic.records(200)
        assert len(found) == 200
        assert arrived(found) == places(sent)
        assert topic.stream.faults() == {"KillBroker": 1}


@pytest.mark.long
async def test_a_broker_that_is_down_is_not_waited_for_by_a_run_that_is_given_up(
    mortal_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanout.testing.kafka.producer._GRACE", 0.1)
    async with opened(mortal_broker) as topic:
        await asyncio.to_thread(mortal_broker.kill)
        putting = asyncio.create_task(topic.stream.put(RECORDS))
        await asyncio.wait([putting], timeout=0.1)
        assert putting.cancel()
    await asyncio.to_thread(mortal_broker.restart)


class Answering:
    """A producer whose broker gives one answer to every record."""

    def __init__(self, answer: RecordMetadata | AioKafkaError) -> None:
        self._answer = answer

    async def send(self, *_: object) -> asyncio.Future[RecordMetadata]:
        future: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
        if isinstance(self._answer, AioKafkaError):
            future.set_exception(self._answer)
        else:
            future.set_result(self._answer)
        return future


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (RequestTimedOutError(), "the broker has not accepted the records: .*RequestTimedOutError"),
        (RecordMetadata("orders", 0, None, -1, 0, 0, 0), "without reporting their offsets"),
    ],
    ids=["error", "no offset"],
)
async def test_a_record_of_unknown_fate_ends_the_demo(
    answer: RecordMetadata | AioKafkaError, sentence: str
) -> None:
    stream = KafkaStream(cast("Any", Mock()), "orders", 1)
    stream._plain = cast("Any", Answering(answer))
    with pytest.raises(DemoFailedError, match=sentence):
        await stream.put(RECORDS)
