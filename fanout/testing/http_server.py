"""The threaded HTTP server under embedded services: werkzeug's, but quiet and quick to close.

The same port serves HTTP/2 and TLS, whose clients are known by their first bytes.
"""

from __future__ import annotations

import io
import logging
import selectors
import socket
import ssl
import sys
import threading
from typing import IO, TYPE_CHECKING, Any, cast

from moto.moto_server.werkzeug_app import MotoRequestHandler
from werkzeug.serving import ThreadedWSGIServer

from fanout.testing.caller import add_caller, hang_up
from fanout.testing.hang_up_watch import HangUpWatch
from fanout.testing.http2_connection import Http2Connection
from fanout.testing.wsgi_call import FAILED, call

if TYPE_CHECKING:
    from collections.abc import Callable

    from fanout.testing.wsgi_call import Headers

_logger = logging.getLogger(__name__)
# How soon serve_forever notices a shutdown, in seconds.
_POLL_INTERVAL = 0.02
# As many subscribers as a large stream has may connect at once.
_BACKLOG = 1024
# With these begins what a client of HTTP/2 sends, and no request of HTTP/1.1.
_HTTP2_PREFACE = b"PRI"
# And with this a client of TLS.
_TLS_HANDSHAKE = b"\x16"
# Answers with these have no body.
_WITHOUT_BODY = frozenset({204, 304})
_LAST = b"0\r\n\r\n"
# A record of TLS is shorter.
_RECORD = 1 << 16


class TlsConnection(ssl.SSLSocket):
    """Read what was looked at first; TLS has no MSG_PEEK."""

    _ahead = b""

    def look_ahead(self, size: int) -> bytes:
        """Wait for so many bytes, and return them; fewer if the client has hung up."""
        while len(self._ahead) < size and (data := super().recv(_RECORD)):
            self._ahead += data
        return self._ahead[:size]

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Read so many bytes at most."""
        if self._ahead:
            data, self._ahead = self._ahead[:buflen], self._ahead[buflen:]
            return data
        return super().recv(buflen, flags)

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        """Read into a buffer."""
        if self._ahead:
            data = self.recv(nbytes or len(buffer))
            buffer[: len(data)] = data
            return len(data)
        return super().recv_into(buffer, nbytes, flags)


class SocketCaller:
    """The client of a request over HTTP/1.1, which has the connection to itself."""

    # The watch watches it while the request's thread does not.

    def __init__(self, connection: socket.socket, watch: HangUpWatch) -> None:
        self._connection = connection
        self._watch = watch

    def wait_for_hang_up(self, seconds: float | None) -> bool:
        """Wait until the socket is readable: a client sends nothing after its request."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._connection, selectors.EVENT_READ)
            return bool(selector.select(seconds))

    def on_gone(self, callback: Callable[[], None] | None) -> None:
        """Call back when the socket is readable."""
        self._watch.on_gone(self._connection, callback)

    def send_until(self, deadline: float | None) -> None:
        """Close the connection then."""
        self._watch.hang_up_at(self._connection, deadline)

    def cut(self) -> None:
        """Close the connection."""
        hang_up(self._connection)

    def leave(self) -> None:
        """Close the connection."""
        self.cut()


