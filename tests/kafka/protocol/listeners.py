"""Servers that a client may meet where it expects a Kafka broker."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from aiokafka.protocol.admin import ApiVersionResponse_v0, SaslHandShakeResponse_v1
from aiokafka.protocol.metadata import MetadataResponse_v5

from fanout.kafka.cluster import Server
from tests.kafka.protocol.peer import frame

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Awaitable, Callable

Serve: TypeAlias = "Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]"

_VERSIONS, _HANDSHAKE, _METADATA = 18, 17, 3
_LONGEST = 100 * 1024 * 1024  # a broker's socket.request.max.bytes
_NO_SASL, _NO_SUCH_MECHANISM = 34, 33


@dataclass
class ChangingTimeouts:
    """The timeouts of connections, in seconds; those that are made later have what is set then."""

    request_timeout: float
    connections_max_idle: float = 540.0


@asynccontextmanager
async def listening(
    serve: Serve, port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Server]:
    """Serve on this machine; leaving the context ends every connection."""
    tasks: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(EOFError, ConnectionError):
            await serve(reader, writer)

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(handle(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        # Also where it is cancelled before it has begun.
        task.add_done_callback(lambda _: writer.transport.abort())

    server = await asyncio.start_server(accept, "127.0.0.1", port, ssl=tls)
    try:
        yield Server("127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        # asyncio leaves a socket open whose server is closed just after it was accepted.
        for _ in range(3):
            await asyncio.sleep(0)
        server.close()
        for task in [*tasks]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    """Take everything, and answer nothing."""
    while await reader.read(1 << 16):
        pass


async def closing(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    """Close the connection when something comes."""
    await reader.read(1)


async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the first line as an HTTP server does."""
    await reader.readline()
    writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
    await writer.drain()


async def greeting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Speak first, as an SSH server does."""
    writer.write(b"SSH-2.0-Server\r\n")
    await silent(reader, writer)


async def numbered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer with frames as a broker does, but not those of the requests."""
    while int.from_bytes(await reader.read(1 << 16)):
        writer.write(frame(7, b"anything"))


def broker(*mechanisms: str, advertised: tuple[Server, ...] = (), without: int = _NO_SASL) -> Serve:
    """Return a listener of Kafka, with SASL if it has mechanisms; a request without it is closed.

    No user can enter: the exchange of a mechanism is never answered.

    Args:
        mechanisms: The SASL mechanisms.
        advertised: The brokers in metadata.
        without: The code of the answer to a handshake where there are no mechanisms.
    """
    brokers = [(number, at.host, at.port, None) for number, at in enumerate(advertised)]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (length := int.from_bytes(await reader.readexactly(4))) < _LONGEST:
            request = await reader.readexactly(length)
            kind, number = int.from_bytes(request[:2]), int.from_bytes(request[4:8])
            if kind == _VERSIONS:
                ranges = [(_METADATA, 0, 5), (_HANDSHAKE, 0, 1), (_VERSIONS, 0, 0)]
                answer = ApiVersionResponse_v0(0, ranges)
            elif kind == _HANDSHAKE:
                wanted = request.rpartition(b"\0")[2][1:].decode()
                code = 0 if wanted in mechanisms else _NO_SUCH_MECHANISM
                answer = SaslHandShakeResponse_v1(code if mechanisms else without, [*mechanisms])
            elif kind == _METADATA and not mechanisms:
                answer = MetadataResponse_v5(0, brokers, "scripted", -1, [])
            else:
                return
            writer.write(frame(number, answer.encode()))

    return serve
