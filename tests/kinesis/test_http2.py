"""Subscriptions over HTTP/2: what was put arrives once and in order, and streams are closed."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from dataclasses import replace
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
import uvloop
from botocore.exceptions import (
    ClientError,
    EndpointConnectionError,
    ProxyConnectionError,
    SSLError,
)
from h2.events import RequestReceived, StreamReset
from hyperframe.frame import DataFrame

from fanout.errors import OptionError, SetupError
from fanout.kinesis import KinesisSource
from fanout.kinesis.aws import client_config
from fanout.kinesis.aws.client import open_kinesis_client
from fanout.testing.certificate import LocalCertificate
from fanout.testing.fast_mode import fast
from fanout.testing.faults import (
    CutConnection,
    EndEarly,
    GoAway,
    IgnoreSubscribe,
    RaiseInStream,
    RefuseSubscribe,
    Stall,
    StreamFault,
    SubscribeFault,
)
from fanout.testing.kinesis.server import KinesisServer
from tests.kinesis.http2_server import Http2Server, ServerSide
from tests.support.kinesis.reading import FIRST, Stream, session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from fanout.kinesis.aws.api import KinesisClient
    from fanout.testing.kinesis.rules import KinesisRules

LATEST = {"Type": "LATEST"}
WINDOW = 256 << 10


@pytest.fixture(params=[False, True], ids=["h2c", "TLS"])
def tls(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def stream(
    *,
    rules: KinesisRules,
    shards: int,
    tls: bool,
    monkeypatch: pytest.MonkeyPatch,
    aws: None,  # noqa: ARG001 - used for what it does
) -> Iterator[Stream]:
    """A stream on an embedded Kinesis whose clients trust its certificate."""
    with fast(rules), KinesisServer(rules, tls=tls) as server:
        if server.certificate is not None:
            monkeypatch.setenv("AWS_CA_BUNDLE", str(server.certificate))
        yield Stream(server, shards=shards)


def kind(value: object) -> str | None:
    """Name a fault in a test's id, and nothing else."""
    return type(value).__name__ if isinstance(value, StreamFault | SubscribeFault) else None


@pytest.mark.long
@pytest.mark.parametrize("event", [1, 3])
@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (CutConnection(), "Http2Error"),
        (CutConnection(clean=True), "MalformedEventError"),
        (GoAway(), "Http2Error"),
        (EndEarly(), "SubscriptionEndedError"),
        (RaiseInStream(), "InternalFailureException"),
    ],
    ids=kind,
)
async def test_after_a_fault_in_a_subscription_every_record_arrives_once_and_in_order(
    stream: Stream, fault: StreamFault, cause: str, event: int
) -> None:
    stream.put(3)
    stream.inject(replace(fault, event=event))
    async with stream.reading(http_version=2) as reader:
        await reader.until(lambda: reader.causes)
        stream.put(3)
        await reader.has(6)
    assert reader.log == stream.log
    assert reader.kinds == [cause]


@pytest.mark.parametrize("shards", [8])
async def test_a_goaway_ends_all_subscriptions_of_its_connection_and_no_record_is_lost(
    stream: Stream,
) -> None:
    stream.put(40)
    stream.inject(GoAway(shard=FIRST))
    async with stream.reading(http_version=2) as reader:
        await reader.until(lambda: reader.causes)
        stream.put(40)
        await reader.has(80)
    assert reader.log == stream.log
    assert set(reader.kinds) == {"Http2Error"}


async def test_a_silent_subscription_is_opened_again(stream: Stream) -> None:
    stream.put(3)
    stream.inject(Stall(event=3))
    async with stream.reading(http_version=2, silence_timeout=0.3) as reader:
        await reader.until(lambda: reader.causes)
        stream.put(3)
        await reader.has(6)
    assert reader.log == stream.log
    assert set(reader.kinds) == {"SubscriptionSilentError"}


async def on_uvloop() -> None:
    """Subscribe to a server whose loop is this one."""
    assert type(asyncio.get_running_loop()).__module__ == "uvloop"
    async with (
        Http2Server(start_answers).running() as server,
        connected(server.url) as client,
        subscribing(client),
    ):
        pass


