"""The first contact with servers that are down, slow, or something else than a Kafka broker."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any
from unittest.mock import AsyncMock

import pytest
from aiokafka.errors import KafkaConnectionError

from fanout.errors import OptionError, ServiceError
from fanout.kafka.cluster import Cluster, Server
from fanout.kafka.protocol import diagnosis
from fanout.kafka.protocol.diagnosis import Peer, PeerKind, diagnose, probe
from fanout.kafka.protocol.first_contact import open_cluster
from fanout.kafka.reading.consumer_options import ConsumerOptions
from fanout.kafka.security import Security
from tests.kafka.certificates import make_certificates
from tests.kafka.protocol.listeners import (
    broker,
    closing,
    greeting,
    http,
    listening,
    numbered,
    silent,
)
from tests.support.kafka.first_contact import CONNECT_TIMEOUT, ended_once_seen

if TYPE_CHECKING:
    from pathlib import Path

    from fanout.kafka.protocol.connections import Connections
    from tests.kafka.protocol.listeners import Serve

LATE = 600.0  # no test waits for it
SOON = 60.0  # ends a test that would
PLAINTEXT = Security(protocol="PLAINTEXT")
INSECURE = Security(protocol="PLAINTEXT", insecure=True)
SASL = Security(protocol="SASL_PLAINTEXT", mechanism="PLAIN", username="u", password="canary")
SCRAM = Security(protocol="SASL_PLAINTEXT", username="u", password="canary")
TLS = Security(protocol="SSL")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe waits briefly for answers, as some never come, but long for a connection."""
    answer = diagnosis._answer

    async def answer_soon(*args: Any, **options: Any) -> Peer:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(diagnosis, "_PATIENCE", 0.5)
            return await answer(*args, **options)

    monkeypatch.setattr("fanout.kafka.protocol.first_contact._FIRST_ATTEMPT", 0.1)
    monkeypatch.setattr(diagnosis, "_answer", answer_soon)
    monkeypatch.setattr(diagnosis, "_PATIENCE", SOON)


async def reach(servers: Any, security: Security, seconds: float = LATE) -> Connections:
    cluster = Cluster(servers, security=security, connect_timeout=seconds)
    async with asyncio.timeout(SOON), open_cluster(cluster, ConsumerOptions()) as connections:
        return connections


async def refusal(servers: Any, security: Security, seconds: float = LATE) -> str:
    with pytest.raises(ServiceError) as caught:
        await reach(servers, security, seconds)
    assert "canary" not in str(caught.value)
    assert caught.value.__cause__ is not None
    return str(caught.value)


async def late_refusal(servers: Any, security: Security, *dead: Server) -> str:
    """Let the time be over when the contact has found something wrong with each dead server."""
    with ended_once_seen(*dead):
        text = await refusal(servers, security, CONNECT_TIMEOUT)
    assert f" for connect_timeout={CONNECT_TIMEOUT:g} seconds" in text
    return text


def closed(port: int) -> str:
    return f"127.0.0.1:{port}"


# The reason ends the contact at once, although there is much time left.
FINAL: list[tuple[Serve, Security, str]] = [
    (http, PLAINTEXT, "an HTTP server answers, not a Kafka broker; check the port"),
    (http, TLS, "an HTTP server answers, not a Kafka broker; check the port"),
    (greeting, PLAINTEXT, "a server of another protocol answers, not a Kafka broker"),
    (numbered, PLAINTEXT, "a server of another protocol answers, not a Kafka broker"),
    (broker(), TLS, "a Kafka listener of the protocol PLAINTEXT answers; set the protocol to "),
    (broker(), SASL, "the protocol PLAINTEXT answers; set the protocol to PLAINTEXT, or use the "),
    (broker("PLAIN"), TLS, "the protocol SASL_PLAINTEXT answers, with PLAIN; set the protocol to"),
    (broker("PLAIN"), PLAINTEXT, "SASL_PLAINTEXT answers, with PLAIN; set the protocol to SASL_"),
    (
        broker("GSSAPI", "PLAIN"),
        SCRAM,
        "the broker does not take the mechanism SCRAM-SHA-512; set the mechanism to one of GSSAPI,",
    ),
]


@pytest.mark.fault("ApiVersions and SASL")
@pytest.mark.parametrize(("serve", "security", "reason"), FINAL)
async def test_a_wrong_protocol_is_named_at_once(
    serve: Serve, security: Security, reason: str
) -> None:
    async with listening(serve) as server:
        text = await refusal(str(server), security)
    assert text.startswith(f"the cluster cannot be reached: {server}: ")
    assert reason in text
    assert text.endswith(f"(tried with the protocol {security.protocol})")


# These may pass, so the whole time is used.
PASSING: list[tuple[Serve, str]] = [
    (silent, "the connection is accepted, but nothing answers; check the port and the broker"),
    (closing, "the connection is accepted, and closed without an answer; check the port"),
]


