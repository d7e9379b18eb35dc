"""One HTTP/2 connection to the service: each subscription is a stream of it.

h2 knows the protocol: headers, settings, and the state of each stream. The DATA frames, which carry
nearly all of the bytes, are cut and counted here: if h2 saw them, a reader would need a third more
CPU. Frames and windows are those of https://www.rfc-editor.org/rfc/rfc9113.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, cast, final

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    Event,
    RemoteSettingsChanged,
    ResponseReceived,
    StreamEnded,
    StreamReset,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings

from fanout.kinesis.aws.raw_bodies import RawBody

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

# The largest frame that may be sent to any client, and the head of each.
_FRAME: Final = 1 << 14
_HEAD: Final = 9
_BUFFER: Final = 1 << 18
_DATA: Final = 0
_WINDOW_UPDATE: Final = b"\x00\x00\x04\x08\x00"
_END_STREAM: Final = 0x1
_PADDED: Final = 0x8

# What the service may send ahead of the reader of one stream. Of all streams together it may send
# what their windows allow.
_WINDOW: Final = 1 << 18
_CONNECTION_WINDOW: Final = 2**31 - 1
_DEFAULT_WINDOW: Final = 2**16 - 1
_CHUNK: Final = 1 << 16


class Http2Error(ConnectionResetError):
    """A connection or a stream of HTTP/2 ended before the answer did."""


@final
class Http2Response(RawBody):
    """The answer to a request: its head, and its body as it arrives."""

    def __init__(self, connection: Http2ClientConnection, number: int) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._connection = connection
        self._number = number
        self._pieces: deque[bytes] = deque()
        self._window = _WINDOW
        self._taken = 0
        self._ended = False
        self._error: Http2Error | None = None
        self._changed = asyncio.Event()

    @property
    def size(self) -> int | None:
        """None: a subscription has no known size."""
        return None

    async def head(self) -> None:
        """Wait for the status and the headers."""
        while not self.status:
            _raise(self._error)
            if self._ended:
                raise Http2Error("the service ended a stream without an answer")
            await self._change()

    def chunks(self) -> AsyncIterator[bytes]:
        """Iterate over the body as it arrives, in chunks of up to 64 KiB.

        256 KiB are read ahead of the caller; the rest waits at the service. A cancellation loses no
        chunk: it is returned or stays in the response.
        """
        return self

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while not self._pieces:
            _raise(self._error)
            if self._ended:
                raise StopAsyncIteration
            await self._change()
        return self._take()

    async def read(self) -> bytes:
        """Read the body to its end, as botocore does with an error."""
        return b"".join([chunk async for chunk in self])

    def close(self) -> None:
        """Reset the stream, unless it has ended; the last stream's end closes the connection."""
        self._connection.leave(self._number)
        self.end(None)

    def arrived(self, piece: bytes, length: int) -> None:
        """Take a frame of the body, which takes `length` of the window, padding included."""
        if length > self._window:
            raise ProtocolError("the service sent more than the window of a stream")
        self._window -= length
        self._taken += length - len(piece)
        if piece:
            self._pieces.append(piece)
            self._changed.set()

    def answered(self, headers: Iterable[tuple[str | bytes, str | bytes]]) -> None:
        """Take the head of the answer."""
        self.headers = {str(name): str(value) for name, value in headers}
        self.status = int(self.headers.pop(":status"))
        self._changed.set()

    def end(self, error: Http2Error | None) -> None:
        """Note that nothing more will arrive: because of an error, or at the answer's end."""
        if not self._ended:
            self._ended, self._error = True, error
            self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _take(self) -> bytes:
        taken, size = [], 0
        while self._pieces and size + len(self._pieces[0]) <= _CHUNK:
            taken.append(self._pieces.popleft())
            size += len(taken[-1])
        self._taken += size
        if self._taken >= _WINDOW // 2 and not self._ended:
            self._connection.allow(self._number, self._taken)
            self._window += self._taken
            self._taken = 0
        return b"".join(taken)


