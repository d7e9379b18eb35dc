"""Clients that leave, or that take nothing, while no heartbeat looks after them."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import pytest
from h2.events import StreamReset

from fanout.testing.http2_stream import Http2Stream
from fanout.testing.http_server import SocketCaller
from fanout.testing.kinesis.rules import KinesisRules
from fanout.testing.kinesis.server import KinesisServer
from tests.support.patience import eventually
from tests.testing.http2_client import Http2Client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fanout.testing.caller import Caller

FIRST = "shardId-000000000000"
SILENT = KinesisRules(heartbeat=600, subscription_life=600, takeover_after=0, call_interval=0)
SCOPE = "Credential=testing/20260101/us-east-1/kinesis/aws4_request"
LARGE = ("key", bytes(900_000))
# An event is larger than what the operating system holds on both sides, and than this part of it.
BUFFER = 1 << 16
BEGINNING = 1_000


@pytest.fixture
def scope() -> Iterator[ExitStack]:
    with ExitStack() as scope:
        yield scope


@pytest.fixture(params=[False, True], ids=["plain", "TLS"])
def server(request: pytest.FixtureRequest) -> Iterator[KinesisServer]:
    with KinesisServer(SILENT, tls=request.param) as server:
        server.create_stream("orders")
        assert server._http is not None
        server._http.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        yield server


def connect(server: KinesisServer, protocol: str) -> socket.socket:
    plain = socket.socket()
    plain.settimeout(20)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
    plain.connect(("127.0.0.1", int(server.endpoint_url.rpartition(":")[2])))
    if server.certificate is None:
        return plain
    context = ssl.create_default_context(cafile=str(server.certificate))
    context.set_alpn_protocols([protocol])
    return context.wrap_socket(plain, server_hostname="localhost")


def http2(server: KinesisServer, *, window: int = 1 << 30) -> Http2Client:
    return Http2Client(server.endpoint_url, window=window, transport=connect(server, "h2"))


def subscribe_over_http1(server: KinesisServer, consumer_arn: str) -> socket.socket:
    """Subscribe, and return the connection when the answer has begun."""
    position = {"Type": "TRIM_HORIZON"}
    request = {"ConsumerARN": consumer_arn, "ShardId": FIRST, "StartingPosition": position}
    body = json.dumps(request).encode()
    head = (
        "POST / HTTP/1.1\r\nHost: kinesis.us-east-1.amazonaws.com\r\n"
        "X-Amz-Target: Kinesis_20131202.SubscribeToShard\r\n"
        f"Authorization: AWS4-HMAC-SHA256 {SCOPE}, SignedHeaders=host, Signature=0\r\n"
        f"Content-Type: application/x-amz-json-1.1\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    connection = connect(server, "http/1.1")
    connection.sendall(head.encode() + body)
    assert connection.recv(15) == b"HTTP/1.1 200 OK"
    return connection


def register(server: KinesisServer) -> str:
    with http2(server) as client:
        summary = client.call("DescribeStreamSummary", {"StreamName": "orders"})
        stream_arn = summary["StreamDescriptionSummary"]["StreamARN"]
        request = {"StreamARN": stream_arn, "ConsumerName": "etl"}
        return str(client.call("RegisterStreamConsumer", request)["Consumer"]["ConsumerARN"])


def nothing_runs(server: KinesisServer) -> bool:
    names = [thread.name for thread in threading.enumerate()]
    return server.statistics().open_subscriptions == 0 and "kinesis-server-request" not in names


@pytest.mark.parametrize("how", ["reset", "goaway", "close"])
def test_an_idle_subscription_over_http2_ends_with_its_client(
    server: KinesisServer, how: str
) -> None:
    arn = register(server)
    with http2(server) as client:
        number = client.subscribe(arn)
        client.until(lambda: client.bodies[number])
        assert server.statistics().open_subscriptions == 1
        if how == "close":
            client.socket.close()
        elif how == "goaway":
            client.h2.close_connection()
            client.flush()
        else:
            client.h2.reset_stream(number)
            client.flush()
        eventually(lambda: server.statistics().open_subscriptions == 0)
    eventually(lambda: nothing_runs(server))


def test_an_idle_subscription_over_http1_ends_with_its_client(server: KinesisServer) -> None:
    subscribe_over_http1(server, register(server)).close()
    eventually(lambda: nothing_runs(server))


@pytest.fixture
def held_back(
    request: pytest.FixtureRequest, server: KinesisServer, scope: ExitStack
) -> Callable[[str], Http2Client | None]:
    """Subscribe and take no more than the beginning of a large event."""
    how: str = request.param

    def subscribe(arn: str) -> Http2Client | None:
        server.put_records("orders", [LARGE] * 30)
        if how == "HTTP/1.1":
            connection = scope.enter_context(subscribe_over_http1(server, arn))
            taken = 0
            while taken < BEGINNING:
                part = connection.recv(BEGINNING)
                assert part, "the connection has ended"
                taken += len(part)
            return None
        window = 10_000 if how == "full window" else 1 << 30
        client = scope.enter_context(http2(server, window=window))
        number = client.subscribe(arn)
        client.until(lambda: len(client.bodies[number]) > BEGINNING)
        return client

    return subscribe


EACH = pytest.mark.parametrize(
    "held_back", ["full window", "full socket", "HTTP/1.1"], indirect=True
)


@EACH
def test_a_subscription_that_is_held_back_ends_after_its_life(
    server: KinesisServer,
    held_back: Callable[[str], Http2Client | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fanout.testing.kinesis.consumers.GRACE", 0.1)
    ends: list[Callable[[], None]] = []

    def noting(send_until: Callable[..., None]) -> Callable[..., None]:
        def note(caller: Caller, deadline: float | None) -> None:
            if deadline is not None:
                sooner = deadline - SILENT.subscription_life
                ends.append(partial(send_until, caller, sooner))
            send_until(caller, deadline)

        return note

    for kind in (SocketCaller, Http2Stream):
        monkeypatch.setattr(kind, "send_until", noting(kind.send_until))
    held_back(register(server))
    # Its life is over now: a short one might be over before the client has the beginning.
    for end in ends:
        end()
    eventually(lambda: server.statistics().open_subscriptions == 0)


@pytest.mark.long
@EACH
def test_a_subscription_that_is_held_back_ends_when_another_one_takes_over(
    server: KinesisServer,
    held_back: Callable[[str], Http2Client | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fanout.testing.kinesis.consumers.GRACE", 0.1)
    arn = register(server)
    old = held_back(arn)
    with http2(server) as client:
        number = client.subscribe(arn)
        client.until(lambda: len(client.bodies[number]) > 30 * 1_200_000)
        if old is not None:
            old.until(lambda: old.seen(StreamReset))
            old.socket.close()
        # The thread that serves the new connection, and that of its subscription.
        eventually(lambda: requests_running() == 2)


def requests_running() -> int:
    return sum(t.name == "kinesis-server-request" for t in threading.enumerate())