@pytest.mark.parametrize(
    "security",
    [PLAINTEXT, pytest.param(TLS, marks=pytest.mark.long)],
    ids=lambda security: security.protocol,
)
@pytest.mark.parametrize(("serve", "reason"), PASSING)
async def test_a_server_without_an_answer_is_tried_until_the_end(
    serve: Serve, reason: str, security: Security
) -> None:
    async with listening(serve) as server:
        text = await late_refusal(str(server), security, server)
    assert reason in text
    assert text.endswith(
        f"(tried with the protocol {security.protocol} for connect_timeout=100 seconds)"
    )


async def test_a_closed_port_is_tried_until_the_end(unused_tcp_port: int) -> None:
    dead = Server("127.0.0.1", unused_tcp_port)
    text = await late_refusal(str(dead), PLAINTEXT, dead)
    assert "no server listens; check that the broker runs, and the port" in text


async def test_a_time_that_is_too_short_for_any_reason_is_an_error_with_a_text() -> None:
    async with listening(silent) as server:
        with pytest.raises(ServiceError, match="nothing answers in time; check the address"):
            await reach(str(server), PLAINTEXT, 0.05)


async def test_a_broker_that_starts_meanwhile_is_reached(unused_tcp_port: int) -> None:
    async with asyncio.TaskGroup() as group:
        reaching = group.create_task(reach(closed(unused_tcp_port), PLAINTEXT))
        await asyncio.sleep(0.3)
        async with listening(broker(), unused_tcp_port):
            await reaching


async def test_a_broker_that_answers_slowly_is_reached() -> None:
    first = True

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal first
        if first:
            first = False
            await silent(reader, writer)
        await broker()(reader, writer)

    async with listening(serve) as server:
        await reach(str(server), PLAINTEXT)


@pytest.mark.parametrize("dead", [silent, closing, http, broker("PLAIN"), None])
@pytest.mark.parametrize("first", [True, False])
async def test_a_dead_server_hides_no_living_one(
    dead: Serve | None, unused_tcp_port: int, *, first: bool
) -> None:
    async with AsyncExitStack() as stack:
        alive = str(await stack.enter_async_context(listening(broker())))
        other = closed(unused_tcp_port)
        if dead is not None:
            other = str(await stack.enter_async_context(listening(dead)))
        await reach([other, alive] if first else [alive, other], PLAINTEXT)


async def test_of_dead_servers_each_is_named_once(unused_tcp_port_factory: Any) -> None:
    dead = [Server("127.0.0.1", unused_tcp_port_factory()) for _ in range(7)]
    async with listening(http) as server:
        named = [*map(str, dead), str(dead[0]), str(server)]
        text = await late_refusal(named, PLAINTEXT, *dead, server)
    for one in dead[:5]:
        assert text.count(str(one)) == 1
    assert f"{dead[4]} and 2 more: no server listens" in text
    assert f"; {server}: an HTTP server answers" in text


async def test_an_address_that_brokers_advertise_is_tried_too(
    unused_tcp_port: int,
) -> None:
    gone = Server("127.0.0.1", unused_tcp_port)
    async with listening(broker(advertised=(gone,))) as server:
        text = await late_refusal(str(server), PLAINTEXT, gone)
        assert text.startswith(f"the cluster cannot be reached: {gone}: no server listens; ")
        assert f"{server} answers, and names this address of its brokers" in text
        assert text.endswith("see their advertised.listeners)")
    nowhere = Server("broker..example", 9092)
    async with listening(broker(advertised=(nowhere,))) as server:
        text = await refusal(str(server), INSECURE)
    assert f"{nowhere}: the host is not a valid name; check it" in text


async def test_one_advertised_address_that_answers_is_enough(unused_tcp_port: int) -> None:
    gone = Server("127.0.0.1", unused_tcp_port)
    async with listening(broker()) as alive:
        for advertised in ((alive,), (gone, alive), (alive, gone)):
            async with listening(broker(advertised=advertised)) as server:
                await reach(str(server), PLAINTEXT)


async def test_an_advertised_address_without_tls_is_refused() -> None:
    async with listening(broker(advertised=(Server("kafka.example", 9092),))) as server:
        with pytest.raises(OptionError, match=r"the Kafka broker on kafka\.example would be"):
            await reach(str(server), PLAINTEXT)


