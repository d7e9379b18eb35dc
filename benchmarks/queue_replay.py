"""A queue of Kinesis that answers as fast as it can: each call receives ten records, made before.

The embedded server of `fanout.testing` keeps to the service's rules and knows each record; here
only the reader is to be measured. Records have numbers of their own as ids and receipts, and
whatever is settled is settled. `python -m benchmarks.queue_replay RECORD_BYTES` prints its port,
and ends when its standard input is closed.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import subprocess
import sys
from contextlib import contextmanager
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any, Final, final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ("QUEUE_ARN", "STREAM_ARN", "main", "replay_queue")

STREAM_ARN: Final = "arn:aws:kinesis:us-east-1:123456789012:stream/orders"
QUEUE_ARN: Final = "arn:aws:kinesis:us-east-1:123456789012:queue/0123456789abcdef"

_RECORDS: Final = 10
_TARGET: Final = re.compile(rb"x-amz-target: *Kinesis_20131202\.(\w+)\r\n", re.IGNORECASE)
_LENGTH: Final = re.compile(rb"content-length: *(\d+)\r\n", re.IGNORECASE)
_HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-amz-json-1.1\r\n"
# The form of a real receipt, so that requests are as long.
_RECEIPT: Final = "AQEB" + "x" * 244


@contextmanager
def replay_queue(record_bytes: int) -> Iterator[int]:
    """Run a server in a process of its own while the block runs; yield its port."""
    with subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, "-m", "benchmarks.queue_replay", str(record_bytes)],
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


@final
class _Answers:
    """What the queue answers, by operation."""

    def __init__(self, record_bytes: int) -> None:
        random = Random(record_bytes)  # noqa: S311 - reproducible, not secret
        self._data = [
            base64.b64encode(random.randbytes(record_bytes)).decode() for _ in range(_RECORDS)
        ]
        self._numbers = count(1)
        described = {
            "QueueName": "work",
            "QueueARN": QUEUE_ARN,
            "QueueStatus": "ACTIVE",
            "QueueCreationTimestamp": 1_795_218_308,
            "StreamConfigurationList": [{"StreamARN": STREAM_ARN}],
            "QueueAttributes": {
                "VisibilityTimeoutSeconds": 30,
                "DeadLetterConfiguration": {"TargetType": "BUILT_IN", "MaxReceiveCount": 6},
            },
        }
        self._described = json.dumps({"QueueDescription": described}).encode()

    def answer(self, operation: bytes, body: bytes) -> bytes:
        """Answer one call."""
        if operation == b"ReceiveQueueRecords":
            records = ",".join(self._record(data) for data in self._data)
            return b'{"QueueRecords":[%b]}' % records.encode()
        if operation == b"DescribeQueue":
            return self._described
        entries = [{"ReceiptHandle": each["ReceiptHandle"]} for each in json.loads(body)["Entries"]]
        return json.dumps({"Successful": entries, "Failed": []}).encode()

    def _record(self, data: str) -> str:
        number = next(self._numbers)
        return (
            f'{{"ApproximateArrivalTimestamp":1795218308.174,"Data":"{data}",'
            f'"FirstReceiveTimestamp":1795218309.001,"PartitionKey":"user-{number % 10_000}",'
            f'"ReceiptHandle":"{_RECEIPT}{number:012}","ReceiveCount":1,'
            f'"RecordId":"4968041260292350816138198936{number:028}"}}'
        )


@final
class _Connection(asyncio.Protocol):
    """Read requests one after another; a client sends the next one after the answer."""

    def __init__(self, answers: _Answers) -> None:
        self._answers = answers
        self._received = b""
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, blank, body = self._received.partition(b"\r\n\r\n")
        if not blank:
            return
        head += b"\r\n"
        length, target = _LENGTH.search(head), _TARGET.search(head)
        assert length is not None
        assert target is not None
        if len(body) < int(length[1]):
            return
        self._received = b""
        answer = self._answers.answer(target[1], body)
        self._transport.write(b"%bContent-Length: %d\r\n\r\n%b" % (_HEAD, len(answer), answer))


async def _serve(record_bytes: int) -> None:
    answers = _Answers(record_bytes)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(answers), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201 - the parent reads it
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


def main() -> None:
    """Serve until standard input closes."""
    asyncio.run(_serve(int(sys.argv[1])))


if __name__ == "__main__":
    main()
