"""A connection alone, between small buffers of the operating system."""

from __future__ import annotations

import random
import socket
import ssl
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from h2.events import PingAckReceived, ResponseReceived, StreamEnded, StreamReset

from fanout.testing.http2_connection import Http2Connection
from tests.testing.http2_client import Http2Client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_BUFFER = 1 << 16
_STREAMS = 50


@contextmanager
def served(
    app: Any,
    *,
    window: int = 1 << 30,
    buffer: int = _BUFFER,
    wrap: Callable[[socket.socket], socket.socket] = lambda connection: connection,
) -> Iterator[Http2Client]:
    """Connect a client to an application."""
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as near:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
        near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        near.connect(listening.getsockname())
        near.settimeout(20)
        far = wrap(listening.accept()[0])
        connection = Http2Connection(far, app, name="alone")
        thread = threading.Thread(target=connection.serve)
        thread.start()
        try:
            with far, Http2Client("", window=window, transport=near) as client:
                yield client
                client.socket.close()
                thread.join()
        finally:
            near.close()
            thread.join()


def endless(_: Any, start_response: Any) -> Iterator[bytes]:
    start_response("200 OK", [])
    while True:
        yield bytes(1 << 20)


def received(client: Http2Client) -> int:
    return sum(map(len, client.bodies.values()))


def test_a_ping_is_answered_between_the_pieces_of_answers_that_never_end() -> None:
    with served(endless) as client:
        numbers = [client.request("Read", {}) for _ in range(_STREAMS)]
        client.until(lambda: all(client.bodies[number] for number in numbers))
        for _ in range(10):
            before = received(client)
            client.ping()
            # What the operating system holds on both sides, one piece, and what is being read.
            assert received(client) - before < 1 << 20


def test_streams_with_much_to_send_take_turns() -> None:
    with served(endless) as client:
        numbers = [client.request("Read", {}) for _ in range(3)]
        client.until(lambda: received(client) > 30 << 20)
        assert min(len(client.bodies[number]) for number in numbers) > 5 << 20


def test_headers_leave_although_the_windows_and_the_socket_are_full() -> None:
    values = random.Random(7)
    called = threading.Semaphore(0)

    def app(_: Any, start_response: Any) -> list[bytes]:
        # No two are alike, so that they do not become small.
        start_response("200 OK", [("x-large", values.randbytes(2_000).hex())])
        called.release()
        return [b"a"]

    with served(app, window=0, buffer=1 << 12) as client:
        numbers = [client.request("Read", {}) for _ in range(_STREAMS)]
        for _ in numbers:
            assert called.acquire(timeout=20)
        client.until(lambda: all(client.seen(ResponseReceived, number) for number in numbers))


class _WantsToRead(socket.socket):
    """A connection that writes nothing before it has read, as TLS may have to."""

    reads = False
    attempts = 0

    def send(self, data: Any, flags: int = 0) -> int:
        if not self.reads:
            self.attempts += 1
            raise ssl.SSLWantReadError
        return super().send(data, flags)


def test_a_connection_that_has_to_read_before_it_writes_waits_for_that() -> None:
    connections: list[_WantsToRead] = []

    def wrap(connection: socket.socket) -> socket.socket:
        connections.append(_WantsToRead(fileno=connection.detach()))
        return connections[0]

    with served(endless, wrap=wrap) as client:
        client.request("Read", {})
        client.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.receive()
        client.socket.settimeout(20)
        connections[0].reads = True
        client.ping()
        assert client.seen(PingAckReceived)
    # Two for each time that the client has sent something; not as many as the machine can.
    assert connections[0].attempts < 10


def test_an_application_that_fails_before_it_answers_is_answered_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def app(*_: Any) -> list[bytes]:
        raise KeyError("a defect")

    with served(app) as client:
        number = client.request("Read", {})
        client.until(lambda: client.seen(StreamEnded, number))
        assert client.headers(number)[":status"] == "500"
        assert not client.seen(StreamReset)
    assert "a defect" in caplog.text


def test_an_application_that_fails_after_its_beginning_resets_its_stream() -> None:
    def app(_: Any, start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [])
        yield b"a"
        raise KeyError("a defect")

    with served(app) as client:
        number = client.request("Read", {})
        client.until(lambda: client.seen(StreamReset, number))
        assert client.bodies[number] == b"a"