@final
class Http2ClientConnection(asyncio.BufferedProtocol):
    """Speak HTTP/2 as a client; any number of streams share what it reads.

    A connection that the service takes leave of (GOAWAY) ends at once, with all of its streams.
    """

    def __init__(self) -> None:
        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self._h2.local_settings = Settings(
            client=True,
            initial_values={
                SettingCodes.ENABLE_PUSH: 0,
                SettingCodes.INITIAL_WINDOW_SIZE: _WINDOW,
                SettingCodes.MAX_FRAME_SIZE: _FRAME,
            },
        )
        self._transport: asyncio.Transport | None = None
        self._streams: dict[int, Http2Response] = {}
        self._buffer = bytearray(_BUFFER)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._received = 0
        self._error: Http2Error | None = None
        self._settled = asyncio.Event()
        self._lost = asyncio.Event()

    @property
    def has_room(self) -> bool:
        """Whether it is open and the service allows it one more stream."""
        return (
            self._error is None
            and len(self._streams) < self._h2.remote_settings.max_concurrent_streams
        )

    @property
    def is_lost(self) -> bool:
        """Whether the operating system has closed it."""
        return self._lost.is_set()

    async def settled(self) -> None:
        """Wait for the settings of the service, which say how many streams it allows."""
        await self._settled.wait()
        _raise(self._error)

    def start(self, headers: list[tuple[str, str]], body: bytes) -> Http2Response:
        """Send a request; raise Http2Error if the connection ended or allows no more streams."""
        _raise(self._error)
        try:
            number = self._h2.get_next_available_stream_id()
            self._h2.send_headers(number, headers)
            self._h2.send_data(number, body, end_stream=True)
        except ProtocolError as error:
            raise Http2Error(f"the request could not be sent over HTTP/2: {error}") from error
        response = self._streams[number] = Http2Response(self, number)
        self._flush()
        return response

    def allow(self, number: int, size: int) -> None:
        """Let the service send more on a stream; on stream 0, on all of them together."""
        if self._transport is not None and self._error is None:
            self._transport.write(_WINDOW_UPDATE + number.to_bytes(4) + size.to_bytes(4))

    def leave(self, number: int) -> None:
        """Reset a stream that has not ended; the last one's end closes the connection."""
        if number in self._streams:
            self._h2.reset_stream(number, ErrorCodes.CANCEL)
            self._drop(number, None)

    def abort(self) -> None:
        """Close the connection at once."""
        self._end(Http2Error("the connection was closed"))

    async def lost(self) -> None:
        """Wait until the operating system has closed it."""
        await self._lost.wait()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to speak."""
        # Not an asyncio.Transport in every event loop: that of uvloop only has its methods.
        self._transport = cast("asyncio.Transport", transport)
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(_CONNECTION_WINDOW - _DEFAULT_WINDOW)
        self._flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go: behind the part of a frame that is there."""
        del sizehint
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Read the frames that are complete, and keep the rest."""
        end = self._filled + nbytes
        try:
            at = self._read_frames(end)
        except ProtocolError as error:
            self._end(Http2Error(f"the service broke the protocol of HTTP/2: {error}"))
            return
        if at:
            self._view[: end - at] = bytes(self._view[at:end])
        self._filled = end - at
        if self._error is None:
            self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """End what is left."""
        self._lost.set()
        error = Http2Error("the service closed the connection")
        error.__cause__ = exc
        self._end(error)

    def _read_frames(self, end: int) -> int:
        """Read frames up to `end`; return where the first incomplete one begins."""
        data, at = self._buffer, 0
        while end - at >= _HEAD:
            length = data[at] << 16 | data[at + 1] << 8 | data[at + 2]
            if length > _FRAME:
                raise ProtocolError("a frame is longer than this client allows")
            after = at + _HEAD + length
            if after > end:
                break
            if data[at + 3] == _DATA:
                self._read_data(at, after)
            else:
                self._follow(self._h2.receive_data(bytes(self._view[at:after])))
            at = after
        return at

    def _read_data(self, at: int, after: int) -> None:
        number = int.from_bytes(self._view[at + 5 : at + _HEAD]) & 0x7FFF_FFFF
        length = after - at - _HEAD
        self._received += length
        if self._received >= _CONNECTION_WINDOW // 2:
            self.allow(0, self._received)
            self._received = 0
        response = self._streams.get(number)
        if response is None:
            return  # of a stream that was reset here
        flags = self._buffer[at + 4]
        begin, stop = at + _HEAD, after
        if flags & _PADDED and length:
            begin, stop = begin + 1, stop - self._buffer[begin]
        if stop < begin:
            raise ProtocolError("a frame has more padding than bytes")
        response.arrived(bytes(self._view[begin:stop]), length)
        if "content-length" in response.headers:
            # An error. h2 compares the length with that of the frames, and so has to see them.
            self._follow(self._h2.receive_data(bytes(self._view[at:after])))
        elif flags & _END_STREAM:
            # h2 has seen no other frame of the body, and has to know of its end.
            ending = bytes((0, 0, 0, _DATA, _END_STREAM)) + number.to_bytes(4)
            self._follow(self._h2.receive_data(ending))

    def _follow(self, events: Iterable[Event]) -> None:
        for event in events:
            match event:
                case ResponseReceived(stream_id=int(number)) if number in self._streams:
                    self._streams[number].answered(event.headers or ())
                case StreamEnded(stream_id=int(number)) if number in self._streams:
                    self._drop(number, None)
                case StreamReset(stream_id=int(number)) if number in self._streams:
                    reset = Http2Error(f"the service reset a stream: {_name(event.error_code)}")
                    self._drop(number, reset)
                case RemoteSettingsChanged():
                    self._settled.set()
                case ConnectionTerminated():
                    code = _name(event.error_code)
                    self._end(Http2Error(f"the service ends the connection: {code}"))
                    return
                case _:
                    pass

    def _flush(self) -> None:
        if self._transport is not None and (data := self._h2.data_to_send()):
            self._transport.write(data)

    def _drop(self, number: int, error: Http2Error | None) -> None:
        """End a stream; without any other the connection is closed."""
        self._streams.pop(number).end(error)
        if not self._streams:
            self._error = Http2Error("the connection was closed, as nothing used it")
            self._h2.close_connection()
        self._flush()
        if self._error is not None and self._transport is not None:
            self._transport.close()

    def _end(self, error: Http2Error) -> None:
        """End all streams with an error, and close the connection at once."""
        if self._error is None:
            self._error = error
        self._settled.set()
        streams, self._streams = self._streams, {}
        for response in streams.values():
            response.end(error)
        if self._transport is not None:
            self._transport.abort()


def _raise(error: Http2Error | None) -> None:
    """Raise an error anew: many streams share it, and each raise adds to its traceback."""
    if error is not None:
        raise Http2Error(*error.args) from error


def _name(code: ErrorCodes | int | None) -> str:
    return code.name if isinstance(code, ErrorCodes) else str(code)
