"""Frames, each received into the memory in which it is read.

A frame is 32 bits that say how many bytes follow, and these bytes:
https://kafka.apache.org/protocol.html#protocol_common
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("Frame", "Frames")

_LENGTH_BYTES: Final = 4
_LEAST: Final = 4  # every answer begins with the number of its request
# A frame that announces more gets more when this much has come: what a broken peer announces is
# not taken at its word.
_AT_ONCE: Final = 16 * 1024 * 1024
# Names and numbers are shorter, only record batches are not.
_COPIED: Final = 32 * 1024


@final
class Frame:
    """A frame as a file, from which aiokafka's types read.

    Args:
        data: Its bytes, which nobody changes any more.
    """

    def __init__(self, data: bytearray) -> None:
        self._data = memoryview(data).toreadonly()
        self._at = 0

    def read(self, nbytes: int) -> bytes | memoryview:
        """Return the next bytes; where they are many, they are not copied."""
        piece = self._data[self._at : self._at + nbytes]
        self._at += nbytes
        return piece if nbytes > _COPIED else bytes(piece)


@final
class Frames(asyncio.BufferedProtocol):
    """Receive frames in place of a protocol that would copy them.

    Args:
        replaced: That protocol, which is told everything but the bytes.
        take: Called with each frame.
        fail: Called once with what is wrong, where no frame can follow.
    """

    def __init__(
        self,
        replaced: asyncio.Protocol,
        take: Callable[[Frame], None],
        fail: Callable[[str], None],
    ) -> None:
        self._replaced = replaced
        self._take = take
        self._fail = fail
        self._length: int | None = None  # None while the length itself is received
        self._buffer = bytearray(_LENGTH_BYTES)
        self._received = 0

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the base's signature
        """Return where the rest of the frame, and no byte of the next one, is received."""
        return memoryview(self._buffer)[self._received :]

    def buffer_updated(self, nbytes: int) -> None:
        """Note that bytes have been received."""
        self._received += nbytes
        if self._received < len(self._buffer):
            return
        received, length = self._buffer, self._length
        if length is None:
            self._expect(int.from_bytes(received, signed=True))
        elif len(received) < length:
            self._buffer = bytearray(min(length, 2 * len(received)))
            self._buffer[: len(received)] = received
        else:
            self._length, self._buffer, self._received = None, bytearray(_LENGTH_BYTES), 0
            self._take(Frame(received))

    def _expect(self, length: int) -> None:
        if length < _LEAST:
            self._fail(f"an answer cannot have {length} bytes")
        else:
            self._length, self._buffer, self._received = length, bytearray(min(length, _AT_ONCE)), 0

    def eof_received(self) -> bool | None:
        """Pass on that nothing follows."""
        return self._replaced.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass on that the connection is gone."""
        self._replaced.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass on that the peer does not keep up."""
        self._replaced.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that the peer keeps up again."""
        self._replaced.resume_writing()