@pytest.mark.usefixtures("aws")
def test_the_transports_of_uvloop_are_spoken_over() -> None:
    # A loop that cannot make a connection can be cancelled no more, so it has a thread of its own.
    thread = Thread(target=lambda: uvloop.run(on_uvloop()), daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()


async def test_a_call_that_is_not_answered_is_made_again(stream: Stream) -> None:
    stream.put(3)
    stream.inject(IgnoreSubscribe())
    async with stream.reading(http_version=2, subscribe_timeout=0.5) as reader:
        await reader.has(3)
    assert reader.log == stream.log
    assert set(reader.kinds) == {"SubscribeTimeoutError"}


@pytest.mark.parametrize(
    "fault",
    [
        RefuseSubscribe(code="LimitExceededException", status=400),
        RefuseSubscribe(code="503", status=503, html=True),
    ],
    ids=["a code", "a page"],
)
async def test_a_refusal_has_the_code_of_the_service(
    stream: Stream, fault: RefuseSubscribe
) -> None:
    stream.put(3)
    stream.inject(fault)
    async with stream.reading(http_version=2) as reader:
        await reader.has(3)
    assert reader.log == stream.log
    assert reader.kinds == [fault.code]
    assert isinstance(reader.causes[0], ClientError)


# A server that the test drives


def start_answers(side: ServerSide, number: int) -> None:
    side.begin(number)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[KinesisClient]:
    async with open_kinesis_client(
        stream="orders", endpoint_url=url, session=session(), http_version=2
    ) as client:
        yield client


@asynccontextmanager
async def driven(**options: Any) -> AsyncIterator[tuple[Http2Server, KinesisClient]]:
    async with (
        Http2Server(options.pop("answer", start_answers), **options).running() as server,
        connected(server.url) as client,
    ):
        yield server, client


def subscribing(client: KinesisClient) -> Any:
    return client.subscribe("arn:aws:kinesis:us-east-1:1:stream/s/consumer/c:1", FIRST, LATEST)


async def test_subscriptions_share_a_connection_which_closes_with_the_last_one() -> None:
    async with driven() as (server, client):
        async with subscribing(client):
            async with subscribing(client):
                (side,) = server.connections
            await server.until(lambda: len(side.of(StreamReset)) == 1)
            assert not side.closed
        await server.until(lambda: side.closed)
        assert len(side.of(StreamReset)) == 2


async def test_the_request_is_signed_and_has_no_header_of_http_1() -> None:
    async with driven() as (server, client), subscribing(client):
        headers = server.connections[0].headers(1)
    assert headers[":authority"] == server.url.partition("//")[2]
    assert headers["authorization"].startswith("AWS4-HMAC-SHA256 ")
    assert headers["x-amz-target"].endswith(".SubscribeToShard")
    assert not headers.keys() & {"host", "connection", "transfer-encoding"}


async def test_more_subscriptions_than_a_connection_allows_open_others() -> None:
    async with driven(streams=2) as (server, client), AsyncExitStack() as stack:
        for _ in range(5):
            await stack.enter_async_context(subscribing(client))
        requests = [len(side.of(RequestReceived)) for side in server.connections]
        assert requests == [2, 2, 1]


async def test_a_cancelled_call_resets_its_stream() -> None:
    async with driven(answer=lambda _side, _number: None) as (server, client):
        task = asyncio.create_task(subscribing(client).__aenter__())
        await server.until(lambda: server.connections and server.connections[0].of(RequestReceived))
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        (side,) = server.connections
        await server.until(lambda: side.closed)
        assert len(side.of(StreamReset)) == 1


async def test_closing_the_client_closes_its_connections() -> None:
    async with driven(answer=lambda _side, _number: None) as (server, client):
        task = asyncio.create_task(subscribing(client).__aenter__())
        await server.until(lambda: server.connections and server.connections[0].of(RequestReceived))
        (side,) = server.connections
    with pytest.raises(Exception, match="connection was closed"):
        await task
    assert side.closed


async def test_a_reader_that_reads_nothing_is_sent_one_window() -> None:
    async with driven() as (server, client), subscribing(client) as chunks:
        (side,) = server.connections
        sent = 0
        while size := min(side.h2.local_flow_control_window(1), 1 << 14):
            side.h2.send_data(1, bytes(size))
            sent += size
        side.flush()
        assert sent == WINDOW
        read = 0
        while read < sent:
            read += len(await anext(chunks))
        await server.until(lambda: side.h2.local_flow_control_window(1) >= WINDOW // 2)


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"".join([DataFrame(1, bytes(1 << 14)).serialize()] * 17), "window of a stream"),
        (DataFrame(1, bytes((1 << 14) + 1)).serialize(), "longer than this client allows"),
        (b"\0\0\1\0\x08\0\0\0\1\xff", "more padding than bytes"),
        (b"\0\0\4\x03\0\0\0\0\0\0\0\0\0", "broke the protocol"),
    ],
    ids=["too much", "too long", "padding", "a reset of no stream"],
)
async def test_a_service_that_breaks_the_protocol_ends_the_connection(
    sent: bytes, reason: str
) -> None:
    async with driven() as (server, client), subscribing(client) as chunks:
        (side,) = server.connections
        side.write(sent)
        with pytest.raises(ConnectionResetError, match=reason):
            async for _ in chunks:
                pass
        await server.until(lambda: side.closed)


async def test_padding_is_dropped_and_frames_may_arrive_byte_by_byte() -> None:
    async with driven() as (server, client), subscribing(client) as chunks:
        (side,) = server.connections
        padded = DataFrame(1, b"abc", pad_length=5, flags=["PADDED"]).serialize()
        ending = DataFrame(1, b"def", flags=["END_STREAM"]).serialize()
        for byte in padded + ending:
            side.write(bytes((byte,)))
            await asyncio.sleep(0)
        assert b"".join([chunk async for chunk in chunks]) == b"abcdef"
        await server.until(lambda: side.closed)


