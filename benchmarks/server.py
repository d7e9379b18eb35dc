"""The embedded Kinesis itself: how soon it serves, what it takes and sends, and what it holds.

Each server is a process of its own, next to a client that does little: it sends bytes that were
made before, and counts the bytes that come. CPU seconds and memory are those of the server. The
peer for puts is moto's own server, which has no subscriptions.
"""

from __future__ import annotations

import base64
import json
import socket
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import boto3
import httpx
import psutil

from benchmarks.harness import Measurement, Report, median_row
from benchmarks.turns import take_turns
from fanout.testing.kinesis.process import KinesisProcess
from fanout.testing.kinesis.rules import KinesisRules
from tests.testing.http2_client import Http2Client
from tests.testing.wires import CBOR, to_cbor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.harness import Row

__all__ = ("run",)

PUTS: Final = 400
EVENTS: Final = 20_000
IDLE: Final = 1_000
_RECORD_BYTES: Final = 1_024
# The most that one call takes.
_RECORDS: Final = 500
_JSON: Final = "application/x-amz-json-1.1"
_SCOPE: Final = "Credential=testing/20260101/us-east-1/kinesis/aws4_request"
_FIRST: Final = "shardId-000000000000"
_CONNECTIONS: Final = 4
# One record in each event: what is measured is frames.
_FRAMES: Final = KinesisRules(takeover_after=0, call_interval=0, max_event_records=1)
_SILENT: Final = KinesisRules(heartbeat=600, subscription_life=3_600)


