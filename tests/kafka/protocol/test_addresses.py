"""A name with several addresses, of which the first leads nowhere."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka.errors import KafkaConnectionError, RequestTimedOutError
from aiokafka.protocol.metadata import MetadataRequest

from fanout.kafka.cluster import Cluster, Server
from fanout.kafka.protocol import broker_connection
from fanout.kafka.protocol.connections import open_connections
from fanout.kafka.security import Security
from tests.kafka.certificates import make_certificates
from tests.kafka.protocol.listeners import ChangingTimeouts, broker, listening

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from fanout.kafka.protocol.connections import Connections

NAME, FIRST = "kafka.test", "127.0.0.2"
REQUEST = MetadataRequest([])


def resolve_to(monkeypatch: pytest.MonkeyPatch, *addresses: str, name: str = NAME) -> None:
    """Let the name service answer these addresses for a name."""
    loop = asyncio.get_running_loop()
    resolve = loop.getaddrinfo

    async def answer(host: str, port: int, **how: Any) -> Sequence[Any]:
        if host != name:
            return await resolve(host, port, **how)
        found = ((address, port) for address in addresses)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", each) for each in found]

    monkeypatch.setattr(loop, "getaddrinfo", answer)


@pytest.fixture
def sockets() -> Iterator[ExitStack]:
    with ExitStack() as sockets:
        yield sockets


def accept_nothing(sockets: ExitStack, port: int, room: int) -> None:
    """Listen at the first address, where so many connections wait; further ones are dropped."""
    listener = sockets.enter_context(socket.socket())
    listener.bind((FIRST, port))
    listener.listen(room)
    if room == 0:
        for _ in range(4):
            client = sockets.enter_context(socket.socket())
            client.settimeout(0)
            with suppress(BlockingIOError):
                client.connect((FIRST, port))


def opening(server: Server, timeouts: ChangingTimeouts | None = None) -> Any:
    security = Security(protocol="PLAINTEXT", insecure=True)
    cluster = Cluster(f"{NAME}:{server.port}", security=security)
    return open_connections(cluster, timeouts or ChangingTimeouts(30.0))


async def ask(connections: Connections) -> Any:
    return await connections.send_to(connections.servers[0], REQUEST)


async def test_an_address_that_refuses_is_followed_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolve_to(monkeypatch, FIRST, "127.0.0.1")
    async with listening(broker()) as server, opening(server) as connections:
        assert (await ask(connections)).cluster_id == "scripted"


async def test_an_address_from_which_nothing_comes_back_is_followed_by_the_next(
    monkeypatch: pytest.MonkeyPatch, sockets: ExitStack
) -> None:
    resolve_to(monkeypatch, FIRST, "127.0.0.1")
    monkeypatch.setattr(broker_connection, "_NEXT_ADDRESS", 0.1)
    async with listening(broker()) as server, opening(server) as connections:
        accept_nothing(sockets, server.port, 0)
        assert (await ask(connections)).cluster_id == "scripted"


async def test_an_attempt_after_an_address_that_answers_nothing_begins_with_the_next(
    monkeypatch: pytest.MonkeyPatch, sockets: ExitStack
) -> None:
    resolve_to(monkeypatch, FIRST, "127.0.0.1")
    timeouts = ChangingTimeouts(1.0)
    async with listening(broker()) as server, opening(server, timeouts) as connections:
        accept_nothing(sockets, server.port, 100)
        with pytest.raises(RequestTimedOutError):
            await ask(connections)
        timeouts.request_timeout = 30.0
        assert (await ask(connections)).cluster_id == "scripted"


async def test_with_tls_the_certificate_is_that_of_the_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # The certificate is for this text, which is resolved as a name here.
    resolve_to(monkeypatch, FIRST, "127.0.0.1", name="127.0.0.1")
    files = make_certificates(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.broker)
    async with listening(broker(), tls=context) as server:
        cluster = Cluster(str(server), security=Security(protocol="SSL", ca_file=files.ca))
        async with open_connections(cluster, ChangingTimeouts(30.0)) as connections:
            assert (await ask(connections)).cluster_id == "scripted"


async def test_where_no_address_answers_the_error_is_that_of_the_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolve_to(monkeypatch, FIRST, "127.0.0.3")
    async with listening(broker()) as server, opening(server) as connections:
        with pytest.raises(KafkaConnectionError, match=r"127\.0\.0\.3"):
            await ask(connections)


async def test_an_error_names_an_address_that_a_broker_advertises() -> None:
    nowhere = Server("127.0.0.1", 1)
    async with listening(broker(advertised=(nowhere,))) as server:
        cluster = Cluster(str(server), security=Security(protocol="PLAINTEXT"))
        async with open_connections(cluster, ChangingTimeouts(30.0)) as connections:
            with pytest.raises(KafkaConnectionError, match=r"to 127\.0\.0\.1:1: "):
                await connections.send_to(nowhere, REQUEST)
            connections.set_brokers({1: nowhere})
            with pytest.raises(KafkaConnectionError, match=r"its broker's advertised\.listeners: "):
                await connections.send(1, REQUEST)
