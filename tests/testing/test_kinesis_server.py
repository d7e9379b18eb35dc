from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from urllib3.exceptions import ProtocolError

from fanout.errors import OptionError, StreamStateError
from fanout.testing.faults import IgnoreSubscribe, Stall
from fanout.testing.kinesis.rules import KinesisRules
from fanout.testing.kinesis.server import KinesisServer
from tests.support.patience import PATIENCE, eventually
from tests.testing.conftest import ONCE

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST = "shardId-000000000000"
STRICT_READER = """
import asyncio
import fanout
from fanout.kinesis import KinesisSource
from fanout.testing import KinesisServer

async def read(url):
    source = KinesisSource(
        stream="orders", consumer="etl", start="TRIM_HORIZON", endpoint_url=url, region="us-east-1"
    )
    async with fanout.open(source) as stream:
        async for batch in stream:
            print(batch.num_records, "record")
            return

import os
os.environ.update(AWS_ACCESS_KEY_ID="testing", AWS_SECRET_ACCESS_KEY="testing")
with KinesisServer() as server:
    server.create_stream("orders")
    server.put_records("orders", [("key", b"1")])
    asyncio.run(read(server.endpoint_url))
"""
SILENT = KinesisRules(heartbeat=600, takeover_after=0, call_interval=0)
# Seconds, on any machine. What `close` must not wait for takes a minute or more in these tests.
QUICK = 20.0


def server_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("kinesis-server")]


def descriptors() -> int:
    return sum(1 for _ in Path("/dev/fd").iterdir())


def test_close_is_quick_with_open_subscriptions(start: Callable[..., Any]) -> None:
    kinesis = start(SILENT, shards=4)
    for shard in range(4):
        kinesis.subscribe(shard=f"shardId-{shard:012}")
    begin = time.monotonic()
    kinesis.server.close()
    assert time.monotonic() - begin < QUICK


def test_close_ends_open_subscriptions(start: Callable[..., Any]) -> None:
    kinesis = start(SILENT)
    events = kinesis.subscribe()
    kinesis.server.close()
    seen: list[dict[str, Any]] = []
    with suppress(ProtocolError):  # the cut may come before the end of the answer
        seen.extend(events)
    assert seen == []


def test_close_leaves_no_thread(start: Callable[..., Any]) -> None:
    kinesis = start(SILENT)
    kinesis.subscribe()
    assert len(server_threads()) >= 2
    kinesis.server.close()
    assert server_threads() == []


def test_close_leaves_no_socket(start: Callable[..., Any]) -> None:
    kinesis = start(SILENT)
    kinesis.subscribe()
    port = int(kinesis.server.endpoint_url.rpartition(":")[2])
    kinesis.server.close()
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        pass


def test_close_leaves_no_descriptor() -> None:
    # The first server imports and caches what stays open for good.
    with KinesisServer(SILENT):
        pass
    before = descriptors()
    with KinesisServer(SILENT) as server:
        server.create_stream("orders")
        with socket.create_connection(("127.0.0.1", int(server.endpoint_url[-5:]))):
            assert descriptors() > before
    assert descriptors() == before


def test_close_is_quick_during_a_stall(start: Callable[..., Any]) -> None:
    kinesis = start(KinesisRules.fast())
    kinesis.server.inject(Stall())
    kinesis.subscribe()
    eventually(lambda: kinesis.server.statistics().faults == {"Stall": 1})
    begin = time.monotonic()
    kinesis.server.close()
    assert time.monotonic() - begin < QUICK


def test_close_is_quick_during_a_call_without_an_answer(kinesis: Any) -> None:
    kinesis.server.inject(IgnoreSubscribe())
    kinesis.client = kinesis.connect(ONCE.merge(Config(read_timeout=60)))
    failures: list[Exception] = []

    def subscribe() -> None:
        try:
            kinesis.subscribe()
        except Exception as error:  # noqa: BLE001 (any error of the client)
            failures.append(error)

    caller = threading.Thread(target=subscribe)
    caller.start()
    eventually(lambda: kinesis.server.statistics().faults == {"IgnoreSubscribe": 1})
    begin = time.monotonic()
    kinesis.server.close()
    assert time.monotonic() - begin < QUICK
    caller.join()
    assert len(failures) == 1


