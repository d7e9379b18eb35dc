"""A Kinesis that answers as fast as it can: every shard replays the same events, encoded before.

The embedded server of `fanout.testing` keeps to the service's rules and stores what is put; here
only the reader is to be measured, so a subscription is one write of bytes that are ready, headers
of HTTP chunks included. `python -m benchmarks.kinesis_replay RECORD_BYTES EVENTS SHARDS [SHAPE]`
prints its port once everything is encoded, and ends when its standard input is closed.
"""

from __future__ import annotations

import base64
import itertools
import json
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from typing import TYPE_CHECKING, Any, Final

from fanout.testing.kinesis.frames import encode_event

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = (
    "CONSUMER_ARN",
    "HEARTBEAT",
    "STREAM_ARN",
    "Replay",
    "main",
    "replay_server",
    "shard_ids",
)

STREAM_ARN: Final = "arn:aws:kinesis:us-east-1:123456789012:stream/orders"
CONSUMER_ARN: Final = f"{STREAM_ARN}/consumer/benchmark:1"

# About 1 MiB of data in an event, as the service sends while a reader catches up.
_EVENT_BYTES = 1 << 20
HEARTBEAT: Final = 5.0
"""Seconds between two events of a shard without new records."""
_MARK = b"@EVENTNUMBER@"
_SEQUENCE = "4968041260292350816138198936435206{event}{record:09}"


