"""A peer that speaks Kafka's protocol as far as a test wants it to."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from aiokafka.protocol.admin import ApiVersionResponse_v0
from aiokafka.protocol.fetch import FetchRequest, FetchResponse_v11
from aiokafka.protocol.produce import ProduceRequest, ProduceResponse_v7

from fanout.kafka.protocol.broker_connection import BrokerConnection

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Awaitable, Callable

REQUEST = FetchRequest(10, 1, 1000, 1, [("orders", [(0, 0, 1000)])], "")
RECORDS = ProduceRequest(None, -1, 1000, [("orders", [(0, (b"header", b"records"))])])
VERSIONS = ApiVersionResponse_v0(
    0, [(FetchRequest.API_KEY, 4, 11), (ProduceRequest.API_KEY, 3, 7)]
).encode()


Respond: TypeAlias = "Callable[[asyncio.StreamWriter, int], Awaitable[None]]"
"""The reaction of a peer to a request, by its number; the first request is for versions."""


def frame(number: int, body: bytes) -> bytes:
    """Return an answer as it is sent."""
    return (len(body) + 4).to_bytes(4) + number.to_bytes(4) + body


def fetched(*batches: bytes | None, topic: str = "orders") -> bytes:
    """Return an answer that has these bytes for partitions 0, 1, and so on."""
    rows = [(number, 0, 9, 9, 0, [(7, 2)], -1, data) for number, data in enumerate(batches)]
    answer: bytes = FetchResponse_v11(0, 0, 0, [(topic, rows)]).encode()
    return answer


def appended(offset: int) -> bytes:
    """Return an answer that says where the records of partition 0 are."""
    rows = [(0, 0, offset, -1, 0)]
    answer: bytes = ProduceResponse_v7([("orders", rows)], 0).encode()
    return answer


def batches_of(response: Any) -> list[bytes | memoryview | None]:
    """Return what an answer has for its partitions."""
    return [row[-1] for _, rows in response.topics for row in rows]


def ask(connection: BrokerConnection, request: Any = REQUEST) -> asyncio.Task[Any]:
    """Send a request now, and wait for its answer in a task."""
    answer: Any = connection.send(request)
    return asyncio.create_task(answer)


@asynccontextmanager
async def connected(
    respond: Respond, tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None, **options: Any
) -> AsyncIterator[BrokerConnection]:
    """Connect to a peer on this machine.

    Args:
        respond: What the peer does about each request.
        tls: The contexts of the peer and of the connection, if they talk by TLS.
        options: Those of the connection.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                request = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
                number = int.from_bytes(request[4:8])
                if number == 1:
                    writer.write(frame(number, VERSIONS))
                else:
                    await respond(writer, number)
        except (EOFError, ConnectionError):
            pass
        finally:
            writer.transport.abort()

    theirs, ours = tls or (None, None)
    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=theirs) as server:
        port = server.sockets[0].getsockname()[1]
        protocol = "PLAINTEXT" if ours is None else "SSL"
        options = {"security_protocol": protocol, "ssl_context": ours, **options}
        connection = BrokerConnection("127.0.0.1", port, **options)
        await connection.connect()
        try:
            yield connection
        finally:
            await connection.close()
