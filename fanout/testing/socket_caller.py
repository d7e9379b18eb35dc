"""The client of a request over HTTP/1.1."""

from __future__ import annotations

import selectors
from typing import TYPE_CHECKING

from fanout.testing.caller import hang_up

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from fanout.testing.hang_up_watch import HangUpWatch


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