def run(rounds: int, puts: int = PUTS, events: int = EVENTS, idle: int = IDLE) -> Report:
    """Measure the server.

    Args:
        rounds: How often each is run.
        puts: Calls of PutRecords with 500 records of 1 KB; moto's server gets a tenth of them.
        events: Events of one record each that a subscription sends.
        idle: Subscriptions that wait at once.
    """
    contenders: dict[str, Callable[[], Measurement]] = {
        "puts, HTTP/1.1 JSON": partial(_put, puts, http2=False, cbor=False),
        "puts, HTTP/2 CBOR": partial(_put, puts, http2=True, cbor=True),
        "puts, moto": partial(_put_to_moto, max(1, puts // 10)),
        "frames, HTTP/1.1": partial(_subscribe, events, http2=False),
        "frames, HTTP/2": partial(_subscribe, events, http2=True),
        f"{idle} idle subscriptions": partial(_wait_idle, idle),
    }
    measured = take_turns("server", contenders, rounds)
    rows = {name: _row(name, readings) for name, readings in measured.items()}
    starts = take_turns("server", {"start": _start}, rounds)["start"]
    ours = rows["puts, HTTP/1.1 JSON"].records_per_second
    return Report(
        scenario="server",
        rows=list(rows.values()),
        ratios={"server/puts/vs_moto": ours / rows["puts, moto"].records_per_second},
        seconds={"server/start": statistics.median(starts)},
    )


def _row(name: str, readings: list[Measurement]) -> Row:
    size = _RECORD_BYTES if name.startswith("puts") else 1
    return median_row(name, readings, record_bytes=size, shards=_CONNECTIONS)


def _start() -> float:
    begun = time.perf_counter()
    with KinesisProcess():
        return time.perf_counter() - begun


def _put(calls: int, *, http2: bool, cbor: bool) -> Measurement:
    with KinesisProcess() as server:
        server.create_stream("orders", _CONNECTIONS)
        return _put_to(server.endpoint_url, server.pid, calls, http2=http2, cbor=cbor)


def _put_to_moto(calls: int) -> Measurement:
    with _moto() as (url, pid):
        return _put_to(url, pid, calls, http2=False, cbor=False)


@contextmanager
def _moto() -> Iterator[tuple[str, int]]:
    """Run moto's own server, with the same stream."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-p", str(port)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:  # noqa: S603 (our own)
        try:
            url = f"http://127.0.0.1:{port}"
            _await_server(url)
            secrets = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
            options: dict[str, Any] = {"endpoint_url": url, "region_name": "us-east-1", **secrets}
            with closing(boto3.client("kinesis", **options)) as client:
                client.create_stream(StreamName="orders", ShardCount=_CONNECTIONS)
            yield url, process.pid
        finally:
            process.terminate()


def _await_server(url: str) -> None:
    while True:
        try:
            httpx.get(f"{url}/moto-api/")
        except httpx.TransportError:
            time.sleep(0.05)  # it does not tell when it listens
        else:
            return


def _put_to(url: str, pid: int, calls: int, *, http2: bool, cbor: bool) -> Measurement:
    data = base64.b64encode(bytes(_RECORD_BYTES)).decode()
    records = [{"PartitionKey": f"key-{n}", "Data": data} for n in range(_RECORDS)]
    request = {"StreamName": "orders", "Records": records}
    body = to_cbor(request) if cbor else json.dumps(request).encode()
    with _client(http2=http2) as http, _measured(pid, calls * _RECORDS) as measured:
        headers = _headers("PutRecords", cbor=cbor)
        for _ in range(calls):
            http.post(url, content=body, headers=headers).raise_for_status()
    return measured[0]


def _subscribe(events: int, *, http2: bool) -> Measurement:
    with KinesisProcess(_FRAMES) as server:
        server.create_stream("orders")
        server.put_records("orders", [("key", b"a")] * events)
        # The subscription ends with its shard, after the last event.
        server.split_shard("orders", _FIRST)
        with Http2Client(server.endpoint_url) as client:
            arn = _consumer(client)
        position = {"Type": "TRIM_HORIZON"}
        request = {"ConsumerARN": arn, "ShardId": _FIRST, "StartingPosition": position}
        headers = _headers("SubscribeToShard", cbor=False)
        body = json.dumps(request).encode()
        with _client(http2=http2) as http, _measured(server.pid, events) as measured:
            url = server.endpoint_url
            with http.stream("POST", url, content=body, headers=headers) as answer:
                for _ in answer.iter_raw():
                    pass
    return measured[0]


def _wait_idle(count: int) -> Measurement:
    """Begin subscriptions; the memory is what they take, without that of the server itself."""
    with KinesisProcess(_SILENT) as server, ExitStack() as scope:
        server.create_stream("orders", count)
        clients = [
            scope.enter_context(Http2Client(server.endpoint_url)) for _ in range(_CONNECTIONS)
        ]
        arn = _consumer(clients[0])
        before = psutil.Process(server.pid).memory_info().rss
        with _measured(server.pid, count) as measured:
            for index in range(count):
                client = clients[index % _CONNECTIONS]
                body = client.bodies[client.subscribe(arn, f"shardId-{index:012}")]
                client.until(body.__len__)
        taken = psutil.Process(server.pid).memory_info().rss - before
    found = measured[0]
    return Measurement(found.records_per_second, found.cpu_seconds_per_million, taken)


@contextmanager
def _measured(pid: int, count: int) -> Iterator[list[Measurement]]:
    """Measure a block, and the server meanwhile; the list is filled at its end."""
    server = psutil.Process(pid)
    measured: list[Measurement] = []
    begun, cpu = time.perf_counter(), _cpu_seconds(server)
    yield measured
    seconds, cpu = time.perf_counter() - begun, _cpu_seconds(server) - cpu
    memory = server.memory_info().rss
    measured.append(Measurement(count / seconds, cpu / count * 1e6, memory))


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _client(*, http2: bool) -> httpx.Client:
    return httpx.Client(http1=not http2, http2=http2, timeout=60)


def _headers(action: str, *, cbor: bool) -> dict[str, str]:
    return {
        "X-Amz-Target": f"Kinesis_20131202.{action}",
        "Authorization": f"AWS4-HMAC-SHA256 {_SCOPE}, SignedHeaders=host, Signature=0",
        "Content-Type": CBOR if cbor else _JSON,
    }


def _consumer(client: Http2Client) -> str:
    summary = client.call("DescribeStreamSummary", {"StreamName": "orders"})
    arn = summary["StreamDescriptionSummary"]["StreamARN"]
    request = {"StreamARN": arn, "ConsumerName": "benchmark"}
    return str(client.call("RegisterStreamConsumer", request)["Consumer"]["ConsumerARN"])
