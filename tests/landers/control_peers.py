"""Both ends of a control channel, and strangers."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fanout.landers.channel import ChannelClosedError

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator

    from fanout.landers.channel import Channel
    from fanout.landers.control_server import ControlServer

SECRET = b"canary-secret-of-32-bytes-length"
UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: driver\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


async def echo(channel: Channel) -> None:
    while True:
        await channel.send(b"echo " + await channel.receive())


class Served:
    """Serve a channel by leaving it to the test."""

    def __init__(self) -> None:
        self.channels: asyncio.Queue[Channel] = asyncio.Queue()
        self.count = 0
        self.ended = asyncio.Event()

    async def __call__(self, channel: Channel) -> None:
        self.count += 1
        self.channels.put_nowait(channel)
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()


class Received:
    """Serve channels by receiving until they end."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[bytes | ChannelClosedError] = asyncio.Queue()

    async def __call__(self, channel: Channel) -> None:
        try:
            while True:
                self.messages.put_nowait(await channel.receive())
        except ChannelClosedError as error:
            self.messages.put_nowait(error)


class Stranger:
    """A bare TCP connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def upgrade(self) -> bytes:
        """Become a websocket; return the driver's nonce."""
        self.writer.write(UPGRADE)
        assert (await self.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        return (await self.frame())[1]

    def send(self, payload: bytes, opcode: int = 2, announced: int | None = None) -> None:
        """Send a frame, whose mask changes nothing."""
        length = len(payload) if announced is None else announced
        size = bytes([0x80 | length]) if length < 126 else b"\xff" + length.to_bytes(8, "big")
        self.writer.write(bytes([0x80 | opcode]) + size + bytes(4) + payload)

    async def frame(self) -> tuple[int, bytes]:
        """Return the opcode and payload of the next short frame."""
        head = await self.reader.readexactly(2)
        return head[0] & 15, await self.reader.readexactly(head[1])

    async def rest(self) -> bytes:
        """Return what else the driver sends until it ends the connection."""
        try:
            return await self.reader.read()
        except ConnectionResetError:
            return b""


@asynccontextmanager
async def stranger(
    server: ControlServer, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Stranger]:
    reader, writer = await asyncio.open_connection(*server.address, ssl=tls)
    try:
        yield Stranger(reader, writer)
    finally:
        writer.transport.abort()


def others() -> set[asyncio.Task[object]]:
    """Return all tasks of the loop but the running one."""
    return asyncio.all_tasks() - {asyncio.current_task()}