@dataclass(frozen=True, slots=True)
class Replay:
    """The events to replay: to each of `shards` shards `events` events of about 1 MiB of data.

    Without events there are heartbeats instead.
    """

    record_bytes: int
    events: int
    shards: int
    shape: str = ""  # of records of Avro, see `benchmarks.decode_records`; empty for random bytes

    @property
    def records_per_event(self) -> int:
        """The records in one event."""
        return max(1, min(10_000, _EVENT_BYTES // self.record_bytes))

    @property
    def records(self) -> int:
        """The records of all shards together."""
        return self.records_per_event * self.events * self.shards

    def _bodies(self, random: Random) -> Iterator[bytes]:
        if not self.shape:
            return iter(lambda: random.randbytes(self.record_bytes), b"")
        from benchmarks.decode_records import bodies_of  # noqa: PLC0415 - few replays need it

        return itertools.cycle(bodies_of(self.shape, self.record_bytes))

    def template(self) -> bytes:
        """Return the JSON of an event, with a mark where its number goes into sequence numbers."""
        random = Random(self.record_bytes)  # noqa: S311 - reproducible, not secret
        count = self.records_per_event
        bodies = self._bodies(random)
        records = [
            {
                "ApproximateArrivalTimestamp": (1_795_218_308_174 + number) / 1000,
                "Data": base64.b64encode(next(bodies)).decode(),
                "EncryptionType": "NONE",
                "PartitionKey": f"user-{random.randrange(10_000)}",
                "SequenceNumber": _SEQUENCE.format(event=_MARK.decode(), record=number),
            }
            for number in range(count)
        ]
        event = {
            "Records": records,
            "ContinuationSequenceNumber": _SEQUENCE.format(event=_MARK.decode(), record=count),
            "MillisBehindLatest": 1000,
        }
        return json.dumps(event, separators=(",", ":")).encode()


def shard_ids(shards: int) -> list[str]:
    """Return the ids of the shards that a server with so many has."""
    return [f"shardId-{number:012}" for number in range(shards)]


@contextmanager
def replay_server(replay: Replay) -> Iterator[int]:
    """Run a server in a process of its own while the block runs; yield its port."""
    arguments = [str(argument) for argument in astuple(replay)]
    with subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, "-m", "benchmarks.kinesis_replay", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield int(server.stdout.readline())
        finally:
            server.stdin.close()


def _chunk(frame: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(frame), frame)


def _event(template: bytes, number: int) -> bytes:
    payload = template.replace(_MARK, b"%013d" % number)
    return _chunk(encode_event("SubscribeToShardEvent", payload))


_HEARTBEAT: Final = _chunk(
    encode_event(
        "SubscribeToShardEvent",
        json.dumps(
            {
                "Records": [],
                "ContinuationSequenceNumber": _SEQUENCE.format(event="0" * 13, record=1),
                "MillisBehindLatest": 0,
            }
        ).encode(),
    )
)


class _Server(ThreadingHTTPServer):
    """Hold the body of a subscription from the horizon; all its chunks have the same size."""

    request_queue_size = 1024

    def __init__(self, replay: Replay) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers = _answers(replay.shards)
        self._template = replay.template()
        body = bytearray()
        for number in range(1, replay.events + 1):
            body += _event(self._template, number)
        self._body = memoryview(body)
        self._chunk_bytes = len(body) // max(1, replay.events)

    def after(self, position: Mapping[str, Any]) -> tuple[bytes, memoryview]:
        """Return what follows a StartingPosition: the rest of its event, and the events after."""
        if position["Type"] == "TRIM_HORIZON":
            return b"", self._body
        sequence = position["SequenceNumber"]
        number, record = int(sequence[-22:-9]), int(sequence[-9:])
        event = json.loads(self._template)
        del event["Records"][: record + 1]
        payload = json.dumps(event, separators=(",", ":")).encode()
        rest = _event(payload, number) if event["Records"] else b""
        return rest, self._body[number * self._chunk_bytes :]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answer one call."""
        assert isinstance(self.server, _Server)
        operation = self.headers["X-Amz-Target"].rpartition(".")[2]
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if operation == "SubscribeToShard":
            rest, body = self.server.after(request["StartingPosition"])
            with suppress(ConnectionError):  # the reader has disconnected
                self._replay(rest, body)
            self.close_connection = True
            return
        answer = json.dumps(self.server.answers[operation]).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-amz-json-1.1")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def _replay(self, rest: bytes, body: memoryview) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/vnd.amazon.eventstream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(_chunk(encode_event("initial-response", b"{}")))
        self.wfile.write(rest)
        # Blocks in one call of the operating system for as long as the reader takes.
        self.connection.sendall(body)
        while not body:
            self.connection.sendall(_HEARTBEAT)
            time.sleep(HEARTBEAT)  # as the service, in the thread of this request alone
        self.rfile.read(1)  # the shard is silent at its tip; wait until the reader leaves

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Log nothing."""


def _answers(shards: int) -> dict[str, dict[str, Any]]:
    step = 2**128 // shards
    return {
        "DescribeStreamSummary": {
            "StreamDescriptionSummary": {
                "StreamName": "orders",
                "StreamARN": STREAM_ARN,
                "StreamStatus": "ACTIVE",
                "StreamCreationTimestamp": 1,
                "RetentionPeriodHours": 24,
                "EnhancedMonitoring": [],
                "OpenShardCount": shards,
            }
        },
        "ListShards": {
            "Shards": [
                {
                    "ShardId": shard_id,
                    "HashKeyRange": {
                        "StartingHashKey": str(number * step),
                        "EndingHashKey": str((number + 1) * step - 1),
                    },
                    "SequenceNumberRange": {"StartingSequenceNumber": "1"},
                }
                for number, shard_id in enumerate(shard_ids(shards))
            ]
        },
        "DescribeStreamConsumer": {
            "ConsumerDescription": {
                "ConsumerName": "benchmark",
                "ConsumerARN": CONSUMER_ARN,
                "ConsumerStatus": "ACTIVE",
                "ConsumerCreationTimestamp": 1,
                "StreamARN": STREAM_ARN,
            }
        },
    }


def main() -> None:
    """Serve until standard input is closed."""
    record_bytes, events, shards = map(int, sys.argv[1:4])
    server = _Server(Replay(record_bytes, events, shards, *sys.argv[4:]))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)  # noqa: T201 - the caller reads it
    with suppress(KeyboardInterrupt):
        sys.stdin.read()


if __name__ == "__main__":
    main()
