"""Memory limits and closing of a writer, and records in its errors and logs."""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import TYPE_CHECKING, Any

import pytest

from fanout.kafka.writing.producer_id import Idempotent, Transactional, Unconfirmed
from fanout.kafka.writing.writer import KafkaWriter
from tests.support.kafka.brokers import create
from tests.support.kafka.transacting import LONG, Sink, transactions
from tests.support.kafka.writing import read, records, values, writing

if TYPE_CHECKING:
    from fanout.testing.kafka.broker import KafkaBroker


def sockets() -> list[Any]:
    loop: Any = asyncio.get_running_loop()
    return [key for key in loop._selector.get_map().values() if key.fd != loop._ssock.fileno()]


async def still_running() -> set[Any]:
    await asyncio.sleep(0)  # cancelled tasks end in the loop's next turn
    return asyncio.all_tasks() - {asyncio.current_task()}


@pytest.mark.long
async def test_writing_waits_while_too_much_is_not_confirmed(kafka_broker: KafkaBroker) -> None:
    await create(kafka_broker, "w-waits")
    async with writing(kafka_broker, batch_size=10_000, buffer_memory=100_000) as writer:
        await writer.write(records("w-waits", [b"first"]))
        await writer.flush()
        await asyncio.to_thread(kafka_broker.pause)
        try:
            # About 90,000 bytes have room, and none are taken.
            async with asyncio.timeout(5):
                await writer.write(records("w-waits", [bytes(9_000)] * 10))
            assert writer._sender._waiting <= 100_000
            waiting = asyncio.create_task(writer.write(records("w-waits", [bytes(9_000)] * 10)))
            await asyncio.sleep(0.2)
            assert not waiting.done()
            assert writer._sender._waiting <= 100_000
        finally:
            await asyncio.to_thread(kafka_broker.resume)
        await waiting
        assert (await writer.flush()).rows == 21
    assert len(await values(kafka_broker, "w-waits")) == 21


@pytest.mark.long
@pytest.mark.parametrize("moment", ["write", "flush", "exit"])
@pytest.mark.parametrize("mode", [Idempotent(), Unconfirmed()])
async def test_cancellation_leaves_no_task_and_no_socket(
    kafka_broker: KafkaBroker, mode: Any, moment: str
) -> None:
    topic = f"w-cancelled-{moment}-{type(mode).__name__}"
    await create(kafka_broker, topic)
    before = len(sockets())
    reached = asyncio.Event()

    async def write() -> None:
        options = {"buffer_memory": 50_000, "batch_size": 10_000}
        async with writing(kafka_broker, mode, **options) as writer:
            await writer.write(records(topic, [b"x"]))
            await writer.flush()
            await asyncio.to_thread(kafka_broker.pause)
            reached.set()
            if moment == "write":
                while True:
                    await writer.write(records(topic, [bytes(9_000)] * 1_000))
            await writer.write(records(topic, [b"y"]))
            if moment == "flush":
                await writer.flush()

    writing_ = asyncio.create_task(write())
    await reached.wait()
    try:
        # With nothing more to do it ends by itself, without waiting for the broker.
        await asyncio.wait([writing_], timeout=20.0 if moment == "exit" else 0.2)
        assert writing_.done() is (moment == "exit")
        writing_.cancel()
        await asyncio.wait([writing_])
        assert writing_.cancelled() is (moment != "exit")
    finally:
        await asyncio.to_thread(kafka_broker.resume)
    assert await still_running() == set()
    assert len(sockets()) == before
    gc.collect()


async def test_a_flush_of_what_is_never_confirmed_waits_until_the_broker_has_read_it(
    kafka_broker: KafkaBroker,
) -> None:
    await create(kafka_broker, "w-unconfirmed")
    async with writing(kafka_broker, Unconfirmed()) as writer:
        await writer.write(records("w-unconfirmed", [b"x"]))
        await writer.flush()
        await asyncio.to_thread(kafka_broker.pause)
        try:
            await writer.write(records("w-unconfirmed", [b"y"]))
            flushing = asyncio.create_task(writer.flush())
            await asyncio.sleep(0.2)
            assert not flushing.done()
        finally:
            await asyncio.to_thread(kafka_broker.resume)
        await flushing
    assert await values(kafka_broker, "w-unconfirmed") == [b"x", b"y"]


async def test_an_error_in_the_block_is_raised_as_it_is(kafka_broker: KafkaBroker) -> None:
    with pytest.raises(KeyError):
        async with writing(kafka_broker):
            raise KeyError
    assert await still_running() == set()


async def test_leaving_without_a_flush_leaves_the_transaction_open(
    kafka_broker: KafkaBroker,
) -> None:
    await create(kafka_broker, "w-left")
    sink = Sink(kafka_broker, "w-left")
    async with transactions(kafka_broker) as driver:
        joined = Transactional(sink.id, await driver.begin(sink.id, LONG))
        async with writing(kafka_broker, joined) as writer:
            await writer.write(records("w-left", [b"x"]))
            await writer.flush()
            await writer.write(records("w-left", [bytes(900_000)] * 5))
        assert await values(kafka_broker, "w-left") == []
        async with writing(kafka_broker, joined):
            pass
        assert (await read(kafka_broker, "w-left", committed=False))[0][0].value == b"x"
        await driver.abort(sink.id, joined.incarnation)


@pytest.mark.parametrize("mode", ["idempotent", "joined", "unconfirmed"])
async def test_nothing_that_is_written_is_logged(
    kafka_broker: KafkaBroker, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    caplog.set_level(logging.DEBUG)
    topic = f"w-silent-{mode}"
    await create(kafka_broker, topic)
    sink = Sink(kafka_broker, topic)
    async with transactions(kafka_broker) as driver:
        joined = Transactional(sink.id, await driver.begin(sink.id, LONG))
        how = {"idempotent": Idempotent(), "joined": joined, "unconfirmed": Unconfirmed()}[mode]
        async with writing(kafka_broker, how, request_timeout=0.5) as writer:
            rows = records(topic, [b"canary"], key=[b"canary"], headers=[[("canary", b"canary")]])
            await writer.write(rows)
            await writer.flush()
            await asyncio.to_thread(kafka_broker.pause)
            await writer.write(rows)
            await asyncio.sleep(0.7)
            await asyncio.to_thread(kafka_broker.resume)
            await writer.flush()
        assert "canary" not in repr(writer)
    assert isinstance(writer, KafkaWriter)
    assert "ProduceRequest" in caplog.text
    assert "canary" not in caplog.text
