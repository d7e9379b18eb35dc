"""A proxy in front of an S3 server, whose requests meet faults."""

from __future__ import annotations

import socket
import struct
import threading
from collections import defaultdict, deque
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, TypeAlias, final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Fault: TypeAlias = Callable[["_Request"], None]
    Rule: TypeAlias = Callable[["_Request"], Fault | None]


def passed(request: _Request) -> None:
    """Pass a request on."""
    request.answer(*request.forward())


def answered(status: int, code: str) -> Fault:
    """Answer with an error that the server knows nothing of."""

    def fault(request: _Request) -> None:
        request.read()
        body = f"<Error><Code>{code}</Code><Message>A message.</Message></Error>".encode()
        request.answer(status, {"Content-Type": "application/xml"}, body)

    return fault


def cut_in_the_middle(request: _Request) -> None:
    """Cut the connection when half of the request has arrived; the server sees nothing of it."""
    request.rfile.read(request.length // 2)
    request.cut()


def answer_lost(request: _Request) -> None:
    """Pass a request on, and cut the connection instead of answering."""
    request.forward()
    request.cut()


def closed_without_answer(request: _Request) -> None:
    """Pass a request on, and close the connection in order instead of answering."""
    request.forward()
    request.close_connection = True


def unanswered(request: _Request) -> None:
    """Hold a request until the proxy ends."""
    request.proxy.ending.wait()
    request.cut()


def answer_half_sent(request: _Request) -> None:
    """Pass a request on, and cut the connection in the middle of the answer's body."""
    status, headers, body = request.forward()
    request.answer(status, headers, body, cut_after=len(body) // 2)
    request.cut()


def condition_ignored(request: _Request) -> None:
    """Pass a request on without its condition, as to a store that does not know any."""
    request.answer(*request.forward(without="If-None-Match"))


def after(meanwhile: Callable[[], object], fault: Fault = passed) -> Fault:
    """Let something happen before a request meets a fault."""

    def both(request: _Request) -> None:
        meanwhile()
        fault(request)

    return both


def before_its_answer(meanwhile: Callable[[], object]) -> Fault:
    """Let something happen when the server has done what a request asks for."""

    def fault(request: _Request) -> None:
        answer = request.forward()
        meanwhile()
        request.answer(*answer)

    return fault


def one_page_each(request: _Request) -> None:
    """Pass a listing on that is to have one object on each page."""
    request.path += "&max-keys=1"
    passed(request)


@final
class FaultyS3:
    """What the proxy does.

    Args:
        endpoint: Of the proxy.
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.requests: list[str] = []
        self.ending = threading.Event()
        self._next: defaultdict[str, deque[Fault]] = defaultdict(deque)
        self._always: dict[str, Fault] = {}
        self._rule: Rule = lambda _: None
        self._lock = threading.Lock()

    def follow(self, rule: Rule) -> None:
        """Let each request meet the fault that a rule returns for it, if any."""
        self._rule = rule

    def next(self, method: str, *faults: Fault) -> None:
        """Let the next requests of a method meet these, one each."""
        self._next[method].extend(faults)

    def always(self, method: str, fault: Fault) -> None:
        """Let all requests of a method meet a fault."""
        self._always[method] = fault

    def count(self, method: str) -> int:
        """Return how many requests of a method have arrived."""
        return self.requests.count(method)

    def fault_of(self, request: _Request) -> Fault:
        """Count a request that arrives, and return what it meets."""
        method = request.command
        with self._lock:
            self.requests.append(method)
            if (fault := self._rule(request)) is not None:
                return fault
            waiting = self._next[method]
            return waiting.popleft() if waiting else self._always.get(method, passed)

    @property
    def unused(self) -> int:
        """How many faults no request has met."""
        return sum(map(len, self._next.values()))


@contextmanager
def faulty_s3(endpoint: str) -> Iterator[FaultyS3]:
    """Serve a proxy in front of an endpoint.

    Yields:
        The proxy; each fault that was asked for must have been met in the end.
    """
    handler = type("_Bound", (_Request,), {"upstream": urlsplit(endpoint).netloc})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    proxy = FaultyS3(f"http://127.0.0.1:{server.server_address[1]}")
    handler.proxy = proxy  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield proxy
        assert proxy.unused == 0
    finally:
        proxy.ending.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Request(BaseHTTPRequestHandler):
    upstream: str
    proxy: FaultyS3
    protocol_version = "HTTP/1.1"
    # Else the kernel keeps each body for 40 ms, until the client has confirmed the head before it.
    disable_nagle_algorithm = True

    @property
    def length(self) -> int:
        return int(self.headers.get("Content-Length") or 0)

    def read(self) -> bytes:
        """Return the body, with its framing where the SDK of AWS for C++ sends it in chunks."""
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(self.length)
        parts = [self.rfile.readline()]
        while size := int(parts[-1].partition(b";")[0] or b"0", 16):
            parts += self.rfile.read(size + len(b"\r\n")), self.rfile.readline()
        # The trailer ends with an empty line; nothing at all is a client that is gone.
        while parts[-1] not in (b"\r\n", b""):
            parts.append(self.rfile.readline())
        return b"".join(parts)

    def forward(self, *, without: str = "") -> tuple[int, dict[str, str], bytes]:
        headers = {
            name: value for name, value in self.headers.items() if name.lower() != without.lower()
        }
        connection = HTTPConnection(self.upstream, timeout=30)
        try:
            connection.request(self.command, self.path, self.read(), headers)
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return response.status, names, response.read()
        finally:
            connection.close()

    def answer(
        self, status: int, headers: dict[str, str], body: bytes, *, cut_after: int | None = None
    ) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in {"connection", "content-length", "transfer-encoding"}:
                self.send_header(name, value)
        length = headers.get("content-length", "0") if self.command == "HEAD" else len(body)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:cut_after])
            self.wfile.flush()

    def cut(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def do(self) -> None:
        self.proxy.fault_of(self)(self)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do  # noqa: N815 - names of http.server

    def log_message(self, *_: Any) -> None:
        pass
