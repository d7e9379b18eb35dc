"""Receive the answers of a broker without copies, into the memory in which they are decoded.

A frame begins with 32 bits for the number of bytes that follow:
https://kafka.apache.org/protocol.html#protocol_common
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

_LENGTH_BYTES: Final = 4
_LEAST: Final = 4  # every answer begins with the number of its request
# A longer frame gets more memory when this much has come: the length that a broken peer announces
# is not trusted.
_AT_ONCE: Final = 16 * 1024 * 1024
# Shorter pieces are copied: only record batches are long.
_COPIED: Final = 32 * 1024
# A block of 32 MiB would have no effect, see DEFAULT_MMAP_THRESHOLD_MAX in glibc's malloc.c.
_KEPT: Final = 31 * 1024 * 1024


@final
class ResponseFrame:
    """A received answer as a file, from which aiokafka's types read.

    Args:
        data: Its bytes, which must not change any more.
    """

    def __init__(self, data: bytearray | memoryview) -> None:
        self._data = memoryview(data).toreadonly()
        self._at = 0

    def read(self, nbytes: int) -> bytes | memoryview:
        """Return the next bytes; a large piece is a view, not a copy."""
        piece = self._data[self._at : self._at + nbytes]
        self._at += nbytes
        return piece if nbytes > _COPIED else bytes(piece)


@final
class ResponseReceiver(asyncio.BufferedProtocol):
    """Receive answers on a connection.

    Args:
        take: Called with each answer.
        fail: Called once with the reason if no answer can follow.
        lost: Called when the connection is closed, with the error if there is one.
        writable: Set while the write buffer has room.

    Attributes:
        least: The fewest bytes that an answer has.
    """

    def __init__(
        self,
        take: Callable[[ResponseFrame], None],
        fail: Callable[[str], None],
        lost: Callable[[Exception | None], None],
        writable: asyncio.Event,
    ) -> None:
        self._take = take
        self._fail = fail
        self._lost = lost
        self._writable = writable
        self.least = _LEAST
        self._length: int | None = None  # None while the length itself is received
        self._buffer = _memory(_LENGTH_BYTES)
        self._received = 0

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the base's signature
        """Return the memory for the rest of the frame, without room for the next frame."""
        return self._buffer[self._received :]

    def buffer_updated(self, nbytes: int) -> None:
        """Handle received bytes."""
        self._received += nbytes
        if self._received < len(self._buffer):
            return
        received, length = self._buffer, self._length
        if length is None:
            self._expect(int.from_bytes(received, signed=True))
        elif len(received) < length:
            self._buffer = _memory(min(length, 2 * len(received)))
            self._buffer[: len(received)] = received
        else:
            self._length, self._buffer, self._received = None, _memory(_LENGTH_BYTES), 0
            self._take(ResponseFrame(received))

    def _expect(self, length: int) -> None:
        if length < self.least:
            self._fail(f"an answer cannot have {length} bytes")
        elif length == 0:
            self._received = 0
            self._take(ResponseFrame(memoryview(b"")))
        else:
            self._length, self._buffer, self._received = length, _memory(min(length, _AT_ONCE)), 0

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end of the connection."""
        self._writable.set()
        self._lost(exc)

    def pause_writing(self) -> None:
        """Note that the write buffer is full."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Note that the write buffer has room again."""
        self._writable.set()


def _memory(nbytes: int) -> memoryview:
    """Return memory that is written before it is read; a bytearray would be filled with zeros."""
    return np.empty(nbytes, np.uint8).data


def keep_freed_memory() -> None:
    """Make glibc keep the freed memory of answers for later answers.

    Otherwise it returns most of that memory to the kernel each time, and new pages for an answer
    take three times as long as everything else to receive it. glibc keeps twice the size of the
    largest block that it has mapped and freed, see M_MMAP_THRESHOLD and M_TRIM_THRESHOLD in
    mallopt(3); a block without a write takes no memory.
    """
    bytes(_KEPT)
