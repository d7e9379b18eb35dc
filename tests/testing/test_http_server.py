"""The HTTP/1.1 server under embedded services: what it answers, and which connections it keeps."""

from __future__ import annotations

import http.client
import socket
from typing import TYPE_CHECKING, Any

import pytest

from fanout.testing.http_server import HttpServer

if TYPE_CHECKING:
    from collections.abc import Iterator


def application(environ: dict[str, Any], start: Any) -> list[bytes]:
    match environ["PATH_INFO"]:
        case "/echo":
            body = environ["wsgi.input"].read()
        case "/unread":
            body = b"nothing was read"
        case "/chunks":
            start("200 OK", [])
            return [b"some", b"", b"chunks"]
        case "/nothing":
            start("204 NO CONTENT", [])
            return []
        case _:
            raise ValueError(environ["PATH_INFO"])
    start("200 OK", [("Content-Length", str(len(body)))])
    return [body]


@pytest.fixture
def client() -> Iterator[http.client.HTTPConnection]:
    server = HttpServer(0, application, name="test")
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.connect()
    # A second connection would fail.
    connection.auto_open = 0
    try:
        yield connection
    finally:
        connection.close()
        server.close()


def ask(client: http.client.HTTPConnection, method: str, path: str, body: Any = None) -> bytes:
    client.request(method, path, body)
    return client.getresponse().read()


def test_a_connection_carries_one_request_after_another(
    client: http.client.HTTPConnection,
) -> None:
    for body in (b"one", b"", bytes(100_000)):
        assert ask(client, "POST", "/echo", body) == body


def test_a_body_that_nobody_reads_is_not_the_next_request(
    client: http.client.HTTPConnection,
) -> None:
    for _ in range(2):
        assert ask(client, "POST", "/unread", b"GET / HTTP/1.1\r\n\r\n") == b"nothing was read"


def test_a_body_in_chunks_is_read_to_its_end(client: http.client.HTTPConnection) -> None:
    for _ in range(2):
        assert ask(client, "PUT", "/echo", iter([b"in ", b"chunks"])) == b"in chunks"


def test_an_answer_without_a_body_ends(client: http.client.HTTPConnection) -> None:
    assert ask(client, "POST", "/nothing") == b""
    assert ask(client, "HEAD", "/unread") == b""
    assert ask(client, "POST", "/echo", b"still there") == b"still there"


def test_a_connection_ends_after_an_answer_without_a_length(
    client: http.client.HTTPConnection,
) -> None:
    client.request("GET", "/chunks")
    answer = client.getresponse()
    assert answer.getheader("Connection") == "close"
    assert answer.read() == b"somechunks"


def test_a_failed_application_is_an_answer(client: http.client.HTTPConnection) -> None:
    client.request("GET", "/unknown")
    answer = client.getresponse()
    assert (answer.status, answer.getheader("Connection")) == (500, "close")


def test_a_client_of_http_1_0_gets_an_answer_that_ends(client: http.client.HTTPConnection) -> None:
    with socket.create_connection((client.host, client.port), timeout=20) as plain:
        plain.sendall(b"POST /echo HTTP/1.0\r\nContent-Length: 2\r\n\r\nhi")
        answer = b"".join(iter(lambda: plain.recv(1000), b""))
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\nhi")


def test_closing_ends_connections_that_wait() -> None:
    server = HttpServer(0, application, name="test")
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as plain:
        plain.sendall(b"POST /echo HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi")
        assert plain.recv(4) == b"HTTP"
        server.close()
        assert b"".join(iter(lambda: plain.recv(1000), b"")).endswith(b"hi")