@pytest.mark.parametrize(
    ("code", "final"), [(socket.EAI_NONAME, True), (socket.EAI_AGAIN, False)], ids=["none", "again"]
)
async def test_a_name_that_is_not_found_is_final_unless_it_may_come(
    monkeypatch: pytest.MonkeyPatch, code: int, *, final: bool
) -> None:
    def fail(*_: object, **__: object) -> Any:
        raise socket.gaierror(code, "not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    server = Server("kafka.example", 9093)
    text = await (refusal(str(server), TLS) if final else late_refusal(str(server), TLS, server))
    assert "kafka.example:9093: the name cannot be resolved (not known); check the host" in text


@pytest.mark.parametrize("serve", [broker(), silent, http])
@pytest.mark.parametrize("asks", [False, True], ids=["for nothing", "for a certificate"])
async def test_a_client_without_tls_learns_that_the_listener_has_it(
    tls: tuple[ssl.SSLContext, ssl.SSLContext], serve: Serve, *, asks: bool
) -> None:
    async with listening(serve, tls=tls[asks]) as server:
        text = await refusal(str(server), PLAINTEXT)
    assert "set the protocol to SSL" in text or (serve is http and "an HTTP server" in text)


async def test_a_name_that_is_no_name_is_said_so() -> None:
    text = await refusal("broker..example:9093", TLS)
    assert "the host is not a valid name" in text


async def test_a_token_that_is_none_is_an_error_of_the_option() -> None:
    async def token() -> Any:
        return 7

    security = Security(protocol="SASL_PLAINTEXT", token=token)
    async with listening(broker("OAUTHBEARER")) as server:
        with pytest.raises(OptionError, match="the token must be a string, not int"):
            await reach(str(server), security)


@pytest.mark.long
@pytest.mark.parametrize("serve", [silent, broker(), closing])
async def test_a_contact_that_is_cancelled_leaves_nothing(serve: Serve) -> None:
    async with listening(serve) as server, listening(silent) as other:
        before = asyncio.all_tasks()
        for turns in range(8):
            reaching = asyncio.create_task(reach([str(other), str(server)], TLS))
            await asyncio.sleep(0.05 * turns)
            reaching.cancel()
            await asyncio.wait([reaching])
            assert reaching.cancelled()
        await asyncio.sleep(0.05)  # the servers end the connections that were closed
        mine = {task for task in asyncio.all_tasks() - before if "handle" not in repr(task)}
        assert mine == set()


@pytest.fixture
def tls(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Contexts of servers: one that takes everybody, one that asks for a certificate."""
    files = make_certificates(tmp_path)
    contexts = []
    for verify in (ssl.CERT_NONE, ssl.CERT_REQUIRED):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files.broker)
        context.load_verify_locations(files.ca)
        context.verify_mode = verify
        contexts.append(context)
    return contexts[0], contexts[1]


async def test_a_probe_says_what_listens(
    tls: tuple[ssl.SSLContext, ssl.SSLContext], unused_tcp_port: int
) -> None:
    served: list[tuple[Serve, ssl.SSLContext | None, Peer]] = [
        (broker(), None, Peer(PeerKind.KAFKA)),
        (broker(without=33), None, Peer(PeerKind.KAFKA, unclear=True)),
        (broker("PLAIN", "X"), None, Peer(PeerKind.KAFKA, mechanisms=("PLAIN", "X"))),
        (broker("PLAIN", "\x1b[31m", "a b"), None, Peer(PeerKind.KAFKA, mechanisms=("PLAIN",))),
        (broker(), tls[0], Peer(PeerKind.KAFKA, tls=True)),
        (broker("PLAIN"), tls[0], Peer(PeerKind.KAFKA, tls=True, mechanisms=("PLAIN",))),
        (broker(), tls[1], Peer(PeerKind.TLS, tls=True)),
        (silent, tls[0], Peer(PeerKind.SILENT, tls=True)),
        (http, None, Peer(PeerKind.HTTP)),
        (http, tls[0], Peer(PeerKind.HTTP, tls=True)),
        (greeting, None, Peer(PeerKind.FOREIGN)),
        (closing, None, Peer(PeerKind.CLOSING)),
        (silent, None, Peer(PeerKind.SILENT)),
    ]
    for serve, context, peer in served:
        async with listening(serve, tls=context) as server:
            assert await probe(server) == peer
    (server,) = Cluster(closed(unused_tcp_port), security=PLAINTEXT).addresses
    assert await probe(server) == Peer(PeerKind.NONE)


async def test_a_refusal_that_a_reset_overtakes_is_asked_for_again(
    tls: tuple[ssl.SSLContext, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, resets = asyncio.open_connection, [ConnectionResetError()]

    async def connect_later(*args: Any, **options: Any) -> Any:
        if options["ssl"] is not None and resets:
            raise resets.pop()
        return await connect(*args, **options)

    monkeypatch.setattr(asyncio, "open_connection", connect_later)
    async with listening(broker(), tls=tls[1]) as server:
        assert await probe(server) == Peer(PeerKind.TLS, tls=True)
    assert not resets


@pytest.mark.fault("ApiVersions and SASL")
@pytest.mark.parametrize("security", [SASL, TLS, PLAINTEXT])
async def test_a_broker_that_names_no_mechanism_may_answer_later(security: Security) -> None:
    server = Server("127.0.0.1", 9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "fanout.kafka.protocol.diagnosis.probe",
            AsyncMock(return_value=Peer(PeerKind.KAFKA, tls=security.tls, unclear=True)),
        )
        found = await diagnose(server, security, KafkaConnectionError("closed"))
    assert found.passes
    assert "closed" in found.text
