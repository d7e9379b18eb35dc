"""One HTTP/2 connection of an embedded service: a thread reads it, and each request has its own.

h2 knows the protocol. What an application yields is sent as far as the client's windows and its
socket allow; then the application waits, and nothing is kept for a client that does not read.
"""

from __future__ import annotations

import logging
import select
import socket
import ssl
import threading
from typing import TYPE_CHECKING, Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes

from fanout.testing.caller import add_caller, hang_up
from fanout.testing.wsgi_call import call, environ_of

if TYPE_CHECKING:
    from fanout.testing.wsgi_call import Headers

_logger = logging.getLogger(__name__)

# What a client may have open at once, and may send before it waits for us.
_MAX_FRAME_SIZE = 1 << 17
_SETTINGS: dict[SettingCodes | int, int] = {
    SettingCodes.MAX_CONCURRENT_STREAMS: 1_000,
    SettingCodes.INITIAL_WINDOW_SIZE: 1 << 20,
    SettingCodes.MAX_FRAME_SIZE: _MAX_FRAME_SIZE,
}
_CONNECTION_WINDOW = 1 << 24
# How much of an answer becomes frames at a time.
_PIECE = 1 << 18
# A record of TLS is shorter: nothing that is decrypted stays behind where poll does not see it.
_READ = 1 << 16
# There is nothing to read, or no room to write; TLS has words of its own for it.
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Http2Connection:
    """Serve a WSGI application over one connection.

    Args:
        connection: a connection whose client speaks HTTP/2 from its first byte on. It stays open.
        app: the WSGI application.
        name: the name of the threads of requests.
    """

    def __init__(self, connection: socket.socket, app: Any, *, name: str) -> None:
        self._socket = connection
        self._app = app
        self._name = name
        # It guards everything below and the socket: TLS bears one thread at a time.
        self._lock = threading.Lock()
        self._h2 = H2Connection(H2Configuration(client_side=False, header_encoding="latin-1"))
        self._streams: dict[int, _Stream] = {}
        self._threads: set[threading.Thread] = set()
        self._unsent = b""

    def serve(self) -> None:
        """Serve until either side closes the connection; then no request runs any more."""
        self._socket.settimeout(0)
        # Nagle's algorithm would hold the last piece of an answer back.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            with self._lock:
                self._h2.initiate_connection()
                self._h2.update_settings(_SETTINGS)
                # h2 would refuse a large frame that it reads together with the acknowledgement.
                self._h2.max_inbound_frame_size = _MAX_FRAME_SIZE
                self._h2.increment_flow_control_window(_CONNECTION_WINDOW)
                self._flush()
            while self._read():
                pass
        except OSError:
            _logger.debug("a connection broke", exc_info=True)
        finally:
            self._end_all()

    def _read(self) -> bool:
        """Wait for the client and do what it asks for; say whether the connection goes on."""
        self._wait(select.POLLIN | (select.POLLOUT if self._unsent else 0))
        with self._lock:
            try:
                data = self._socket.recv(_READ)
            except _NOT_NOW:
                self._flush()
                return True
            if not data:
                return False
            try:
                events = self._h2.receive_data(data)
            except ProtocolError:
                _logger.debug("a client broke the protocol", exc_info=True)
                self._flush()
                self._end_streams()
                return False
            for event in events:
                self._follow(event)
            self._flush()
        return not any(isinstance(event, ConnectionTerminated) for event in events)

    def _follow(self, event: Event) -> None:
        match event:
            case RequestReceived(stream_id=int(number)):
                headers = [(str(name), str(value)) for name, value in event.headers or []]
                self._streams[number] = _Stream(self, number, self._lock, headers)
            case DataReceived(stream_id=int(number), data=bytes(data)):
                self._h2.acknowledge_received_data(event.flow_controlled_length or 0, number)
                if number in self._streams:
                    self._streams[number].body += data
            case StreamEnded(stream_id=int(number)) if number in self._streams:
                self._start(self._streams[number])
            case StreamReset(stream_id=int(number)) if number in self._streams:
                self._streams.pop(number).end()
            case WindowUpdated() | RemoteSettingsChanged():
                for stream in self._streams.values():
                    stream.changed.notify()
            case ConnectionTerminated():
                self._end_streams()
            case _:
                pass

    def _start(self, stream: _Stream) -> None:
        thread = threading.Thread(
            target=self._respond, args=(stream,), name=f"{self._name}-request", daemon=True
        )
        thread.start()
        self._threads.add(thread)

    def _respond(self, stream: _Stream) -> None:
        try:
            stream.answer(self._app)
        except ConnectionAbortedError:
            _logger.debug("an answer was cut, or its client left")
        except Exception:
            _logger.debug("a request failed", exc_info=True)
        finally:
            with self._lock:
                self._reset(stream)
                self._streams.pop(stream.number, None)
                self._threads.discard(threading.current_thread())

    def send(self, stream: _Stream, data: bytes, headers: Headers | None, *, end: bool) -> None:
        """Send a part of an answer; wait while the client's windows are full.

        Raises:
            ConnectionAbortedError: the stream has ended.
        """
        rest = memoryview(data)
        with self._lock:
            stream.check()
            if headers is not None:
                self._h2.send_headers(stream.number, headers, end_stream=end and not rest)
            elif end and not rest:
                self._h2.end_stream(stream.number)
            if not rest:
                self._flush()
        while rest:
            self._push()
            with self._lock:
                if not self._unsent:
                    rest = self._send_piece(stream, rest, end=end)
                    self._flush()
        self._push()
        if end:
            with self._lock:
                stream.end()

    def _send_piece(self, stream: _Stream, rest: memoryview, *, end: bool) -> memoryview:
        stream.check()
        window = self._h2.local_flow_control_window(stream.number)
        if window <= 0:
            self._flush()  # the headers need no window
            stream.changed.wait()
            return rest
        size = min(len(rest), window, _PIECE)
        step = self._h2.max_outbound_frame_size
        for start in range(0, size, step):
            stop = min(start + step, size)
            last = end and stop == len(rest)
            self._h2.send_data(stream.number, rest[start:stop], end_stream=last)
        return rest[size:]

    def cut(self, stream: _Stream) -> None:
        """Reset a stream."""
        with self._lock:
            self._reset(stream)

    def leave(self) -> None:
        """Send GOAWAY and close the connection, with all that it carries."""
        self._push()
        with self._lock:
            self._h2.close_connection()
            self._flush()
            self._end_streams()
            hang_up(self._socket)

    def _reset(self, stream: _Stream) -> None:
        if not stream.ended:
            self._h2.reset_stream(stream.number, ErrorCodes.INTERNAL_ERROR)
            self._flush()
            stream.end()

    def _end_all(self) -> None:
        with self._lock:
            self._end_streams()
            threads = tuple(self._threads)
        for thread in threads:
            thread.join()

    def _end_streams(self) -> None:
        for stream in self._streams.values():
            stream.end()

    def _flush(self) -> None:
        """Write as much as the operating system takes; the caller holds the lock."""
        self._unsent += self._h2.data_to_send()
        if not self._unsent:
            return
        try:
            sent = self._socket.send(self._unsent)
        except _NOT_NOW:
            return
        except OSError:
            # The thread that reads sees it too, and ends the streams.
            sent = len(self._unsent)
        self._unsent = self._unsent[sent:]

    def _push(self) -> None:
        """Wait until the operating system has taken everything."""
        while self._unsent:
            self._wait(select.POLLOUT)
            with self._lock:
                self._flush()

    def _wait(self, wanted: int) -> None:
        poll = select.poll()
        poll.register(self._socket, wanted)
        poll.poll()


