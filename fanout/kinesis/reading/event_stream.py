"""Decode the frames of `application/vnd.amazon.eventstream`, without I/O.

A frame is a prelude (total length, headers length, CRC-32 of the two), headers, a payload and a
CRC-32 of all bytes before it. `feed` takes bytes, and `next_frame` returns complete frames whose
checksums are right. The specification calls a frame a message:
https://smithy.io/2.0/aws/amazon-eventstream.html
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final
from uuid import UUID

from fanout.errors import DamagedFrameError, MalformedEventError, StreamStateError

try:
    from isal.isal_zlib import crc32
except ImportError:  # there is no build of it for this platform
    from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Mapping

# A record reaches 10 MiB and base64 adds a third; 24 MiB is where AWS's own decoders stop.
MAX_FRAME_BYTES: Final = 24 * 1024 * 1024

# The limit on the header block is the specification's; that on their number is fanout's: AWS sends
# 3 or 4.
_MAX_HEADERS_BYTES = 128 * 1024
_MAX_HEADERS = 64

_PRELUDE = struct.Struct(">III")
_CRC = struct.Struct(">I")
_LENGTH = struct.Struct(">H")
_LONG = struct.Struct(">q")
_INTEGERS = {2: struct.Struct(">b"), 3: struct.Struct(">h"), 4: struct.Struct(">i"), 5: _LONG}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

HeaderValue = bool | int | bytes | str | datetime | UUID


@dataclass(frozen=True, slots=True)
class EventStreamFrame:
    """One frame whose checksums are right."""

    headers: Mapping[str, HeaderValue]  # values by name, decoded to the Python type that fits
    payload: memoryview  # a view of the frame's own memory; it lives as long as the frame does

    @property
    def message_type(self) -> str | None:
        """Return `event`, `exception` or `error`; None if the header is missing."""
        return self._text(":message-type")

    @property
    def event_type(self) -> str | None:
        """Return the event's type, for example `SubscribeToShardEvent`."""
        return self._text(":event-type")

    @property
    def exception_type(self) -> str | None:
        """Return the type of a modelled exception, for example `InternalFailureException`."""
        return self._text(":exception-type")

    @property
    def error_code(self) -> str | None:
        """Return the code of an error that the service's model does not know."""
        return self._text(":error-code")

    @property
    def error_message(self) -> str | None:
        """Return the sentence that comes with `error_code`."""
        return self._text(":error-message")

    def _text(self, name: str) -> str | None:
        value = self.headers.get(name)
        if value is None or isinstance(value, str):
            return value
        raise MalformedEventError(
            f"the event stream header {name} holds {type(value).__name__} instead of a string"
        )


class FrameDecoder:
    """Assemble frames from chunks of a response body.

    It holds the frame being assembled and the last chunk, never more: take frames until
    `next_frame` returns None, then feed again. A frame that announces too many bytes is refused
    before memory is allocated for it. After a DamagedFrameError the next frame can be taken. After
    another MalformedEventError the beginning of the next frame is unknown: close the connection.
    """

    __slots__ = (
        "_arrived",
        "_chunk",
        "_frame",
        "_headers_bytes",
        "_max_frame_bytes",
        "_position",
        "_total",
    )

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._chunk = memoryview(b"")
        self._position = 0
        # Holds exactly one frame, and becomes that frame's memory.
        self._frame = bytearray()
        self._arrived = 0
        self._total = 0
        self._headers_bytes = 0

    @property
    def announced(self) -> int:
        """Return the total length of the frame being assembled, 0 before its prelude is there.

        `next_frame` reads and checks the prelude. After it returned None, this is the memory that
        the frame will take, while most of its body is still to come.
        """
        return self._total

    def feed(self, chunk: bytes) -> None:
        """Add the next bytes of the stream, which are referenced until they are taken."""
        if self._position < len(self._chunk):
            raise StreamStateError("take frames until next_frame() returns None, then feed again")
        self._chunk = memoryview(chunk)
        self._position = 0

    def next_frame(self) -> EventStreamFrame | None:
        """Return the next complete frame, or None if more bytes are needed.

        A wrong checksum of the frame or a malformed header is a DamagedFrameError; a wrong length
        or checksum of the prelude is another MalformedEventError.
        """
        if not self._total:
            if not self._assemble(_PRELUDE.size):
                return None
            self._total, self._headers_bytes = _check_prelude(self._frame, self._max_frame_bytes)
        if not self._assemble(self._total):
            return None
        assembled, self._frame = self._frame, bytearray()
        self._arrived = 0
        self._total = 0
        return _parse_frame(assembled, self._headers_bytes)

    def close(self) -> None:
        """Declare the end of the stream, which must not be inside a frame."""
        if arrived := self._arrived:
            expected = self._total or f"at least {_PRELUDE.size + _CRC.size}"
            raise MalformedEventError(
                f"the event stream ended inside a frame: {arrived} of {expected} bytes arrived"
            )

    def _assemble(self, size: int) -> bool:
        """Move bytes from the chunk until the frame has `size` of them; return whether it has."""
        taken = self._chunk[self._position : self._position + size - self._arrived]
        arrived = self._arrived + len(taken)
        if arrived > len(self._frame):
            # The length of a frame that continues in a second chunk is known: all of its memory is
            # allocated now, since growing chunk by chunk costs more than the copies.
            grown = bytearray(size if self._position == 0 else arrived)
            grown[: self._arrived] = self._frame
            self._frame = grown
        memoryview(self._frame)[self._arrived : arrived] = taken
        self._position += len(taken)
        self._arrived = arrived
        return arrived == size


