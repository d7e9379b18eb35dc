"""Records that cannot be written, and brokers that die during a write."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from fanout.errors import (
    FanOutError,
    FencedError,
    ServiceError,
    UnwritableRecordError,
    WriteTimeoutError,
)
from fanout.kafka.cluster import Cluster
from fanout.kafka.writing.producer_id import Idempotent, Transactional, Unconfirmed
from fanout.kafka.writing.write_options import ProducerOptions
from fanout.kafka.writing.writer import open_writer
from tests.support.kafka.brokers import HERE, create
from tests.support.kafka.transacting import LONG, Sink, transactions
from tests.support.kafka.writing import HEADERS, STAMP, read, records, values, writing

if TYPE_CHECKING:
    from fanout.kafka.writing.writer import KafkaWriter
    from fanout.testing.kafka.broker import KafkaBroker

BIG = bytes(10 << 20)
CONFIRMED = ["idempotent", "joined"]


@pytest.mark.long
@pytest.mark.usefixtures("fanout_fast")
@pytest.mark.parametrize("mode", [Idempotent(), Unconfirmed()])
@pytest.mark.parametrize(("topic", "partition"), [("w-missing", 0), ("w-small", 3)])
async def test_a_topic_or_partition_that_does_not_exist_is_an_error(
    kafka_broker: KafkaBroker, mode: Any, topic: str, partition: int
) -> None:
    topic = f"{topic}-{type(mode).__name__}"
    if partition:
        await create(kafka_broker, topic, 2)
    async with writing(kafka_broker, mode) as writer:
        with pytest.raises(ServiceError, match=rf"no such topic or partition: .*{topic}.*create"):
            await writer.write(records(topic, [b"x"], partition))


@pytest.mark.long
@pytest.mark.usefixtures("fanout_fast")
@pytest.mark.parametrize("mode", CONFIRMED)
async def test_a_topic_that_is_deleted_in_the_middle_is_an_error(
    kafka_broker: KafkaBroker, mode: str
) -> None:
    topic = f"w-deleted-{mode}"
    await create(kafka_broker, topic)
    async with transactions(kafka_broker) as driver:
        sink = Sink(kafka_broker, topic)
        joined = Transactional(sink.id, await driver.begin(sink.id, LONG))
        how = joined if mode == "joined" else Idempotent()
        async with writing(kafka_broker, how) as writer:
            await writer.write(records(topic, [b"x"]))
            await writer.flush()
            await asyncio.to_thread(kafka_broker.delete_topic, topic)
            with pytest.raises(ServiceError, match="no such topic or partition"):  # noqa: PT012 - the broker deletes it a moment later
                while True:
                    await writer.write(records(topic, [b"x"]))
                    await writer.flush()
            with pytest.raises(ServiceError, match="no such topic or partition"):
                await writer.write(records(topic, [b"x"]))


async def test_a_large_record_needs_a_larger_limit_and_says_which(
    kafka_broker: KafkaBroker,
) -> None:
    await create(kafka_broker, "w-large")
    async with writing(kafka_broker) as writer:
        with pytest.raises(UnwritableRecordError, match=r"w-large-0 .*max\.request\.size=1048576"):
            await writer.write(records("w-large", [b"x", BIG]))
        # It was refused before anything was sent, so that the writer goes on.
        await writer.write(records("w-large", [b"y"]))
        await writer.flush()
    async with writing(kafka_broker, max_request_size=11 << 20) as writer:
        await writer.write(records("w-large", [BIG, b"z"]))
        with pytest.raises(UnwritableRecordError, match=r"w-large-0.*max\.message\.bytes"):
            await writer.flush()
    settings = {"max.message.bytes": str(11 << 20)}
    await asyncio.to_thread(kafka_broker.alter_topic, "w-large", settings)
    async with writing(kafka_broker, max_request_size=11 << 20) as writer:
        await writer.write(records("w-large", [BIG, b"z"]))
        await writer.flush()
    assert await values(kafka_broker, "w-large") == [b"y", BIG, b"z"]


@pytest.mark.long
async def test_batches_are_cut_until_the_topic_takes_them(kafka_broker: KafkaBroker) -> None:
    await create(kafka_broker, "w-cut")
    await asyncio.to_thread(kafka_broker.alter_topic, "w-cut", {"max.message.bytes": "3000"})
    given = [b"%d" % number * 100 for number in range(2_000)]
    async with writing(kafka_broker) as writer:
        await writer.write(records("w-cut", given[:1_000]))
        await writer.write(records("w-cut", given[1_000:]))
        assert (await writer.flush()).rows == 2_000
    assert await values(kafka_broker, "w-cut") == given


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"timestamp": pa.array([-1_000_000], STAMP)}, "the timestamp of a record is less than 0"),
        ({"headers": pa.array([[(None, b"canary")]], HEADERS)}, "a header without a key"),
        ({"offset": pa.array([1])}, "'offset' that Kafka cannot hold"),
        ({"key": pa.array([1.5])}, "'key' has the type double"),
        ({"topic": pa.array([None], pa.string())}, "has no topic"),
        ({"partition": pa.array([None], pa.int32())}, "has no partition"),
        ({"partition": pa.array([-1], pa.int32())}, "the partition of a record is less than 0"),
        ({"partition": pa.array(["canary"])}, "'partition' has the type string"),
    ],
)
async def test_what_kafka_has_no_place_for_is_refused_before_it_is_sent(
    kafka_broker: KafkaBroker, columns: dict[str, Any], says: str
) -> None:
    plain = records("w-refused", [b"canary"])
    arrays = {name: plain[name] for name in plain.schema.names} | columns
    rows = pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
    async with writing(kafka_broker) as writer:
        with pytest.raises(UnwritableRecordError, match=says) as caught:
            await writer.write(rows)
        with pytest.raises(UnwritableRecordError, match="no column 'value'"):
            await writer.write(rows.select(["topic", "partition"]))
    assert "canary" not in str(caught.value)
    assert caught.value.__cause__ is None


async def test_a_record_without_a_key_for_a_compacted_topic_is_an_error(
    kafka_broker: KafkaBroker,
) -> None:
    await create(kafka_broker, "w-compacted")
    settings = {"cleanup.policy": "compact"}
    await asyncio.to_thread(kafka_broker.alter_topic, "w-compacted", settings)
    async with writing(kafka_broker) as writer:
        await writer.write(records("w-compacted", [b"x"]))
        with pytest.raises(FanOutError, match="w-compacted-0"):
            await writer.flush()


async def test_a_writer_whose_transaction_was_begun_anew_is_fenced(
    kafka_broker: KafkaBroker,
) -> None:
    await create(kafka_broker, "w-fenced", 2)
    sink = Sink(kafka_broker, "w-fenced")
    async with transactions(kafka_broker) as driver:
        joined = Transactional(sink.id, await driver.begin(sink.id, LONG))
        async with writing(kafka_broker, joined) as writer, writing(kafka_broker, joined) as other:
            await writer.write(records("w-fenced", [b"x"]))
            await writer.flush()
            await driver.begin(sink.id, LONG)
            for one, number in ((writer, 0), (other, 1)):
                await one.write(records("w-fenced", [b"zombie"], number))
                with pytest.raises(FencedError, match="newer run"):
                    await one.flush()
                with pytest.raises(FencedError, match="newer run"):
                    await one.write(records("w-fenced", [b"zombie"], number))
    assert await read(kafka_broker, "w-fenced", 2) == {}


@pytest.mark.long
@pytest.mark.parametrize("mode", CONFIRMED)
async def test_a_broker_killed_in_the_middle_has_each_record_once_and_in_order(
    mortal_broker: KafkaBroker, mode: str
) -> None:
    topic = f"w-killed-{mode}"
    await create(mortal_broker, topic, 3)
    sink = Sink(mortal_broker, topic)
    given = [b"%d-" % number + bytes(500) for number in range(40_000)]
    async with transactions(mortal_broker) as driver:
        incarnation = await driver.begin(sink.id, LONG)
        how = Transactional(sink.id, incarnation) if mode == "joined" else Idempotent()
        async with writing(mortal_broker, how, batch_size=100_000) as writer:
            for begin in range(0, len(given), 20_000):
                some = given[begin : begin + 20_000]
                await writer.write(records(topic, some, [n % 3 for n in range(len(some))]))
                if not begin:
                    # Some of it is on its way, some confirmed, some neither.
                    await asyncio.to_thread(mortal_broker.restart)
            assert (await writer.flush()).rows == len(given)
        if mode == "joined":
            token = sink.token(incarnation)
            await driver.mark(token)
            await driver.commit(token)
    found = await read(mortal_broker, topic, 3)
    for number in range(3):
        expected = [v for i, v in enumerate(given) if (i % 20_000) % 3 == number]
        assert [each.value for each in found[number]] == expected


def hurry(writer: KafkaWriter, seconds: float) -> None:
    """Give the next records so little time; those before them had all that a slow machine needs."""
    options = writer._sender._options
    writer._sender._options = replace(options, delivery_timeout=seconds)


@pytest.mark.long
@pytest.mark.parametrize("mode", [Idempotent(), Unconfirmed()])
async def test_a_broker_that_is_gone_for_longer_than_the_timeout_is_an_error(
    mortal_broker: KafkaBroker, mode: Any
) -> None:
    topic = f"w-gone-{type(mode).__name__}"
    await create(mortal_broker, topic)
    async with writing(mortal_broker, mode, request_timeout=2.0) as writer:
        await writer.write(records(topic, [b"x"]))
        await writer.flush()
        await asyncio.to_thread(mortal_broker.kill)
        try:
            hurry(writer, 2.5)
            with pytest.raises(WriteTimeoutError, match=r"delivery\.timeout\.ms") as caught:  # noqa: PT012 - the first may go to a socket that is still open
                while True:
                    await writer.write(records(topic, [b"x"]))
                    await writer.flush()
                    await asyncio.sleep(0.01)
            assert caught.value.retryable
            with pytest.raises(WriteTimeoutError):
                await writer.flush()
        finally:
            await asyncio.to_thread(mortal_broker.restart)


async def test_a_broker_that_hangs_is_an_error_too_and_its_records_may_come(
    kafka_broker: KafkaBroker,
) -> None:
    await create(kafka_broker, "w-hangs")
    async with writing(kafka_broker, request_timeout=2.0) as writer:
        await writer.write(records("w-hangs", [b"x"]))
        await writer.flush()
        await asyncio.to_thread(kafka_broker.pause)
        try:
            hurry(writer, 2.5)
            await writer.write(records("w-hangs", [b"y"]))
            with pytest.raises(WriteTimeoutError, match="did not answer within 2 seconds"):
                await writer.flush()
        finally:
            await asyncio.to_thread(kafka_broker.resume)


async def test_a_broker_that_hangs_for_a_while_has_each_record_once(
    kafka_broker: KafkaBroker,
) -> None:
    await create(kafka_broker, "w-slow")
    async with writing(kafka_broker, request_timeout=0.3, delivery_timeout=30.0) as writer:
        await writer.write(records("w-slow", [b"x"]))
        await writer.flush()
        await asyncio.to_thread(kafka_broker.pause)
        try:
            await writer.write(records("w-slow", [b"y"]))
            flushing = asyncio.create_task(writer.flush())
            await asyncio.sleep(1.0)
        finally:
            await asyncio.to_thread(kafka_broker.resume)
        assert (await flushing).rows == 2
        await writer.write(records("w-slow", [b"z"]))
        await writer.flush()
    assert await values(kafka_broker, "w-slow") == [b"x", b"y", b"z"]


async def test_a_cluster_that_cannot_be_reached_is_an_error(unused_tcp_port: int) -> None:
    options = ProducerOptions(request_timeout=0.1, delivery_timeout=0.1)
    servers = f"127.0.0.1:{unused_tcp_port}"
    with pytest.raises(ServiceError, match="cannot be reached"):
        async with open_writer(Cluster(servers, security=HERE), mode=Idempotent(), options=options):
            raise AssertionError
