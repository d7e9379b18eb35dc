"""A broker that keeps its connections open and answers nothing."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka.errors import RequestTimedOutError
from aiokafka.protocol.admin import ApiVersionResponse_v0
from aiokafka.protocol.metadata import MetadataRequest, MetadataResponse_v5

from fanout.kafka.cluster import Cluster, Server
from fanout.kafka.protocol import connections as connections_module
from fanout.kafka.protocol import hang_watch
from fanout.kafka.protocol.connections import Connections, Lane, open_connections
from tests.kafka.protocol.listeners import ChangingTimeouts, listening
from tests.kafka.protocol.peer import frame
from tests.support.kafka.brokers import HERE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

REQUEST = MetadataRequest([])
SUSPICIOUS = hang_watch.SUSPICIOUS  # tests change it
GONE = "does not answer, and its cluster has no such broker any more"


class Broker:
    """A broker that lists brokers, and hangs when it is told to."""

    def __init__(self) -> None:
        self.awake = asyncio.Event()
        self.awake.set()
        self.listed: list[Broker] = [self]
        self.asked = 0
        self._asked = asyncio.Condition()
        self.server = Server("", 0)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while length := int.from_bytes(await reader.readexactly(4)):
            request = await reader.readexactly(length)
            kind, number = int.from_bytes(request[:2]), int.from_bytes(request[4:8])
            async with self._asked:
                self.asked += kind == REQUEST.API_KEY
                self._asked.notify_all()
            await self.awake.wait()
            if kind == REQUEST.API_KEY:
                rows = [(each.server.port, *self._at(each), None) for each in self.listed]
                answer = MetadataResponse_v5(0, rows, "scripted", -1, [])
            else:
                answer = ApiVersionResponse_v0(0, [(REQUEST.API_KEY, 0, 5), (18, 0, 0)])
            writer.write(frame(number, answer.encode()))

    async def was_asked(self, times: int) -> None:
        """Wait for so many more requests for metadata."""
        wanted = self.asked + times
        async with asyncio.timeout(10), self._asked:
            await self._asked.wait_for(lambda: self.asked >= wanted)

    def _at(self, broker: Broker) -> tuple[str, int]:
        return broker.server.host, broker.server.port


@asynccontextmanager
async def two_brokers(
    seconds: float = 30.0, timeouts: ChangingTimeouts | None = None
) -> AsyncIterator[tuple[Connections, Broker, Broker]]:
    """Connect to two brokers that know each other; the first one is number 1."""
    one, other = Broker(), Broker()
    async with listening(one.serve) as one.server, listening(other.serve) as other.server:
        one.listed = other.listed = [one, other]
        cluster = Cluster(f"{one.server},{other.server}", security=HERE)
        async with open_connections(cluster, timeouts or ChangingTimeouts(seconds)) as connections:
            connections.set_brokers({1: one.server, 2: other.server})
            yield connections, one, other


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (hang_watch, connections_module):
        monkeypatch.setattr(module, "SUSPICIOUS", 0.05)
    monkeypatch.setattr(hang_watch, "_PAUSE", 0.02)


@pytest.mark.parametrize("connected", [True, False], ids=["connected", "connects"])
async def test_a_request_is_given_up_when_the_cluster_does_without_its_broker(
    connected: bool,  # noqa: FBT001 - a parameter
) -> None:
    async with two_brokers() as (connections, one, other):
        if connected:
            await connections.send(1, REQUEST)
        one.awake.clear()
        waiting = [
            asyncio.create_task(connections.send(1, REQUEST, lane))
            for lane in (Lane.CALLS, Lane.CALLS, Lane.WRITES)
        ]
        await other.was_asked(3)  # it is still listed: one look-up after the other
        assert not any(task.done() for task in waiting)
        other.listed = [other]
        async with asyncio.timeout(10):
            errors: list[Any] = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(error) for error in errors] == [RequestTimedOutError] * 3
        assert {error.args for error in errors} == {(f"{one.server} {GONE}",)}


async def test_a_broker_that_the_cluster_has_is_waited_for_and_asked_about_no_longer() -> None:
    async with two_brokers() as (connections, one, other):
        one.awake.clear()
        waiting = asyncio.create_task(connections.send(1, REQUEST))
        await other.was_asked(3)
        one.awake.set()
        assert len((await waiting).brokers) == 2
        asked = other.asked
        await asyncio.sleep(0.2)
        assert other.asked <= asked + 1  # one may be under way


async def test_an_address_that_no_broker_advertises_is_waited_for() -> None:
    """It may be that of a load balancer."""
    async with two_brokers(seconds=0.3) as (connections, one, other):
        connections.advertised.clear()
        connections.set_brokers({2: other.server})
        one.awake.clear()
        with pytest.raises(RequestTimedOutError, match=r"did not answer within 0\.3 seconds"):
            await connections.send_to(one.server, REQUEST)
        assert other.asked == 0


async def test_a_broker_that_timed_out_is_asked_last(monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine the other broker may be late as well, and would be asked last, too.
    monkeypatch.setattr(connections_module, "SUSPICIOUS", SUSPICIOUS)
    timeouts = ChangingTimeouts(1.0)
    async with two_brokers(timeouts=timeouts) as (connections, one, _):
        one.awake.clear()
        with pytest.raises(RequestTimedOutError):
            await connections.send(1, REQUEST)
        timeouts.request_timeout = 30.0
        one.awake.set()
        await connections.send(1, REQUEST)  # its connection is open again
        asked = one.asked
        for _ in range(3):
            await connections.send_to_any(REQUEST)
        assert one.asked == asked


async def test_the_next_broker_is_asked_when_one_takes_long() -> None:
    async with two_brokers() as (connections, one, _):
        one.awake.clear()
        async with asyncio.timeout(10):
            assert len((await connections.send_to_any(REQUEST)).brokers) == 2


async def test_brokers_that_are_all_slow_get_their_time() -> None:
    async with two_brokers() as (connections, one, other):
        one.awake.clear()
        other.awake.clear()
        asking = asyncio.create_task(connections.send_to_any(REQUEST))
        await asyncio.sleep(0.3)
        one.awake.set()
        assert len((await asking).brokers) == 2


async def test_nobody_else_to_ask_leaves_the_timeout() -> None:
    async with two_brokers(seconds=0.4) as (connections, one, other):
        one.awake.clear()
        other.awake.clear()
        with pytest.raises(RequestTimedOutError, match=r"did not answer within 0\.4 seconds"):
            await connections.send_to_any(REQUEST)


async def test_a_look_up_ends_with_the_connections() -> None:
    async with two_brokers() as (connections, one, _):
        one.awake.clear()
        waiting = asyncio.create_task(connections.send(1, REQUEST))
        await asyncio.sleep(0.1)
    with pytest.raises(Exception, match="closed"):
        await waiting
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("watch of")]
