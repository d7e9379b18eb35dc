"""The listening socket of the control channel, and the bound on connections of strangers."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress
from typing import Any, Final, final

log = logging.getLogger(__name__)

# A connection that has not proved itself after this time is closed.
HANDSHAKE_SECONDS: Final = 5.0
# Of more connections than this that have not proved themselves, the oldest is closed.
MAX_STRANGERS: Final = 64


@final
class ControlListener(socket.socket):
    """Accept connections, and close those that do not prove themselves in time.

    The connections are counted from here on, by their file descriptors, as a stranger may also say
    nothing during the handshake of TLS or of HTTP. An address that cannot be bound is an OSError.
    """

    def __init__(self, family: int, address: Any) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        self._strangers: dict[socket.socket, asyncio.TimerHandle] = {}
        self._arriving: set[socket.socket] = set()
        self._leaving = False
        try:
            self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.bind(address)
        except OSError:
            self.close()
            raise

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection, as a stranger's."""
        stranger, address = super().accept()
        if self._leaving:
            stranger.close()
            raise BlockingIOError("the driver leaves")
        for gone in [each for each in self._strangers if each.fileno() == -1]:
            self._strangers.pop(gone).cancel()
        if len(self._strangers) >= MAX_STRANGERS:
            self._turn_away(next(iter(self._strangers)))
        timer = asyncio.get_running_loop().call_later(HANDSHAKE_SECONDS, self._turn_away, stranger)
        self._strangers[stranger] = timer
        self._arriving.add(stranger)
        return stranger, address

    def arrived(self, number: int) -> None:
        """Note that an accepted socket has become a connection of the server."""
        self._arriving = {each for each in self._arriving if each.fileno() != number}

    async def leave(self) -> None:
        """Accept nothing more, close the connections of strangers, and wait for those under way.

        The event loop makes a connection of an accepted socket in a task of its own, for which
        `Server.wait_closed` of asyncio does not wait.
        """
        self._leaving = True
        self._turn_all_away()
        while any(each.fileno() != -1 for each in self._arriving):  # noqa: ASYNC110 - the loop does not tell
            await asyncio.sleep(0)

    def admit(self, number: int) -> None:
        """Count a connection no longer, as it has proved itself."""
        for stranger in [each for each in self._strangers if each.fileno() == number]:
            self._strangers.pop(stranger).cancel()

    def _turn_all_away(self) -> None:
        for stranger in list(self._strangers):
            self._turn_away(stranger)

    def _turn_away(self, stranger: socket.socket) -> None:
        self._strangers.pop(stranger).cancel()
        # The event loop owns the socket. It sees the end of the stream, and closes the socket.
        with suppress(OSError):
            log.debug("closed a control connection without proof from %s", stranger.getpeername())
            stranger.shutdown(socket.SHUT_RDWR)
