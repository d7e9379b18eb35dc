"""A lander's end of the control channel."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, final

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as open_websocket
from websockets.exceptions import InvalidHandshake

from fanout.core.error_text import text_of
from fanout.errors import SetupError
from fanout.landers.control_handshake import HandshakeFailedError, greet_driver
from fanout.landers.websocket_channel import (
    CLOSE_SECONDS,
    MAX_MESSAGE_BYTES,
    MAX_WAITING_FRAMES,
    SILENT_LOGGER,
    AbortableConnection,
    WebSocketChannel,
    cut,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fanout.landers.channel import Channel


@final
class _DriverConnection(AbortableConnection, ClientConnection):
    """A connection to the driver."""


@final
class _OneAddress(open_websocket):
    """A connection that goes to the address that it was given, and to no other."""

    def process_redirect(self, exc: Exception) -> Exception:
        """Follow no redirect."""
        return exc


@asynccontextmanager
async def connect(
    address: tuple[str, int],
    secret: bytes,
    *,
    connect_timeout: float = 10.0,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Channel]:
    """Connect to the driver, and close the channel at the end of the context.

    Both sides must have proved themselves within `connect_timeout` seconds. A driver that cannot be
    reached in time, or something else that answers, is a SetupError.
    """
    name = f"{address[0]}:{address[1]}"
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    opening = _OneAddress(
        f"{'wss' if tls else 'ws'}://{host}:{address[1]}/",
        ssl=tls,
        compression=None,
        proxy=None,
        user_agent_header=None,
        open_timeout=None,
        ping_interval=None,  # the messages have a beat of their own
        close_timeout=CLOSE_SECONDS,
        max_size=MAX_MESSAGE_BYTES,
        max_queue=MAX_WAITING_FRAMES,
        logger=SILENT_LOGGER,
        create_connection=_DriverConnection,
    )
    connection = None
    try:
        async with asyncio.timeout(connect_timeout):
            connection = await opening
            await greet_driver(connection, secret)
    except BaseException as error:
        if connection is not None:
            await cut(connection)
        match error:
            case TimeoutError():
                reason = f"no answer within {connect_timeout:g} s"
            case HandshakeFailedError() | InvalidHandshake() | ssl.SSLError():
                raise SetupError(
                    f"{name} answers, but not as the driver of this query: {text_of(error)}; an "
                    "older run or another program may have the port of control_port="
                ) from error
            case OSError():
                reason = text_of(error)
            case _:
                raise
        raise SetupError(
            f"this executor cannot reach the driver at {name}: {reason}; let executors connect to "
            "that port, or name one that they may connect to: control_port="
        ) from error
    channel = WebSocketChannel(connection)
    try:
        yield channel
    finally:
        await channel.close()
