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

    The connections are counted from here on, as a stranger may also say nothing during the
    handshake of TLS or of HTTP.

    Args:
        family: `AF_INET` or `AF_INET6`.
        address: The host and port, and what else a socket's address has.

    Raises:
        OSError: If the address cannot be bound.
    """

    def __init__(self, family: int, address: Any) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        self._strangers: dict[socket.socket, asyncio.TimerHandle] = {}
        try:
            self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.bind(address)
        except OSError:
            self.close()
            raise

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection, as a stranger's."""
        stranger, address = super().accept()
        for gone in [each for each in self._strangers if each.fileno() == -1]:
            self._strangers.pop(gone).cancel()
        if len(self._strangers) >= MAX_STRANGERS:
            self._turn_away(next(iter(self._strangers)))
        timer = asyncio.get_running_loop().call_later(HANDSHAKE_SECONDS, self._turn_away, stranger)
        self._strangers[stranger] = timer
        return stranger, address

    def admit(self, number: int) -> None:
        """Count a connection no longer, as it has proved itself.

        Args:
            number: The file descriptor of its socket.
        """
        for stranger in [each for each in self._strangers if each.fileno() == number]:
            self._strangers.pop(stranger).cancel()

    def turn_all_away(self) -> None:
        """Close the connections of all strangers."""
        for stranger in list(self._strangers):
            self._turn_away(stranger)

    def _turn_away(self, stranger: socket.socket) -> None:
        self._strangers.pop(stranger).cancel()
        # The event loop owns the socket. It sees the end of the stream, and closes the socket.
        with suppress(OSError):
            log.debug("closed a control connection without proof from %s", stranger.getpeername())
            stranger.shutdown(socket.SHUT_RDWR)