def _check_prelude(frame: bytearray, max_frame_bytes: int) -> tuple[int, int]:
    total, headers, crc = _PRELUDE.unpack_from(frame)
    if crc32(frame[: _PRELUDE.size - _CRC.size]) != crc:
        raise MalformedEventError(
            "the checksum of an event stream frame's prelude does not match, so it is unknown "
            "where the next frame begins"
        )
    if total > max_frame_bytes:
        raise MalformedEventError(
            f"an event stream frame announces {total} bytes, "
            f"more than the {max_frame_bytes} allowed"
        )
    if headers > _MAX_HEADERS_BYTES:
        raise MalformedEventError(
            f"an event stream frame announces {headers} bytes of headers, "
            f"more than the {_MAX_HEADERS_BYTES} that its format allows"
        )
    if total < _PRELUDE.size + headers + _CRC.size:
        raise MalformedEventError(
            f"an event stream frame of {total} bytes cannot hold the {headers} bytes of headers "
            "that it announces"
        )
    return total, headers


def _parse_frame(frame: bytearray, headers_bytes: int) -> EventStreamFrame:
    view = memoryview(frame).toreadonly()
    end = len(view) - _CRC.size
    if crc32(view[:end]) != _CRC.unpack_from(view, end)[0]:
        raise DamagedFrameError("the checksum of an event stream frame does not match")
    payload_start = _PRELUDE.size + headers_bytes
    return EventStreamFrame(
        _parse_headers(view[_PRELUDE.size : payload_start]), view[payload_start:end]
    )


def _parse_headers(data: memoryview) -> dict[str, HeaderValue]:
    headers: dict[str, HeaderValue] = {}
    position = 0
    while position < len(data):
        try:
            name, value, position = _parse_header(data, position)
        except (IndexError, ValueError, OverflowError, struct.error):
            # The cause is left out: a UnicodeDecodeError carries the bytes it could not decode.
            raise DamagedFrameError(
                f"header {len(headers) + 1} of an event stream frame is malformed"
            ) from None
        if not name or name in headers:
            raise DamagedFrameError(
                f"header {len(headers) + 1} of an event stream frame has an empty or repeated name"
            )
        if len(headers) == _MAX_HEADERS:
            raise DamagedFrameError(
                f"an event stream frame has more than the {_MAX_HEADERS} headers allowed"
            )
        headers[name] = value
    return headers


def _parse_header(data: memoryview, start: int) -> tuple[str, HeaderValue, int]:
    """Return a header's name, its value and the offset of its end."""
    # A slice past the end is silently short; the index or unpack that follows each one then fails.
    kind_at = start + 1 + data[start]
    name = str(data[start + 1 : kind_at], "utf-8")
    kind = data[kind_at]
    start = kind_at + 1
    match kind:
        case 0 | 1:
            return name, kind == 0, start
        case 2 | 3 | 4 | 5:
            integer = _INTEGERS[kind]
            return name, integer.unpack_from(data, start)[0], start + integer.size
        case 6:
            value, end = _sized(data, start)
            return name, bytes(value), end
        case 7:
            value, end = _sized(data, start)
            return name, str(value, "utf-8"), end
        case 8:
            (milliseconds,) = _LONG.unpack_from(data, start)
            return name, _EPOCH + timedelta(milliseconds=milliseconds), start + _LONG.size
        case 9:
            return name, UUID(bytes=bytes(data[start : start + 16])), start + 16
        case _:
            raise ValueError(kind)


def _sized(data: memoryview, start: int) -> tuple[memoryview, int]:
    (length,) = _LENGTH.unpack_from(data, start)
    start += _LENGTH.size
    if start + length > len(data):
        raise IndexError(start + length)
    return data[start : start + length], start + length
