"""Write records to the real broker, and read them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from fanout.kafka.partitions import Partition
from fanout.kafka.transactions.outcome import TransactionOutcome
from fanout.kafka.writing.encoding import CODECS
from fanout.kafka.writing.producer_id import Idempotent, Transactional, Unconfirmed
from tests.support.kafka.brokers import create
from tests.support.kafka.record_batches import HEADER_SIZE
from tests.support.kafka.transacting import LONG, Sink, reported, transactions
from tests.support.kafka.writing import read, records, values, writing

if TYPE_CHECKING:
    from fanout.testing.kafka.broker import KafkaBroker

# Of a record with a value of three bytes, at the first offsets of its batch.
RECORD_BYTES = 10
NUMBERS = [b"%d" % number for number in range(5_000)]


@pytest.mark.parametrize("mode", [Idempotent(), Unconfirmed()])
async def test_records_arrive_in_the_order_of_their_rows(
    kafka_broker: KafkaBroker, mode: Any
) -> None:
    topic = f"w-ordered-{type(mode).__name__}"
    await create(kafka_broker, topic, 3)
    places = [number % 3 for number in range(len(NUMBERS))]
    async with writing(kafka_broker, mode, batch_size=2_000) as writer:
        for begin in range(0, len(NUMBERS), 1_000):
            some = slice(begin, begin + 1_000)
            await writer.write(records(topic, NUMBERS[some], places[some]))
        written = await writer.flush()
    assert written.rows == len(NUMBERS)
    assert written.bytes > len(b"".join(NUMBERS))
    assert sum(written.partitions.values()) == written.rows
    assert written.partitions.keys() == {Partition(topic, number) for number in range(3)}
    found = await read(kafka_broker, topic, 3)
    for number in range(3):
        assert [each.value for each in found[number]] == NUMBERS[number::3]


@pytest.mark.parametrize(("batch_size", "batches"), [(1 << 20, 2), (100, 51)])
async def test_what_waits_to_be_sent_goes_together(
    kafka_broker: KafkaBroker, batch_size: int, batches: int
) -> None:
    topic = f"w-together-{batch_size}"
    await create(kafka_broker, topic)
    given, now = [b"%d" % number for number in range(100, 200)], datetime.now(UTC)
    async with writing(kafka_broker, batch_size=batch_size) as writer:
        for each in given:
            await writer.write(records(topic, [each], timestamp=[now]))
        written = await writer.flush()
    assert (written.bytes - len(given) * RECORD_BYTES) // HEADER_SIZE == batches
    assert await values(kafka_broker, topic) == given


async def test_what_is_written_is_what_is_read(kafka_broker: KafkaBroker) -> None:
    await create(kafka_broker, "w-whole")
    stamps = [datetime(2024, 2, 29, 1, 2, 3, 4_000, UTC), datetime(1970, 1, 1, tzinfo=UTC), None]
    before = datetime.now(UTC)
    async with writing(kafka_broker) as writer:
        await writer.write(
            records(
                "w-whole",
                [b"value", None, b""],
                key=[b"key", b"\xff\x00", None],
                timestamp=stamps,
                headers=[[("a", b"1"), ("a", None), ("ä", b"")], None, []],
            )
        )
        await writer.flush()
    first, second, third = (await read(kafka_broker, "w-whole"))[0]
    assert (first.key, first.value, first.timestamp) == (b"key", b"value", 1709168523004)
    assert first.headers == (("a", b"1"), ("a", None), ("ä", b""))
    assert (second.key, second.value, second.timestamp) == (b"\xff\x00", None, 0)
    assert (third.key, third.value, second.headers, third.headers) == (None, b"", (), ())
    now = datetime.fromtimestamp(third.timestamp / 1000, UTC)
    assert before - timedelta(milliseconds=1) <= now <= datetime.now(UTC)


@pytest.mark.parametrize("codec", CODECS)
async def test_every_codec_is_read_by_others(kafka_broker: KafkaBroker, codec: str) -> None:
    topic = f"w-{codec}"
    await create(kafka_broker, topic)
    values_ = [b"value-%d" % number * 50 for number in range(3_000)]
    async with writing(kafka_broker, compression_type=codec, batch_size=300_000) as writer:
        await writer.write(records(topic, values_))
        written = await writer.flush()
    assert await values(kafka_broker, topic) == values_
    assert (written.bytes < sum(map(len, values_)) / 2) is (codec != "none")


async def test_records_of_a_transaction_are_seen_when_somebody_else_has_ended_it(
    kafka_broker: KafkaBroker,
) -> None:
    await create(kafka_broker, "w-joined", 2)
    sink = Sink(kafka_broker, "w-joined")
    async with transactions(kafka_broker) as driver:
        incarnation = await driver.begin(sink.id, LONG)
        async with asyncio.TaskGroup() as tasks:
            for number in (0, 1):
                tasks.create_task(
                    write_numbers(kafka_broker, Transactional(sink.id, incarnation), number)
                )
        assert sum(map(len, (await read(kafka_broker, "w-joined", 2)).values())) == 0
        token = sink.token(incarnation)
        await driver.mark(token)
        assert await driver.commit(token) is TransactionOutcome.COMMITTED
    await reported(kafka_broker, sink.id)
    found = await read(kafka_broker, "w-joined", 2)
    for number in (0, 1):
        assert [each.value for each in found[number]] == NUMBERS


async def write_numbers(broker: KafkaBroker, joined: Transactional, number: int) -> None:
    async with writing(broker, joined) as writer:
        await writer.write(records("w-joined", NUMBERS, number))
        assert (await writer.flush()).rows == len(NUMBERS)


@pytest.mark.parametrize("mode", [Idempotent(), Unconfirmed()])
async def test_no_rows_are_nothing_to_write(kafka_broker: KafkaBroker, mode: Any) -> None:
    async with writing(kafka_broker, mode) as writer:
        await writer.write(records("no-such-topic", []))
        written = await writer.flush()
    assert (written.rows, written.bytes, written.partitions) == (0, 0, {})
