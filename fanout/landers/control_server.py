"""The driver's end of the control channel: it serves landers, and gives strangers nothing."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, cast, final

from websockets.asyncio.server import ServerConnection, serve

from fanout.core.cancellation import TaskScope, finished
from fanout.core.error_text import text_of
from fanout.errors import SetupError
from fanout.landers.channel import ChannelClosedError
from fanout.landers.control_handshake import SECRET_BYTES, HandshakeFailedError, admit_lander
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
    import ssl
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from websockets.asyncio.server import Server

    from fanout.landers.channel import Channel

log = logging.getLogger(__name__)

# A connection that has not proved itself after this time is closed.
HANDSHAKE_SECONDS: Final = 5.0
# Of more connections than this that have not proved themselves, the oldest is closed.
MAX_STRANGERS: Final = 64
# The request of a lander has about 200 bytes, and its proof 70.
_MAX_BYTES_OF_A_STRANGER: Final = 4096


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


@final
class _LanderConnection(AbortableConnection, ServerConnection):
    """A connection that reads little before it is admitted, and answers a stranger nothing."""

    admitted = False
    _received = 0

    def __init__(self, *arguments: Any, listener: ControlListener, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._listener = listener

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin: the server knows the connection from now on."""
        super().connection_made(transport)
        self._listener.arrived(transport.get_extra_info("socket").fileno())

    def data_received(self, data: bytes) -> None:
        """Read what the other side sent, and no more than a lander needs to prove itself."""
        self._received += len(data)
        if not self.admitted and self._received > _MAX_BYTES_OF_A_STRANGER:
            self.transport.abort()
        else:
            super().data_received(data)

    def send_data(self) -> None:
        """Send what waits, but no HTTP error."""
        if self.protocol.handshake_exc is not None:
            self.transport.abort()
        else:
            super().send_data()


@final
class ControlServer:
    """Listen for landers while the context is entered, and serve each over a channel.

    Leaving the context cancels what serves, closes all connections, and waits for both. Port 0
    takes any that is free. `serve` gets a lander that has proved itself; the connection is closed
    when it returns, or raises ChannelClosedError. Any other error of it ends the context, in an
    ExceptionGroup.
    """

    address: tuple[str, int]  # the host and port that it listens on

    def __init__(
        self,
        host: str,
        port: int,
        secret: bytes,
        serve: Callable[[Channel], Awaitable[None]],
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        if len(secret) != SECRET_BYTES:
            raise ValueError(f"the secret must have {SECRET_BYTES} bytes")
        self._wanted = (host, port)
        self._secret = secret
        self._serve = serve
        self._tls = tls
        self._serving: set[asyncio.Task[None]] = set()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Listen, or raise SetupError."""
        async with AsyncExitStack() as stack:
            self._listener = await _listener(*self._wanted)
            stack.callback(self._listener.close)
            self.address = self._listener.getsockname()[:2]
            self._scope = await stack.enter_async_context(TaskScope())
            server = await serve(
                self._connected,
                sock=self._listener,
                ssl=self._tls,
                compression=None,
                server_header=None,
                open_timeout=HANDSHAKE_SECONDS,
                ping_interval=None,  # the messages have a beat of their own
                close_timeout=CLOSE_SECONDS,
                max_size=MAX_MESSAGE_BYTES,
                max_queue=MAX_WAITING_FRAMES,
                logger=SILENT_LOGGER,
                create_connection=partial(_LanderConnection, listener=self._listener),  # type: ignore[arg-type]
                start_serving=False,
            )
            stack.push_async_callback(self._stop, server)
            await server.start_serving()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        """Cancel what serves, close all connections, and wait for both, at most some seconds."""
        return await self._stack.__aexit__(kind, error, traceback)

    async def _stop(self, server: Server) -> None:
        await self._listener.leave()
        server.close()
        for task in self._serving:
            task.cancel()
        await finished(asyncio.create_task(server.wait_closed()))

    async def _connected(self, connection: ServerConnection) -> None:
        lander = cast("_LanderConnection", connection)
        try:
            await admit_lander(lander, self._secret)
        except HandshakeFailedError as error:
            log.debug("refused a control connection from %s: %s", lander.remote_address, error)
            await cut(lander)
            return
        lander.admitted = True
        taken: socket.socket = lander.transport.get_extra_info("socket")
        self._listener.admit(taken.fileno())
        await self._in_the_group(WebSocketChannel(lander))

    async def _in_the_group(self, channel: Channel) -> None:
        """Serve in a task of the context's group, so that its error ends the context."""
        serving = self._serve_until_closed(channel)
        try:
            task = self._scope.spawn(serving)
        except RuntimeError:  # the group is ending
            serving.close()
            return
        self._serving.add(task)
        await asyncio.wait([task])
        self._serving.discard(task)

    async def _serve_until_closed(self, channel: Channel) -> None:
        try:
            await self._serve(channel)
        except ChannelClosedError as error:
            log.debug("a control connection has ended: %s", error)
        finally:
            await channel.close()


async def _listener(host: str, port: int) -> ControlListener:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port)
        return ControlListener(found[0][0], found[0][4])
    except OSError as error:
        raise SetupError(
            f"control_port={port}: the driver cannot listen on {host}:{port}: {text_of(error)}; "
            "choose a port that is free, or 0 for any"
        ) from error
