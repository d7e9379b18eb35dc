"""The threaded HTTP server under embedded services: werkzeug's, but quiet and quick to close."""

from __future__ import annotations

import logging
import selectors
import socket
import sys
import threading
from typing import Any

from moto.moto_server.werkzeug_app import MotoRequestHandler
from werkzeug.serving import ThreadedWSGIServer

_logger = logging.getLogger(__name__)
# How soon serve_forever notices a shutdown, in seconds.
_POLL_INTERVAL = 0.02
# As many subscribers as a large stream has may connect at once.
_BACKLOG = 1024


class _RequestHandler(MotoRequestHandler):
    # A frame is written in four pieces; Nagle's algorithm would hold the last ones back for 40 ms.
    disable_nagle_algorithm = True

    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 (werkzeug's signature)
        _logger.debug("%s: %s", type, message % args if args else message)


class HttpServer(ThreadedWSGIServer):
    """Serve a WSGI application on 127.0.0.1, a thread per request.

    Args:
        port: the port; 0 takes a free one.
        app: the WSGI application.
        name: the name of its threads.

    Raises:
        OSError: the port is taken.
    """

    def __init__(self, port: int, app: Any, *, name: str) -> None:
        self._name = name
        self._requests: dict[threading.Thread, socket.socket] = {}
        self._requests_lock = threading.Lock()
        # werkzeug would end the process if the port were taken; it works on a copy of this socket.
        with socket.create_server(("127.0.0.1", port), backlog=_BACKLOG) as bound:
            super().__init__("127.0.0.1", port, app, _RequestHandler, fd=bound.fileno())
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
                _hang_up(connection)
        for thread in threads:
            thread.join()

    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 (werkzeug's signature)
        """Log quietly; werkzeug would write to stderr."""
        _logger.debug("%s: %s", type, message % args if args else message)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 (socketserver's signature)
        """Log what a request's thread raised; socketserver would write to stderr."""
        _logger.debug("a request failed", exc_info=sys.exception())


def _hang_up(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        # The client was faster.
        _logger.debug("a connection was already closed")


def wait_for_hang_up(connection: socket.socket, seconds: float | None) -> bool:
    """Wait until the client closes its end, for at most so many seconds (None: for ever).

    A client sends nothing after its request, so that a readable socket is a closed one. The
    server's own close ends the wait as well.

    Returns:
        Whether the client is gone.
    """
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        return bool(selector.select(seconds))
