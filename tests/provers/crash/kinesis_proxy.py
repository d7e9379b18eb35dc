"""The front of a service: what clients connect to, and what is killed while the data stays.

The real Kinesis keeps its records when the machines that answer clients die. The embedded one keeps
them in its process, so what dies here is a front before it: every connection is reset, and new ones
are refused until it is back.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import asynccontextmanager, closing, suppress
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ("KinesisProxy", "open_kinesis_proxy")

_CHUNK = 1 << 16
# A close that sends a reset, as the kernel does for a process that was killed.
_RESET = (socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@final
class KinesisProxy:
    """Carry bytes between clients and a service; made by `open_kinesis_proxy`.

    Args:
        host: Where the service is.
        port: Its port.
        tasks: What owns the connections.
    """

    def __init__(self, host: str, port: int, tasks: asyncio.TaskGroup) -> None:
        self._service = (host, port)
        self._tasks = tasks
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._port = 0

    @property
    def url(self) -> str:
        """The address that clients connect to, the same after a restart."""
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Accept connections."""
        assert self._server is None
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def kill(self) -> None:
        """Reset every connection, and refuse new ones until `start`."""
        if self._server is not None:
            self._server.close()
            self._server = None
        await self.cut()

    async def cut(self) -> None:
        """Reset every connection; new ones are accepted."""
        connections = tuple(self._connections)
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        connection = self._tasks.create_task(self._connect(reader, back))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)
        # Also where it is cancelled before it has begun.
        connection.add_done_callback(lambda _: back.close())

    async def _connect(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError):
                answer, service = await asyncio.open_connection(*self._service)
                with closing(service):
                    async with asyncio.TaskGroup() as both:
                        upwards = both.create_task(_carry(client, service))
                        await _carry(answer, back)
                        upwards.cancel()
        except asyncio.CancelledError:
            back.get_extra_info("socket").setsockopt(*_RESET)
            back.transport.abort()
            raise


@asynccontextmanager
async def open_kinesis_proxy(host: str, port: int) -> AsyncIterator[KinesisProxy]:
    """Stand before a service while the block runs.

    Args:
        host: Where the service is.
        port: Its port.
    """
    async with asyncio.TaskGroup() as tasks:
        front = KinesisProxy(host, port, tasks)
        await front.start()
        try:
            yield front
        finally:
            await front.kill()


async def _carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(_CHUNK):
            sink.write(data)
            await sink.drain()
