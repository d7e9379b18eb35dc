"""A client of HTTP/2 that does what it is told and no more: windows stay closed until opened."""

from __future__ import annotations

import json
import socket
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, PingAckReceived, ResponseReceived, StreamEnded
from h2.settings import SettingCodes

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

_SCOPE = "Credential=testing/20260101/us-east-1/kinesis/aws4_request"


class Http2Client:
    """One connection.

    Args:
        endpoint_url: where to connect to.
        window: what a stream may receive before its window is opened further.
        transport: what to use in place of a new connection to there.
    """

    def __init__(
        self, endpoint_url: str, *, window: int = 1 << 30, transport: socket.socket | None = None
    ) -> None:
        if transport is None:
            address = ("127.0.0.1", int(endpoint_url.rpartition(":")[2]))
            transport = socket.create_connection(address, timeout=20)
        self.socket = transport
        self.h2 = H2Connection(H2Configuration(header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window})
        self.h2.increment_flow_control_window(1 << 30)
        self.events: list[Event] = []
        self.bodies: defaultdict[int, bytearray] = defaultdict(bytearray)
        self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def flush(self) -> None:
        self.socket.sendall(self.h2.data_to_send())

    def request(self, action: str, body: dict[str, Any]) -> int:
        """Send a request, and return the number of its stream."""
        content = memoryview(json.dumps(body).encode())
        number = self.h2.get_next_available_stream_id()
        headers = [
            (":method", "POST"),
            (":path", "/"),
            (":scheme", "http"),
            (":authority", "kinesis.us-east-1.amazonaws.com"),
            ("authorization", f"AWS4-HMAC-SHA256 {_SCOPE}, SignedHeaders=host, Signature=0"),
            ("content-type", "application/x-amz-json-1.1"),
            ("x-amz-target", f"Kinesis_20131202.{action}"),
        ]
        self.h2.send_headers(number, headers)
        while content:
            size = min(self.h2.local_flow_control_window(number), self.h2.max_outbound_frame_size)
            if not size:
                self.flush()
                self.receive()
            self.h2.send_data(number, content[:size])
            content = content[size:]
        self.h2.end_stream(number)
        self.flush()
        return number

    def subscribe(self, consumer_arn: str, shard: str = "shardId-000000000000") -> int:
        """Subscribe from the oldest record on."""
        position = {"Type": "TRIM_HORIZON"}
        request = {"ConsumerARN": consumer_arn, "ShardId": shard, "StartingPosition": position}
        return self.request("SubscribeToShard", request)

    def call(self, action: str, body: dict[str, Any]) -> Any:
        """Return the answer of a call."""
        number = self.request(action, body)
        self.until(lambda: self.seen(StreamEnded, number))
        return json.loads(self.bodies[number])

    def receive(self) -> bool:
        """Take what comes next; say whether the connection is still open."""
        data = self.socket.recv(1 << 16)
        for event in self.h2.receive_data(data):
            self.events.append(event)
            if isinstance(event, DataReceived):
                self.bodies[event.stream_id or 0] += event.data or b""
        self.flush()
        return bool(data)

    def until(self, condition: Callable[[], Any]) -> None:
        """Receive until something is so."""
        while not condition():
            assert self.receive(), f"the connection was closed after {self.events}"

    def ping(self) -> None:
        """Ask for a sign of life, and wait for it: what was sent before it has come."""
        before = sum(isinstance(event, PingAckReceived) for event in self.events)
        self.h2.ping(b"fanout!!")
        self.flush()
        self.until(
            lambda: sum(isinstance(event, PingAckReceived) for event in self.events) > before
        )

    def open_window(self, number: int, size: int) -> None:
        """Let a stream receive more."""
        self.h2.increment_flow_control_window(size, number)
        self.flush()

    def seen(self, kind: type[Event], number: int | None = None) -> bool:
        """Say whether an event came, on a stream or at all."""
        return any(
            isinstance(event, kind) and number in {None, getattr(event, "stream_id", None)}
            for event in self.events
        )

    def headers(self, number: int) -> dict[str, str]:
        """Return the headers of an answer that has begun."""
        return next(
            {str(name): str(value) for name, value in event.headers or []}
            for event in self.events
            if isinstance(event, ResponseReceived) and event.stream_id == number
        )
