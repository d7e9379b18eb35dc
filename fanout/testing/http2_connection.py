"""One HTTP/2 connection of an embedded service: a thread of its own reads and writes it.

h2 knows the protocol. Each request has a thread too, which hands over what its application yields,
and waits until that has become frames. A turn of the connection reads what the client has sent,
and then writes one piece at most: the answer to a PING never waits for more than that. Nothing is
kept for a client that does not read.
"""

from __future__ import annotations

import logging
import select
import socket
import ssl
import threading
from collections import deque
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
from h2.settings import SettingCodes, Settings

from fanout.testing.caller import hang_up
from fanout.testing.http2_stream import Http2Stream
from fanout.testing.waker import Waker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fanout.testing.wsgi_call import Headers

_logger = logging.getLogger(__name__)

# What a client may have open at once, and may send before it waits for us.
_MAX_FRAME_SIZE = 1 << 17
_SETTINGS: dict[SettingCodes, int] = {
    SettingCodes.MAX_CONCURRENT_STREAMS: 1_000,
    SettingCodes.MAX_HEADER_LIST_SIZE: 1 << 16,
    SettingCodes.INITIAL_WINDOW_SIZE: 1 << 20,
    SettingCodes.MAX_FRAME_SIZE: _MAX_FRAME_SIZE,
}
_CONNECTION_WINDOW = 1 << 24
# How much of all answers becomes frames in a turn.
_PIECE = 1 << 18
# A record of TLS is shorter: nothing that is decrypted stays behind where poll does not see it.
_READ = 1 << 16


