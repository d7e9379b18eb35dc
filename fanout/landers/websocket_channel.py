"""A channel over a websocket, and what both ends of it have in common."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, final

from websockets.asyncio.connection import Connection
from websockets.exceptions import ConnectionClosed
from websockets.protocol import State

from fanout.core.cancellation import finished
from fanout.core.error_text import text_of
from fanout.landers.channel import ChannelClosedError

# The report of a segment with records of 5,000 splits is about 1 MiB.
MAX_MESSAGE_BYTES: Final = 16 * 2**20
# A received frame waits for its reader, and one more; then the socket is not read.
MAX_WAITING_FRAMES: Final = 1
CLOSE_SECONDS: Final = 2.0

# At DEBUG the websockets library logs the bytes of each message, those of the handshake too. No
# configuration of the process reaches this logger.
SILENT_LOGGER: Final = logging.Logger(  # noqa: LOG001
    "fanout.landers.websockets", logging.CRITICAL + 1
)


@final
class _LostTransport(asyncio.Transport):
    """The transport of a connection that is lost."""

    def abort(self) -> None:
        """Do nothing, as nothing is left to abort."""


class AbortableConnection(Connection):
    """A websocket that can be aborted when it is lost already; the library does that too.

    asyncio's transport then raises AttributeError where the connection ended while bytes waited.
    """

    def connection_lost(self, exc: Exception | None) -> None:
        """End what uses the connection."""
        super().connection_lost(exc)
        self.transport = _LostTransport()


@final
class WebSocketChannel:
    """Send and receive binary messages over an authenticated websocket, which it closes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = asyncio.Lock()

    async def send(self, message: bytes) -> None:
        """Send a message; wait while the other side reads too slowly.

        A message longer than MAX_MESSAGE_BYTES is a ValueError. For the rest see `Channel`.
        """
        if len(message) > MAX_MESSAGE_BYTES:
            raise ValueError(f"a message of {len(message)} bytes exceeds {MAX_MESSAGE_BYTES}")
        try:
            # The library buffers each message that it is given: one at a time bounds the memory.
            async with self._sending:
                await self._connection.send(message)
        except ConnectionClosed as error:
            raise _closed(error) from error
        if self._connection.state is not State.OPEN:
            raise ChannelClosedError("the control channel was closed while a message was sent")

    async def receive(self) -> bytes:
        """Return the next message; a text is a ChannelClosedError. See `Channel`."""
        try:
            message = await self._connection.recv()
        except ConnectionClosed as error:
            raise _closed(error) from error
        if isinstance(message, str):
            await cut(self._connection)
            raise ChannelClosedError("the other side sent text over the control channel")
        return message

    async def close(self) -> None:
        """Send what waits, then close the websocket; cut it where that takes CLOSE_SECONDS.

        Cancellation: the websocket is cut at once.
        """
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._connection.close()
        except TimeoutError:
            pass
        finally:
            await cut(self._connection)


async def cut(connection: Connection) -> None:
    """End a connection at once, without a word to the other side.

    Cancellation: raised when the socket is closed.
    """
    connection.transport.abort()
    await finished(asyncio.create_task(connection.wait_closed()))


def _closed(error: ConnectionClosed) -> ChannelClosedError:
    reason = error.__cause__ if isinstance(error.__cause__, OSError) else error
    return ChannelClosedError(f"the control channel has ended: {text_of(reason)}")
