"""A Kinesis that answers as fast as it can: one shard, records without end, made from a template.

The embedded server of `fanout.testing` keeps to the service's rules and stores what is put; here
only the reader is to be measured. `python -m benchmarks.replay RECORD_BYTES` prints its port, and
ends when its standard input is closed.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import sys
from email.utils import formatdate
from random import Random
from typing import TYPE_CHECKING, Any, Final

from fanout.testing.frames import encode_event

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ("CONSUMER_ARN", "SHARD_ID", "STREAM_ARN", "main")

STREAM_ARN: Final = "arn:aws:kinesis:us-east-1:123456789012:stream/orders"
CONSUMER_ARN: Final = f"{STREAM_ARN}/consumer/benchmark:1"
SHARD_ID: Final = "shardId-000000000000"

# About 1 MiB of data in an event, as the service sends while a reader catches up.
_EVENT_BYTES = 1 << 20
_MARK = b"@EVENTNUMBER@"
_SEQUENCE = "4968041260292350816138198936435206{event}{record:09}"


def _template(record_bytes: int) -> bytes:
    """Return the JSON of an event, with a mark where its number goes into sequence numbers."""
    random = Random(record_bytes)  # noqa: S311 - reproducible, not secret
    count = max(1, min(10_000, _EVENT_BYTES // record_bytes))
    records = [
        {
            "ApproximateArrivalTimestamp": (1_795_218_308_174 + number) / 1000,
            "Data": base64.b64encode(random.randbytes(record_bytes)).decode(),
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
    return json.dumps(event).encode()


_ANSWERS: Mapping[str, dict[str, Any]] = {
    "DescribeStreamSummary": {
        "StreamDescriptionSummary": {
            "StreamName": "orders",
            "StreamARN": STREAM_ARN,
            "StreamStatus": "ACTIVE",
            "StreamCreationTimestamp": 1,
            "RetentionPeriodHours": 24,
            "EnhancedMonitoring": [],
            "OpenShardCount": 1,
        }
    },
    "ListShards": {
        "Shards": [
            {
                "ShardId": SHARD_ID,
                "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": str(2**128 - 1)},
                "SequenceNumberRange": {"StartingSequenceNumber": "1"},
            }
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


async def _serve(record_bytes: int) -> None:
    template = _template(record_bytes)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError), _closing(writer):
            while True:
                operation = await _request(reader)
                if operation == "SubscribeToShard":
                    await _replay(writer, template)
                    return
                await _reply(writer, json.dumps(_ANSWERS[operation]).encode())

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201 - the caller reads it
        await asyncio.to_thread(sys.stdin.read)


@contextlib.contextmanager
def _closing(writer: asyncio.StreamWriter) -> Any:
    try:
        yield
    finally:
        writer.close()


async def _request(reader: asyncio.StreamReader) -> str:
    """Read one request; return the operation that it names."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
    await reader.readexactly(int(headers.get("content-length", "0")))
    target = next(line for line in head.split("\r\n") if line.lower().startswith("x-amz-target"))
    return target.rsplit(".", 1)[1]


async def _reply(writer: asyncio.StreamWriter, body: bytes) -> None:
    writer.write(
        f"HTTP/1.1 200 OK\r\nDate: {formatdate(usegmt=True)}\r\n"
        f"Content-Type: application/x-amz-json-1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    await writer.drain()


async def _replay(writer: asyncio.StreamWriter, template: bytes) -> None:
    writer.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.amazon.eventstream\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n"
    )
    frame, number = encode_event("initial-response", b"{}"), 0
    while True:
        writer.write(b"%x\r\n%b\r\n" % (len(frame), frame))
        await writer.drain()
        number += 1
        frame = encode_event("SubscribeToShardEvent", template.replace(_MARK, b"%013d" % number))


def main() -> None:
    """Serve until standard input is closed."""
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(int(sys.argv[1])))


if __name__ == "__main__":
    main()