class Http2Connection:
    """Serve a WSGI application over a connection whose client speaks HTTP/2 from its first byte on.

    The owner of the connection closes it. The threads of requests have the name.
    """

    def __init__(self, connection: socket.socket, app: Any, *, name: str) -> None:
        self._socket = connection
        self._app = app
        self._name = name
        # It guards everything below. The thread that serves is the only one that uses the socket.
        self._lock = threading.Lock()
        self._h2 = H2Connection(H2Configuration(client_side=False, header_encoding="latin-1"))
        self._streams: dict[int, Http2Stream] = {}
        self._threads: set[threading.Thread] = set()
        # Those that have something to send, in their order; and those whose client must first open
        # a window.
        self._sending: deque[Http2Stream] = deque()
        self._held_back: dict[int, Http2Stream] = {}
        self._on_gone: list[Callable[[], None]] = []
        self._unsent = b""
        # TLS may have to read before it can write.
        self._writes_when = select.POLLOUT
        self._leaving = False
        # Poll does not see what was looked at before.
        self._begins = True
        self._waker = Waker()

    def serve(self) -> None:
        """Serve until either side closes the connection; then no request runs any more."""
        self._socket.settimeout(0)
        # Nagle's algorithm would hold the last piece of an answer back.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            with self._lock:
                # In force at once: h2 would refuse what a client sends together with the
                # acknowledgement of later ones.
                self._h2.local_settings = Settings(client=False, initial_values=_SETTINGS)
                self._h2.max_inbound_frame_size = _MAX_FRAME_SIZE
                self._h2.initiate_connection()
                self._h2.increment_flow_control_window(_CONNECTION_WINDOW)
                self._flush()
            while self._turn():
                pass
        except OSError:
            _logger.debug("a connection broke", exc_info=True)
        finally:
            hang_up(self._socket)
            self._end_all()
            self._waker.close()

    def _turn(self) -> bool:
        """Read, and then write; say whether the connection goes on."""
        readable = self._wait()
        with self._lock:
            if readable and not self._read():
                self._end_streams()
                return False
            self._write()
            on_gone, self._on_gone = self._on_gone, []
        _call_all(on_gone)
        return bool(self._unsent) or not self._leaving

    def _wait(self) -> bool:
        """Wait until there is something to do; say whether it may be something to read."""
        if self._begins:
            self._begins = False
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLIN | (self._writes_when if self._unsent else 0))
        poll.register(self._waker, select.POLLIN)
        at_once = bool(self._sending) and not self._unsent
        ready = dict(poll.poll(0 if at_once else None))
        if self._waker.fileno() in ready:
            self._waker.clear()
        return bool(ready.get(self._socket.fileno(), 0) & ~select.POLLOUT)

    def _read(self) -> bool:
        try:
            data = self._socket.recv(_READ)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return True
        if not data:
            return False
        try:
            events = self._h2.receive_data(data)
        except ProtocolError:
            _logger.debug("a client broke the protocol", exc_info=True)
            self._flush()
            return False
        for event in events:
            self._follow(event)
        return not any(isinstance(event, ConnectionTerminated) for event in events)

    def _follow(self, event: Event) -> None:
        match event:
            case RequestReceived(stream_id=int(number)):
                headers = [(str(name), str(value)) for name, value in event.headers or []]
                self._streams[number] = Http2Stream(self, number, self._lock, headers)
            case DataReceived(stream_id=int(number), data=bytes(data)):
                self._h2.acknowledge_received_data(event.flow_controlled_length or 0, number)
                if number in self._streams:
                    self._streams[number].body += data
            case StreamEnded(stream_id=int(number)) if number in self._streams:
                self._start(self._streams[number])
            case StreamReset(stream_id=int(number)) if number in self._streams:
                self._end(self._streams.pop(number))
            case WindowUpdated(stream_id=int(number)) if number:
                if number in self._held_back:
                    self._sending.append(self._held_back.pop(number))
            case WindowUpdated() | RemoteSettingsChanged():
                self._sending.extend(self._held_back.values())
                self._held_back.clear()
            case ConnectionTerminated():
                self._end_streams()
            case _:
                pass

    def _start(self, stream: Http2Stream) -> None:
        thread = threading.Thread(
            target=stream.answer, args=(self._app,), name=f"{self._name}-request", daemon=True
        )
        thread.start()
        self._threads.add(thread)

    def _write(self) -> None:
        """Make frames of one piece at most, and write as much as the operating system takes."""
        self._flush()
        room = _PIECE
        while room > 0 and self._sending and not self._unsent:
            room -= self._send_piece(self._sending.popleft(), room)
        self._flush()

    def _send_piece(self, stream: Http2Stream, room: int) -> int:
        if stream.ended or not stream.rest:
            return 0
        window = self._h2.local_flow_control_window(stream.number)
        if window <= 0:
            self._held_back[stream.number] = stream
            return 0
        size = min(len(stream.rest), window, room)
        step = self._h2.max_outbound_frame_size
        for start in range(0, size, step):
            stop = min(start + step, size)
            last = stream.ends_with_rest and stop == len(stream.rest)
            self._h2.send_data(stream.number, stream.rest[start:stop], end_stream=last)
        stream.take(size)
        if stream.rest:
            self._sending.append(stream)
        return size

    def _flush(self) -> None:
        self._unsent += self._h2.data_to_send()
        if not self._unsent:
            return
        try:
            sent = self._socket.send(self._unsent)
        except ssl.SSLWantReadError:
            self._writes_when = select.POLLIN
        except (BlockingIOError, ssl.SSLWantWriteError):
            self._writes_when = select.POLLOUT
        else:
            self._unsent = self._unsent[sent:]
            self._writes_when = select.POLLOUT

    def send(
        self, stream: Http2Stream, headers: Headers | None, data: memoryview, *, end: bool
    ) -> None:
        """Begin to send a part of an answer; the stream holds the lock."""
        # Headers and ends need no window, and wait for nothing.
        if headers is not None:
            self._h2.send_headers(stream.number, headers, end_stream=end and not data)
        elif end and not data:
            self._h2.end_stream(stream.number)
        if data:
            stream.rest, stream.ends_with_rest = data, end
            self._sending.append(stream)
        elif end:
            stream.ended = True
        self._waker.wake()

    def reset(self, stream: Http2Stream) -> None:
        """Reset a stream, unless it has ended; the stream holds the lock."""
        if not stream.ended:
            self._h2.reset_stream(stream.number, ErrorCodes.INTERNAL_ERROR)
            self._end(stream)
            self._waker.wake()

    def finish(self, stream: Http2Stream) -> None:
        """Forget a stream whose application is done."""
        with self._lock:
            self.reset(stream)
            self._streams.pop(stream.number, None)
            self._threads.discard(threading.current_thread())

    def leave(self) -> None:
        """Send GOAWAY and close the connection, with all that it carries."""
        with self._lock:
            self._h2.close_connection()
            self._leaving = True
            self._end_streams()
            self._waker.wake()

    def _end(self, stream: Http2Stream) -> None:
        self._held_back.pop(stream.number, None)
        if (on_gone := stream.end()) is not None:
            # It may wait for one who waits for the lock.
            self._on_gone.append(on_gone)

    def _end_streams(self) -> None:
        for stream in self._streams.values():
            self._end(stream)

    def _end_all(self) -> None:
        with self._lock:
            self._end_streams()
            threads = tuple(self._threads)
            on_gone, self._on_gone = self._on_gone, []
        _call_all(on_gone)
        for thread in threads:
            thread.join()


def _call_all(callbacks: Iterable[Callable[[], None]]) -> None:
    for callback in callbacks:
        callback()
