"""Calls to a broker that dies or hangs, and calls that are cancelled."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka.errors import KafkaConnectionError, KafkaError, RequestTimedOutError

from fanout.core.positions import Cursor
from fanout.kafka.cluster import Cluster
from fanout.kafka.reading.transport import OffsetSpec
from tests.support.kafka.brokers import HERE, connect, create, fetch, open_client, persist, produce

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fanout.testing.kafka.broker import KafkaBroker

# Everything below is at once but what waits for a timeout; a busy machine is slower.
SOON = 10.0


@asynccontextmanager
async def paused(broker: KafkaBroker) -> AsyncIterator[None]:
    await asyncio.to_thread(broker.pause)
    try:
        yield
    finally:
        await asyncio.to_thread(broker.resume)


async def still_running() -> set[Any]:
    await asyncio.sleep(0)  # cancelled tasks end in the loop's next turn
    return asyncio.all_tasks() - {asyncio.current_task()}


@pytest.mark.fault("A broker is killed in the middle of a fetch, and comes back")
@pytest.mark.long
async def test_a_broker_killed_in_mid_fetch_is_an_error_and_found_again_when_it_is_back(
    mortal_broker: KafkaBroker,
) -> None:
    first = await create(mortal_broker, "killed")
    await produce(mortal_broker, first, b"value")
    async with connect(mortal_broker) as transport:
        await transport.describe(["killed"])
        fetching = asyncio.create_task(fetch(transport, first, 1, max_wait=20.0))
        await fetch_is_under_way(transport, fetching)
        await asyncio.to_thread(mortal_broker.kill)
        try:
            with pytest.raises(KafkaConnectionError):
                async with asyncio.timeout(SOON):
                    await fetching
            with pytest.raises(KafkaConnectionError, match="cannot connect to 127"):
                await transport.describe(["killed"])
        finally:
            await asyncio.to_thread(mortal_broker.restart)
        assert await persist(lambda: transport.offsets({first: OffsetSpec.LATEST})) == {first: 1}
        assert (await persist(lambda: fetch(transport, first, 0))).high_watermark == 1


async def fetch_is_under_way(transport: Any, fetching: asyncio.Task[Any]) -> None:
    # It has been sent when a call that began later has been answered.
    await transport.describe(["killed"])
    assert not fetching.done()


def set_timeout(transport: Any, seconds: float) -> None:
    """Set the timeout of requests, also over connections that are open."""
    connections = transport._connections
    connections._options = replace(connections._options, request_timeout=seconds)
    for connection in connections._open.values():
        connection._request_timeout = seconds


@pytest.mark.fault("A broker hangs with its connections open")
async def test_a_broker_that_hangs_times_out_and_answers_again_when_it_runs(
    kafka_broker: KafkaBroker,
) -> None:
    first = await create(kafka_broker, "hangs")
    clock = asyncio.get_running_loop().time
    async with connect(kafka_broker) as transport:
        await persist(lambda: transport.offsets({first: OffsetSpec.LATEST}))
        set_timeout(transport, 1.0)
        async with paused(kafka_broker):
            for call in (
                lambda: fetch(transport, first, 0),
                lambda: transport.describe(["hangs"]),
                lambda: transport.offsets({first: OffsetSpec.LATEST}),
            ):
                begun = clock()
                with pytest.raises(RequestTimedOutError, match="not answer within 1 seconds"):
                    await call()
                assert clock() - begun < SOON
        set_timeout(transport, 30.0)
        assert await persist(lambda: transport.offsets({first: OffsetSpec.LATEST})) == {first: 0}


@pytest.mark.fault("A stream is cancelled or closed anywhere")
async def test_a_call_that_is_cancelled_leaves_nothing_and_the_next_has_its_own_answer(
    kafka_broker: KafkaBroker,
) -> None:
    first = await create(kafka_broker, "cancelled")
    await produce(kafka_broker, first, b"value")
    async with connect(kafka_broker) as transport:
        await transport.describe(["cancelled"])
        await fetch(transport, first, 0)
        before = asyncio.all_tasks()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await fetch(transport, first, 1, max_wait=0.5)
        assert not asyncio.all_tasks() - before
        answer = await fetch(transport, first, 0)
        assert answer.batches
        assert (await fetch(transport, first, 1)).batches == b""


@pytest.mark.parametrize("delay", [0.0, 0.001, 0.003, 0.01])
async def test_connecting_that_is_cancelled_leaves_nothing(
    kafka_broker: KafkaBroker, delay: float
) -> None:
    first = await create(kafka_broker, f"connecting-{delay}")
    async with connect(kafka_broker) as transport:
        await transport.describe([first.topic])
        before = asyncio.all_tasks()
        fetching = asyncio.create_task(fetch(transport, first, 0, max_wait=20.0))
        await asyncio.sleep(delay)
        fetching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetching
        # A connection that was made has a reader; one that was not has none.
        assert len(await still_running() - before) <= 1
    assert await still_running() == set()


@pytest.mark.fault("A broker hangs with its connections open")
async def test_closing_does_not_wait_for_a_broker_that_hangs(kafka_broker: KafkaBroker) -> None:
    first = await create(kafka_broker, "closing")
    clock = asyncio.get_running_loop().time
    async with AsyncExitStack() as stack:
        transport = await stack.enter_async_context(connect(kafka_broker))
        await transport.describe(["closing"])
        await fetch(transport, first, 0)
        async with paused(kafka_broker):
            # More bytes than the sockets' buffers take: they can never be flushed.
            long_name = "x" * 30_000
            calls = [
                asyncio.create_task(transport.commit(long_name, {first: Cursor(-1)}))
                for _ in range(400)
            ]
            await asyncio.sleep(0.2)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            begun = clock()
            await stack.aclose()
            assert clock() - begun < 20.0  # a request has 30 seconds
    assert await still_running() == set()


async def test_a_cluster_that_cannot_be_reached_is_an_error_and_leaves_nothing() -> None:
    closed = ["127.0.0.1:9", "127.0.0.1:10"]
    with pytest.raises(KafkaConnectionError, match=r"cannot connect to 127\.0\.0\.1"):
        async with open_client(Cluster(closed, security=HERE)):
            pass
    assert await still_running() == set()


@pytest.mark.fault("No broker answers when the stream opens")
async def test_a_broker_that_answers_is_found_behind_one_that_does_not(
    kafka_broker: KafkaBroker,
) -> None:
    servers = ["127.0.0.1:9", kafka_broker.bootstrap_servers]
    async with open_client(Cluster(servers, security=HERE)) as transport:
        assert transport.cluster_id
    assert await still_running() == set()


@pytest.mark.fault("No broker answers when the stream opens")
async def test_another_service_at_the_port_is_an_error_not_a_hang() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(KafkaError):
            async with open_client(Cluster(f"127.0.0.1:{port}", security=HERE)):
                pass