class _Stream:
    """One request; it is its own caller. The connection's lock guards its fields."""

    def __init__(
        self,
        connection: Http2Connection,
        number: int,
        lock: threading.Lock,
        headers: list[tuple[str, str]],
    ) -> None:
        self.number = number
        self.body = bytearray()
        self.ended = False
        # Notified when it has ended, and when the client takes more.
        self.changed = threading.Condition(lock)
        self._connection = connection
        self._headers = headers
        self._asked = ""

    def answer(self, app: Any) -> None:
        environ = environ_of(self._headers, bytes(self.body))
        self._headers, self.body = [], bytearray()
        add_caller(environ, self)
        self._asked = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}"
        call(app, environ, self._send)

    def _send(self, data: bytes, headers: Headers | None = None, *, end: bool = False) -> None:
        if headers is not None:
            _logger.debug("%s: %s", self._asked, headers[0][1])
        self._connection.send(self, data, headers, end=end)

    def end(self) -> None:
        """Have everything that waits for the stream go on."""
        self.ended = True
        self.changed.notify_all()

    def check(self) -> None:
        """Check that the client still wants the answer.

        Raises:
            ConnectionAbortedError: it does not.
        """
        if self.ended:
            raise ConnectionAbortedError("the client has left")

    def wait_for_hang_up(self, seconds: float | None) -> bool:
        """Wait until the client resets the stream or the connection has ended."""
        if seconds == 0:
            return self.ended
        with self.changed:
            return self.changed.wait_for(lambda: self.ended, seconds)

    def cut(self) -> None:
        """Reset the stream."""
        self._connection.cut(self)

    def leave(self) -> None:
        """Close the connection after a GOAWAY."""
        self._connection.leave()
