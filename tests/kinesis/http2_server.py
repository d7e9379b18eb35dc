"""A server of HTTP/2 that a test drives: it answers what the test tells it to, and when."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, RequestReceived, StreamEnded
from h2.settings import SettingCodes

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable


class Http2Server:
    """The server's side of all connections.

    Args:
        streams: How many streams a connection may have.
        answer: Called with the connection and the number of each request that has arrived.
    """

    def __init__(self, answer: Callable[[ServerSide, int], None], *, streams: int = 100) -> None:
        self.connections: list[ServerSide] = []
        self.url = ""
        self._answer = answer
        self._streams = streams
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def running(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[Http2Server]:
        """Serve for as long as the block runs."""
        async with asyncio.TaskGroup() as tasks:
            served: list[asyncio.Task[None]] = []

            def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                connection = tasks.create_task(self._serve(reader, writer))
                # Also where it is cancelled before it has begun.
                connection.add_done_callback(lambda _: writer.close())
                served.append(connection)

            async with await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls) as server:
                scheme, host = ("https", "localhost") if tls else ("http", "127.0.0.1")
                self.url = f"{scheme}://{host}:{server.sockets[0].getsockname()[1]}"
                yield self
                for task in served:
                    task.cancel()

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until something that a client does is true."""
        async with asyncio.timeout(20):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        side = ServerSide(writer, self._streams)
        self.connections.append(side)
        try:
            with suppress(OSError):
                while data := await reader.read(1 << 16):
                    for event in side.receive(data):
                        if isinstance(event, StreamEnded):
                            self._answer(side, event.stream_id)
                    side.flush()
                    self._changed.set()
        finally:
            side.closed = True
            self._changed.set()


class ServerSide:
    """The server's side of one connection."""

    def __init__(self, writer: asyncio.StreamWriter, streams: int) -> None:
        self.events: list[Event] = []
        self.closed = False
        self.h2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self._writer = writer
        self.h2.initiate_connection()
        self.h2.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: streams})
        self.flush()

    def receive(self, data: bytes) -> list[Event]:
        events: list[Event] = self.h2.receive_data(data)
        self.events += events
        for event in events:
            if isinstance(event, DataReceived):
                length = event.flow_controlled_length or 0
                self.h2.acknowledge_received_data(length, event.stream_id)
        return events

    def of(self, kind: type[Event]) -> list[Event]:
        """Return the events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def headers(self, number: int) -> dict[str, str]:
        """Return the headers of a request."""
        (event,) = (
            event
            for event in self.events
            if isinstance(event, RequestReceived) and event.stream_id == number
        )
        return {str(name): str(value) for name, value in event.headers or ()}

    def begin(self, number: int) -> None:
        """Answer with the head of a subscription."""
        kind = "application/vnd.amazon.eventstream"
        self.h2.send_headers(number, [(":status", "200"), ("content-type", kind)])

    def write(self, data: bytes) -> None:
        """Send bytes that are no frame of h2's making."""
        self._writer.write(data)

    def flush(self) -> None:
        self._writer.write(self.h2.data_to_send())
