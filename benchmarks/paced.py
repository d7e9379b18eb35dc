"""A stream of Kinesis or a topic of Kafka that gets records at a steady rate.

Each record begins with the time at which it was put, in nanoseconds since the Unix epoch, as text
of 19 digits. `python -m benchmarks.paced SERVICE RATE` prints the address once the first records
are there, and ends when its standard input is closed.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from confluent_kafka import Producer

from benchmarks.kafka_topic import PARTITIONS, TOPIC
from fanout.testing.kafka.broker import KafkaBroker
from fanout.testing.kinesis.server import KinesisServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ("RECORD_BYTES", "STAMP_BYTES", "STREAM", "main", "paced")

STREAM: Final = "orders"
SHARDS: Final = 4
RECORD_BYTES: Final = 1024
STAMP_BYTES: Final = 19
# The least time between two puts: at high rates several records are put at once.
_TICK: Final = 0.01
_FILL: Final = b"x" * (RECORD_BYTES - STAMP_BYTES)


@contextmanager
def paced(service: str, rate: int) -> Iterator[str]:
    """Run a server with a producer in a process of its own while the block runs.

    Args:
        service: `kinesis` or `kafka`.
        rate: Records a second, of all shards or partitions together.

    Yields:
        The URL of the service, or the broker's address.
    """
    with subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, "-m", "benchmarks.paced", service, str(rate)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.stdin.close()


def main() -> None:
    """Serve, and put records until standard input ends."""
    service, rate = sys.argv[1], int(sys.argv[2])
    {"kinesis": _put_into_kinesis, "kafka": _put_into_kafka}[service](rate)


def _put_into_kinesis(rate: int) -> None:
    with KinesisServer() as server:
        server.create_stream(STREAM, SHARDS)

        def put(records: Sequence[tuple[str, bytes]]) -> None:
            server.put_records(STREAM, records)

        _put_steadily(put, rate, server.endpoint_url)


def _put_into_kafka(rate: int) -> None:
    with KafkaBroker(fast=True) as broker:
        broker.create_topic(TOPIC, PARTITIONS)
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0})

        def put(records: Sequence[tuple[str, bytes]]) -> None:
            for number, (key, value) in enumerate(records):
                producer.produce(TOPIC, value, key, number % PARTITIONS)
            producer.poll(0)

        _put_steadily(put, rate, broker.bootstrap_servers)
        producer.flush()


def _put_steadily(
    put: Callable[[Sequence[tuple[str, bytes]]], None], rate: int, address: str
) -> None:
    ended = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    at_once = max(1, round(rate * _TICK))
    number, due = 0, time.monotonic()
    while not ended.is_set():
        stamp = b"%d" % time.time_ns()
        put([(f"user-{number + row}", stamp + _FILL) for row in range(at_once)])
        if not number:
            print(address, flush=True)  # noqa: T201 - the caller waits for it
        number += at_once
        due += at_once / rate
        ended.wait(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    main()
