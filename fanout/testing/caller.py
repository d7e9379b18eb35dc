"""The client of one request, as the server's side sees it: whether it left, and how to leave it."""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

_logger = logging.getLogger(__name__)

# Where a request's environment has its caller.
_CALLER = "fanout.caller"


class Caller(Protocol):
    """The client of one request; other threads than the request's call `send_until` alone."""

    def wait_for_hang_up(self, seconds: float | None) -> bool:
        """Wait so long (None: for ever) until the client gives up; return whether it is gone."""
        # The server's own close ends the wait as well.

    def on_gone(self, callback: Callable[[], None] | None) -> None:
        """Call back, from another thread, when the client gives up; None calls nothing more."""

    def send_until(self, deadline: float | None) -> None:
        """Break the answer off if it is not taken by then, a time of the monotonic clock."""

    def cut(self) -> None:
        """Break the answer off: close the connection, or over HTTP/2 reset the stream."""

    def leave(self) -> None:
        """Close the connection, which over HTTP/2 may carry other requests: after a GOAWAY."""


def hang_up(connection: socket.socket) -> None:
    """Close both directions of a connection, for every thread that uses it."""
    try:
        # An SSLSocket would first drop its state, which another thread may be using.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
    except OSError:
        _logger.debug("a connection was already closed")


def add_caller(environ: dict[str, Any], caller: Caller) -> None:
    """Say in the environment of a request who its caller is."""
    environ[_CALLER] = caller


def caller_of(environ: dict[str, Any]) -> Caller:
    """Return the caller of a request."""
    caller: Caller = environ[_CALLER]
    return caller
