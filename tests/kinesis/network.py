"""A network between a reader and its service that does to subscriptions what networks do."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from contextlib import asynccontextmanager, closing, suppress
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    # Carries the answer to a subscribe call from the service to the reader.
    Carrier: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

_SUBSCRIBING = b"Kinesis_20131202.SubscribeToShard"


class Network:
    """Carry bytes to a service and back.

    Args:
        endpoint_url: The service.
        carriers: The treatment of the answers of the first subscribe calls, in turn; those after
            them are carried as they are.
    """

    def __init__(self, endpoint_url: str, *carriers: Carrier) -> None:
        self._service = urlsplit(endpoint_url)
        self._carriers = deque(carriers)
        self.left = len(carriers)
        self.url = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Network]:
        """Accept connections for as long as the block runs, and cut all of them at its end."""
        async with asyncio.TaskGroup() as tasks:
            connections: list[asyncio.Task[None]] = []

            def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                connection = tasks.create_task(self._connect(reader, writer))
                # Also where it is cancelled before it has begun, or while it is opening the other.
                connection.add_done_callback(lambda _: writer.close())
                connections.append(connection)

            async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
                self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
                yield self
                for connection in connections:
                    connection.cancel()

    async def _connect(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        answer, service = await asyncio.open_connection(self._service.hostname, self._service.port)
        with closing(service), suppress(OSError, asyncio.IncompleteReadError):
            request = await client.read(1 << 16)
            service.write(request)
            if _SUBSCRIBING in request and self._carriers:
                carry = self._carriers.popleft()
                self.left -= 1
                await carry(answer, back)
                return
            async with asyncio.TaskGroup() as both:
                upwards = both.create_task(whole(client, service))
                await whole(answer, back)
                upwards.cancel()


async def whole(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Carry all bytes, until one of the two is gone."""
    with suppress(ConnectionError):
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()


def cut(after: int, *, reset: bool = False) -> Carrier:
    """Close the connection after so many bytes: in good order, or with a reset."""

    async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        sink.write(await source.readexactly(after))
        await sink.drain()
        if reset:
            linger_no_time = struct.pack("ii", 1, 0)
            sink.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, linger_no_time
            )

    return carry


def trickle(after: int, seconds: float) -> Carrier:
    """Carry so many bytes at once, and then one at a time with a pause before each."""

    async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        sink.write(await source.readexactly(after))
        while byte := await source.read(1):
            await asyncio.sleep(seconds)
            sink.write(byte)
            await sink.drain()

    return carry


def lose(after: int) -> Carrier:
    """Carry so many bytes and lose the others without an error: the connection is half open."""

    async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        sink.write(await source.readexactly(after))
        while await source.read(1 << 16):
            pass
        await asyncio.Event().wait()

    return carry


def delay(until: asyncio.Event) -> Carrier:
    """Carry nothing before something has happened, and then all."""

    async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        await until.wait()
        await whole(source, sink)

    return carry