# Connections that cannot be opened


@pytest.fixture
def certificate() -> Iterator[LocalCertificate]:
    made = LocalCertificate()
    yield made
    made.remove()


async def test_a_service_without_http2_is_named(
    certificate: LocalCertificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate.path))
    tls = certificate.server_tls
    tls.set_alpn_protocols(["http/1.1"])
    async with Http2Server(start_answers).running(tls) as server, connected(server.url) as client:
        with pytest.raises(SetupError, match="localhost does not speak HTTP/2"):
            await subscribing(client).__aenter__()


async def test_a_certificate_that_is_not_trusted_is_refused(certificate: LocalCertificate) -> None:
    tls = certificate.server_tls
    async with Http2Server(start_answers).running(tls) as server, connected(server.url) as client:
        with pytest.raises(SSLError, match="CERTIFICATE_VERIFY_FAILED"):
            await subscribing(client).__aenter__()


async def test_an_endpoint_that_nothing_listens_on_is_named() -> None:
    async with Http2Server(start_answers).running() as server:
        url = server.url
    async with connected(url) as client:
        with pytest.raises(EndpointConnectionError, match=url):
            await subscribing(client).__aenter__()


@asynccontextmanager
async def proxying(status: bytes, heads: list[bytes]) -> AsyncIterator[str]:
    """Run a proxy that answers CONNECT with a status, and then carries bytes."""

    async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(1 << 16):
            sink.write(data)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 " + status + b"\r\nVia: a proxy\r\n\r\n")
        with closing(writer), suppress(OSError):
            if status.startswith(b"200"):
                host, _, port = heads[-1].split()[1].decode().partition(":")
                back, onward = await asyncio.open_connection(host, int(port))
                with closing(onward):
                    upwards = asyncio.create_task(carry(reader, onward))
                    await carry(back, writer)
                    upwards.cancel()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://user:canary@127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.fixture
def _elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat the server of the test as one on another machine, which a proxy may lead to."""
    monkeypatch.setattr(client_config, "is_loopback", lambda _: False)


@pytest.fixture
def _no_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the environment name a proxy for all hosts, and no other one."""
    for name in ("NO_PROXY", "no_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("_elsewhere", "_no_exception")
async def test_a_proxy_is_asked_for_a_tunnel(
    certificate: LocalCertificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate.path))
    heads: list[bytes] = []
    async with (
        Http2Server(start_answers).running(certificate.server_tls) as server,
        proxying(b"200 OK", heads) as proxy,
    ):
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        async with connected(server.url) as client, subscribing(client):
            pass
    (head,) = heads
    assert head.startswith(b"CONNECT " + server.url.partition("//")[2].encode())
    assert b"\r\nProxy-Authorization: Basic " in head


@pytest.mark.usefixtures("_elsewhere", "_no_exception")
async def test_a_proxy_that_refuses_is_named_without_its_password(
    certificate: LocalCertificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        Http2Server(start_answers).running(certificate.server_tls) as server,
        proxying(b"407 Proxy Authentication Required", []) as proxy,
    ):
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        async with connected(server.url) as client:
            with pytest.raises(ProxyConnectionError) as raised:
                await subscribing(client).__aenter__()
    assert "407" in str(raised.value.__cause__)
    assert "canary" not in str(raised.value)


@pytest.mark.usefixtures("_elsewhere", "_no_exception")
async def test_a_proxy_that_speaks_tls_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "https://127.0.0.1:1")
    async with connected("https://localhost:1") as client:
        with pytest.raises(SetupError, match="a proxy that speaks TLS itself"):
            await subscribing(client).__aenter__()


# The option


@pytest.mark.parametrize("version", [1, 1.0, 3, "2", None, True])
def test_versions_other_than_1_1_and_2_are_refused(version: Any) -> None:
    with pytest.raises(OptionError, match=r"http_version=.* must be 1\.1 or 2"):
        KinesisSource(stream="orders", consumer="etl", http_version=version)


async def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name.startswith(("h2.", "fanout.kinesis.aws.http2_")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "h2", None)
    with pytest.raises(SetupError, match=r"http_version=2 needs h2, .*\[kinesis,http2\]"):
        async with connected("http://127.0.0.1:1"):
            pass


# Many at once


@pytest.mark.long
async def test_1000_subscriptions_share_connections_and_each_has_its_own_answer() -> None:
    def answer(side: ServerSide, number: int) -> None:
        side.begin(number)
        side.h2.send_data(number, b"%d" % number, end_stream=True)

    async with driven(answer=answer, streams=100) as (server, client):

        async def read() -> bytes:
            async with subscribing(client) as chunks:
                return b"".join([chunk async for chunk in chunks])

        async with asyncio.TaskGroup() as tasks:
            reading = [tasks.create_task(read()) for _ in range(1000)]
        requests = [len(side.of(RequestReceived)) for side in server.connections]
    assert sorted(int(task.result()) for task in reading) == sorted(
        1 + 2 * number for count in requests for number in range(count)
    )
    assert sum(requests) == 1000
