"""One request over HTTP/2: what it sends, and how its client is left. It is its own caller."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from fanout.testing.caller import add_caller
from fanout.testing.wsgi_call import FAILED, call, environ_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from fanout.testing.wsgi_call import Headers

_logger = logging.getLogger(__name__)


class Http2Sender(Protocol):
    """What a stream asks of its connection, while it holds the lock unless said otherwise."""

    def send(
        self, stream: Http2Stream, headers: Headers | None, data: memoryview, *, end: bool
    ) -> None:
        """Begin to send a part of an answer."""

    def reset(self, stream: Http2Stream) -> None:
        """Reset a stream, unless it has ended."""

    def finish(self, stream: Http2Stream) -> None:
        """Forget a stream whose application is done; it takes the lock itself."""

    def leave(self) -> None:
        """Send GOAWAY and close; it takes the lock itself."""


class Http2Stream:
    """A request and its answer. The connection's lock guards all fields."""

    # `rest` is what the application has yielded and the client has not taken yet; the connection
    # makes frames of it.

    def __init__(
        self,
        connection: Http2Sender,
        number: int,
        lock: threading.Lock,
        headers: list[tuple[str, str]],
    ) -> None:
        self.number = number
        self.body = bytearray()
        self.rest = memoryview(b"")
        self.ends_with_rest = False
        self.begun = False
        self.ended = False
        self._changed = threading.Condition(lock)
        self._connection = connection
        self._headers = headers
        self._asked = ""
        self._deadline: float | None = None
        self._on_gone: Callable[[], None] | None = None

    def answer(self, app: Any) -> None:
        """Call the application, and send what it answers."""
        try:
            environ = environ_of(self._headers, bytes(self.body))
            self._headers, self.body = [], bytearray()
            add_caller(environ, self)
            self._asked = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}"
            call(app, environ, self._send)
        except ConnectionAbortedError:
            _logger.debug("%s: its client left, or a fault cut it", self._asked)
        except Exception:  # whatever failed: the client gets an answer, and the log says why
            _logger.warning("%s: it failed", self._asked, exc_info=True)
            with suppress(ConnectionAbortedError):
                if not self.begun:
                    self._send(b"", FAILED, end=True)
        finally:
            self._connection.finish(self)

    def _send(self, data: bytes, headers: Headers | None = None, *, end: bool = False) -> None:
        """Send a part of an answer; wait while the client's windows or its socket are full."""
        if headers is not None:
            _logger.debug("%s: %s", self._asked, headers[0][1])
        with self._changed:
            if self.ended:
                raise ConnectionAbortedError("the client has left")
            self.begun = True
            self._connection.send(self, headers, memoryview(data), end=end)
            while self.rest and not self.ended and self._patience() != 0:
                self._changed.wait(self._patience())
            if self.rest:
                self._connection.reset(self)
                raise ConnectionAbortedError("the client has left, or did not take it in time")

    def _patience(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def take(self, size: int) -> None:
        """Note that so much of the rest has become frames."""
        self.rest = self.rest[size:]
        if not self.rest:
            self.ended = self.ended or self.ends_with_rest
            self._changed.notify_all()

    def end(self) -> Callable[[], None] | None:
        """Have everything that waits for the stream go on; return what to call without the lock."""
        self.ended = True
        self._changed.notify_all()
        on_gone, self._on_gone = self._on_gone, None
        return on_gone

    def wait_for_hang_up(self, seconds: float | None) -> bool:
        """Wait until the client resets the stream or the connection has ended."""
        with self._changed:
            return self._changed.wait_for(lambda: self.ended, seconds)

    def on_gone(self, callback: Callable[[], None] | None) -> None:
        """Call back when the client resets the stream or the connection has ended."""
        with self._changed:
            ended = self.ended
            self._on_gone = None if ended else callback
        if ended and callback is not None:
            callback()

    def send_until(self, deadline: float | None) -> None:
        """Reset the stream if its client has not taken a part of the answer by then."""
        with self._changed:
            self._deadline = deadline
            self._changed.notify_all()

    def cut(self) -> None:
        """Reset the stream."""
        with self._changed:
            self._connection.reset(self)

    def leave(self) -> None:
        """Close the connection after a GOAWAY."""
        self._connection.leave()