def test_close_is_quick_while_a_client_does_not_read(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanout.testing.kinesis.consumers.GRACE", 60.0)
    kinesis = start(SILENT)
    events = kinesis.subscribe()
    kinesis.put(*[b"a" * 1_000_000] * 20)
    next(events)
    begin = time.monotonic()
    kinesis.server.close()
    assert time.monotonic() - begin < QUICK


def test_a_subscription_that_begins_during_close_ends_at_once(start: Callable[..., Any]) -> None:
    kinesis = start(SILENT)
    kinesis.server._state.closing = True
    assert list(kinesis.subscribe()) == []


async def test_the_methods_do_not_block_a_running_loop(kinesis_server: KinesisServer) -> None:
    kinesis_server.create_stream("orders", shards=2)
    kinesis_server.put_records("orders", [("key", b"a")])
    kinesis_server.split_shard("orders", FIRST)
    kinesis_server.inject(Stall())
    assert kinesis_server.statistics().open_subscriptions == 0


def test_close_twice_is_harmless() -> None:
    with KinesisServer() as server:
        server.close()


def test_a_client_that_leaves_frees_its_thread(kinesis: Any) -> None:
    events = kinesis.subscribe()
    next(events)
    assert kinesis.server.statistics().open_subscriptions == 1
    kinesis.close_subscriptions()
    eventually(lambda: kinesis.server.statistics().open_subscriptions == 0)
    eventually(lambda: "kinesis-server-request" not in server_threads())


def test_a_second_server_in_the_process_is_refused() -> None:
    with KinesisServer(), pytest.raises(StreamStateError, match="already runs"), KinesisServer():
        pass


def test_a_server_starts_without_the_streams_of_the_last_one() -> None:
    with KinesisServer() as server:
        server.create_stream("orders")
    with KinesisServer() as server, pytest.raises(OptionError, match="no stream"):
        server.put_records("orders", [("key", b"a")])


def test_the_next_server_runs_after_one_that_could_not_bind() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="in use"), KinesisServer(port=port):
            pass
    with KinesisServer() as server:
        assert server.endpoint_url


def test_a_server_that_does_not_run_has_no_endpoint() -> None:
    with pytest.raises(StreamStateError, match="not running"):
        _ = KinesisServer().endpoint_url


def test_the_environment_leads_a_client_to_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with KinesisServer() as server:
        server.create_stream("orders")
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        client = boto3.Session().client("kinesis")
        assert client.list_streams()["StreamNames"] == ["orders"]
        client.close()


def test_nothing_is_written_to_stderr(kinesis: Any, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ClientError):
        kinesis.client.describe_stream(StreamName="unknown")
    kinesis.subscribe()
    with socket.create_connection(("127.0.0.1", int(kinesis.server.endpoint_url[-5:]))) as raw:
        raw.sendall(b"nonsense\r\n\r\n")
        raw.recv(1000)
    kinesis.server.close()
    assert capfd.readouterr() == ("", "")


def test_requests_are_logged_for_those_who_ask(
    kinesis: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "fanout.testing")
    kinesis.client.list_streams()
    assert "POST" in caplog.text


def test_moto_does_not_look_for_its_parts_again(
    kinesis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moto.backends.list_of_moto_modules", lambda: pytest.fail("it does"))
    assert kinesis.client.list_streams()["StreamNames"] == ["orders"]


@pytest.mark.parametrize(
    "target",
    ["Kinesis_20131202.ListShards", "Kinesis_20131202.Nonsense", "DynamoDB_20120810.ListTables"],
)
def test_an_answer_has_each_header_once(target: str) -> None:
    with (
        KinesisServer() as server,
        closing(HTTPConnection(urlsplit(server.endpoint_url).netloc)) as connection,
    ):
        connection.request(
            "POST",
            "/",
            body=json.dumps({"StreamName": "orders"} if "Kinesis" in target else {}),
            headers={"X-Amz-Target": target, "Content-Type": "application/x-amz-json-1.1"},
        )
        names = [name.lower() for name, _ in connection.getresponse().getheaders()]
    assert sorted(names) == sorted(set(names))
    assert {"date", "server"} <= set(names)


@pytest.mark.long
def test_a_strict_client_reads_from_the_server() -> None:
    # Under -X dev aiohttp refuses what is no valid answer, such as a header that comes twice.
    reader = subprocess.run(  # noqa: S603 - our own interpreter and program
        [sys.executable, "-X", "dev", "-W", "error", "-c", STRICT_READER],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (reader.stdout, reader.returncode) == ("1 record\n", 0), reader.stderr