class _RequestHandler(MotoRequestHandler):
    # A frame is written in four pieces; Nagle's algorithm would hold the last ones back for 40 ms.
    disable_nagle_algorithm = True
    wbufsize = -1

    def make_environ(self) -> dict[str, Any]:
        environ: dict[str, Any] = super().make_environ()
        add_caller(environ, SocketCaller(self.connection, cast("HttpServer", self.server).watch))
        return environ

    def run_wsgi(self) -> None:
        """Answer one request; the connection is kept if the answer says how long it is.

        werkzeug closes each connection, as an application may leave a part of a body unread.
        """
        self._begun = False
        try:
            environ = self.make_environ()
            environ["wsgi.input"] = io.BytesIO(self._body(environ))
            call(self.server.app, environ, self._send)
        except ConnectionError:
            self.close_connection = True
        except Exception:  # whatever failed: the client gets an answer, and the log says why
            _logger.warning("%s %s: it failed", self.command, self.path, exc_info=True)
            self.close_connection = True
            if not self._begun:
                self._send(b"", FAILED, end=True)

    def _body(self, environ: dict[str, Any]) -> bytes:
        body: IO[bytes] = environ["wsgi.input"]
        if not environ.get("wsgi.input_terminated"):
            return body.read(int(environ.get("CONTENT_LENGTH") or 0))
        data = body.read()
        environ["CONTENT_LENGTH"] = str(len(data))
        return data

    def _send(self, data: bytes, headers: Headers | None = None, *, end: bool = False) -> None:
        """Write a part of an answer; one without a length is cut into chunks."""
        if headers is not None:
            self._begun = True
            status = int(headers[0][1])
            _logger.debug("%s %s: %d", self.command, self.path, status)
            self._with_body = self.command != "HEAD" and status not in _WITHOUT_BODY
            self._chunked = self._with_body and "content-length" not in dict(headers)
            self.close_connection |= self._chunked
            self.send_response_only(status)
            for name, value in headers[1:]:
                self.send_header(name, value)
            if self._chunked:
                self.send_header("Transfer-Encoding", "chunked")
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
        if self._chunked:
            data = (b"%x\r\n%b\r\n" % (len(data), data) if data else b"") + _LAST * end
        if self._with_body:
            self.wfile.write(data)
        self.wfile.flush()

    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 (werkzeug's signature)
        _logger.debug("%s: %s", type, message % args if args else message)


class HttpServer(ThreadedWSGIServer):
    """Serve a WSGI application on 127.0.0.1 over HTTP/1.1 and HTTP/2, a thread per request.

    The port 0 takes a free one. With `tls` it speaks TLS with clients that begin with it.
    """

    def __init__(
        self, port: int, app: Any, *, name: str, tls: ssl.SSLContext | None = None
    ) -> None:
        self._name = name
        self._tls = tls
        if tls is not None:
            tls.sslsocket_class = TlsConnection
        self._requests: dict[threading.Thread, socket.socket] = {}
        self._requests_lock = threading.Lock()
        # werkzeug would end the process if the port were taken; it works on a copy of this socket.
        with socket.create_server(("127.0.0.1", port), backlog=_BACKLOG) as bound:
            super().__init__("127.0.0.1", port, app, _RequestHandler, fd=bound.fileno())
        self.watch = HangUpWatch(f"{name}-watch")
        self._accepting = threading.Thread(
            target=self.serve_forever,
            kwargs={"poll_interval": _POLL_INTERVAL},
            name=name,
            daemon=True,
        )
        self._accepting.start()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for the request, and remember both until it is done."""
        thread = threading.Thread(
            target=self.process_request_thread,
            args=(request, client_address),
            name=f"{self._name}-request",
            daemon=True,
        )
        with self._requests_lock:
            self._requests[thread] = request
        thread.start()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Serve one connection in the protocol that its client speaks."""
        first = request.recv(len(_HTTP2_PREFACE), socket.MSG_PEEK | socket.MSG_WAITALL)
        if self._tls is not None and first[:1] == _TLS_HANDSHAKE:
            self._serve_tls(self._tls, request, client_address)
        elif first == _HTTP2_PREFACE:
            Http2Connection(request, self.app, name=self._name).serve()
        else:
            super().finish_request(request, client_address)

    def _serve_tls(self, tls: ssl.SSLContext, request: socket.socket, client_address: Any) -> None:
        thread = threading.current_thread()
        with self._requests_lock:
            # It takes the descriptor over, so that this is what `close` has to hang up on.
            connection = cast(
                "TlsConnection",
                tls.wrap_socket(request, server_side=True, do_handshake_on_connect=False),
            )
            self._requests[thread] = connection
        try:
            connection.do_handshake()
            # The AWS SDK for Java v2 agrees on no protocol, and speaks HTTP/2 all the same.
            agreed = connection.selected_alpn_protocol()
            first = connection.look_ahead(len(_HTTP2_PREFACE)) if agreed is None else b""
            if agreed == "h2" or first == _HTTP2_PREFACE:
                Http2Connection(connection, self.app, name=self._name).serve()
            else:
                super().finish_request(connection, client_address)
        finally:
            with self._requests_lock:
                self._requests.pop(thread)
                hang_up(connection)
                connection.close()

    def shutdown_request(self, request: Any) -> None:
        """Close the request's socket from its own thread."""
        with self._requests_lock:
            self._requests.pop(threading.current_thread(), None)
            super().shutdown_request(request)

    def close(self) -> None:
        """Stop accepting, cut every open connection and wait for every thread."""
        self.shutdown()
        self._accepting.join()
        with self._requests_lock:
            threads = tuple(self._requests)
            for connection in self._requests.values():
                hang_up(connection)
        for thread in threads:
            thread.join()
        self.watch.close()

    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 (werkzeug's signature)
        """Log what an application raised; werkzeug would write to stderr."""
        level = logging.WARNING if type == "error" else logging.DEBUG
        _logger.log(level, "%s: %s", type, message % args if args else message)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 (socketserver's signature)
        """Log what a request's thread raised; socketserver would write to stderr."""
        _logger.debug("a request failed", exc_info=sys.exception())
