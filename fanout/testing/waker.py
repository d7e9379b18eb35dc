"""Wake a thread that waits for sockets."""

from __future__ import annotations

import socket
from contextlib import suppress


class Waker:
    """A socket that becomes readable when another thread calls `wake`."""

    def __init__(self) -> None:
        self._wakes, self._woken = socket.socketpair()
        for end in (self._wakes, self._woken):
            end.settimeout(0)

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._woken.fileno()

    def wake(self) -> None:
        """Make the descriptor readable; safe for threads."""
        # A full one is readable, and a closed one has nobody who waits.
        with suppress(OSError):
            self._wakes.send(b"\0")

    def clear(self) -> None:
        """Take back all wakes so far."""
        with suppress(BlockingIOError):
            self._woken.recv(4096)

    def close(self) -> None:
        """Close both ends."""
        self._wakes.close()
        self._woken.close()
