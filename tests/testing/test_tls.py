from __future__ import annotations

import socket
import ssl
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import SSLError
from h2.events import ConnectionTerminated, StreamReset
from urllib3.exceptions import ProtocolError

from fanout.testing.faults import CutConnection, GoAway
from fanout.testing.kinesis.process import KinesisProcess
from fanout.testing.kinesis.rules import KinesisRules
from fanout.testing.kinesis.server import KinesisServer
from tests.testing.http2_client import Http2Client

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST = "shardId-000000000000"
RULES = KinesisRules(heartbeat=600, takeover_after=0, call_interval=0)
ONCE = Config(retries={"total_max_attempts": 1}, read_timeout=10)


@pytest.fixture
def server() -> Iterator[KinesisServer]:
    with KinesisServer(RULES, tls=True) as server:
        server.create_stream("orders")
        yield server


@pytest.fixture
def client(server: KinesisServer) -> Iterator[Http2Client]:
    with Http2Client(server.endpoint_url, transport=secured(server)) as client:
        yield client


def secured(server: KinesisServer, *, agreed: bool = True) -> ssl.SSLSocket:
    """Return a connection whose protocol is agreed on by ALPN, or not at all."""
    context = ssl.create_default_context(cafile=str(server.certificate))
    if agreed:
        context.set_alpn_protocols(["h2", "http/1.1"])
    plain = socket.create_connection(address(server), timeout=20)
    connection = context.wrap_socket(plain, server_hostname="localhost")
    assert connection.selected_alpn_protocol() == ("h2" if agreed else None)
    return connection


def address(server: KinesisServer) -> tuple[str, int]:
    return "127.0.0.1", int(server.endpoint_url.rpartition(":")[2])


def consumer(server: KinesisServer) -> str:
    with closing(boto3.client("kinesis", **server.client_options)) as boto:
        arn = boto.describe_stream_summary(StreamName="orders")["StreamDescriptionSummary"]
        answer = boto.register_stream_consumer(StreamARN=arn["StreamARN"], ConsumerName="etl")
        return str(answer["Consumer"]["ConsumerARN"])


def requests_running() -> int:
    return sum(t.name == "kinesis-server-request" for t in threading.enumerate())


def test_boto3_reads_over_tls_with_the_options_of_the_server(server: KinesisServer) -> None:
    assert server.endpoint_url.startswith("https://")
    position = {"Type": "TRIM_HORIZON"}
    server.put_records("orders", [("key", b"a")])
    with closing(boto3.client("kinesis", **server.client_options, config=ONCE)) as boto:
        request = {"ConsumerARN": consumer(server), "ShardId": FIRST, "StartingPosition": position}
        with closing(boto.subscribe_to_shard(**request)["EventStream"]) as events:
            event = next(iter(events))
    assert [each["Data"] for each in event["SubscribeToShardEvent"]["Records"]] == [b"a"]


def test_the_environment_leads_a_client_to_the_certificate(
    server: KinesisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    with closing(boto3.Session().client("kinesis")) as boto:
        assert boto.list_streams()["StreamNames"] == ["orders"]


def test_a_client_that_does_not_know_the_certificate_refuses_it(server: KinesisServer) -> None:
    options: dict[str, Any] = {**server.client_options, "verify": True}
    with closing(boto3.client("kinesis", **options, config=ONCE)) as boto, pytest.raises(SSLError):
        boto.list_streams()


def test_without_tls_the_same_port_still_answers(server: KinesisServer) -> None:
    plain = server.endpoint_url.replace("https", "http")
    with closing(
        boto3.client("kinesis", **server.client_options | {"endpoint_url": plain})
    ) as boto:
        assert boto.list_streams()["StreamNames"] == ["orders"]
    with Http2Client(plain) as client:
        assert client.call("ListStreams", {})["StreamNames"] == ["orders"]


@pytest.mark.long
def test_much_data_goes_both_ways_over_http2(server: KinesisServer, client: Http2Client) -> None:
    number = client.subscribe(consumer(server))
    record = {"PartitionKey": "key", "Data": "QUFB" * 300_000}
    for _ in range(4):
        answer = client.call("PutRecords", {"StreamName": "orders", "Records": [record] * 4})
        assert answer["FailedRecordCount"] == 0
    client.until(lambda: len(client.bodies[number]) > 16 * 1_200_000)
    client.ping()


def test_a_client_that_does_not_read_is_held_back(server: KinesisServer) -> None:
    server.put_records("orders", [("key", bytes(900_000))] * 30)
    arn = consumer(server)
    with Http2Client(server.endpoint_url, transport=secured(server)) as client:
        number = client.subscribe(arn)
        client.request("ListStreams", {})
        # Its socket is full long before the end.
        deadline = time.monotonic() + 10
        while server.statistics().open_subscriptions == 0:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        client.until(lambda: len(client.bodies[number]) > 30 * 1_200_000)


def test_a_client_may_speak_http2_without_having_agreed_on_it(server: KinesisServer) -> None:
    arn = consumer(server)
    with Http2Client(server.endpoint_url, transport=secured(server, agreed=False)) as client:
        assert client.call("ListStreams", {})["StreamNames"] == ["orders"]
        number = client.subscribe(arn)
        server.put_records("orders", [("key", bytes(900_000))])
        client.until(lambda: len(client.bodies[number]) > 1_200_000)


def test_a_client_that_agrees_on_nothing_may_speak_http1(server: KinesisServer) -> None:
    with secured(server, agreed=False) as connection:
        for piece in (b"G", b"ET / HTTP/1.1\r\nHost: kinesis.us-east-1.amazonaws.com\r\n\r\n"):
            connection.sendall(piece)
        assert connection.recv(9) == b"HTTP/1.1 "


def test_a_cut_resets_the_stream(server: KinesisServer, client: Http2Client) -> None:
    server.inject(CutConnection())
    number = client.subscribe(consumer(server))
    server.put_records("orders", [("key", b"a")])
    client.until(lambda: client.seen(StreamReset, number))


def test_a_cut_breaks_http1_off(server: KinesisServer) -> None:
    server.inject(CutConnection())
    server.put_records("orders", [("key", b"a")])
    request = {
        "ConsumerARN": consumer(server),
        "ShardId": FIRST,
        "StartingPosition": {"Type": "TRIM_HORIZON"},
    }
    with closing(boto3.client("kinesis", **server.client_options, config=ONCE)) as boto:
        events = boto.subscribe_to_shard(**request)["EventStream"]
        with closing(events), pytest.raises(ProtocolError):
            next(iter(events))


def test_a_goaway_closes_the_connection(server: KinesisServer, client: Http2Client) -> None:
    server.inject(GoAway())
    number = client.subscribe(consumer(server))
    server.put_records("orders", [("key", b"a")])
    while client.receive():
        pass
    assert client.seen(ConnectionTerminated)
    assert len(client.bodies[number]) > 100


def test_close_leaves_nothing(server: KinesisServer, client: Http2Client) -> None:
    certificate = server.certificate
    assert certificate is not None
    client.subscribe(consumer(server))
    client.call("ListStreams", {})
    # One connects, says hello by half, and waits.
    with socket.create_connection(address(server)) as silent:
        silent.sendall(b"\x16\x03\x01")
        begin = time.monotonic()
        server.close()
        assert time.monotonic() - begin < 20  # what it must not wait for takes minutes
    assert requests_running() == 0
    assert not certificate.parent.exists()
    assert server.certificate is None


def test_no_private_key_is_kept_in_a_file(server: KinesisServer) -> None:
    assert server.certificate is not None
    assert [*server.certificate.parent.iterdir()] == [server.certificate]
    assert b"PRIVATE" not in server.certificate.read_bytes()


def test_what_is_no_tls_is_hung_up_on(
    server: KinesisServer, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_connection(address(server), timeout=10) as raw:
        raw.sendall(b"\x16nonsense" + bytes(100))
        while raw.recv(1000):
            pass
    assert capfd.readouterr() == ("", "")


@pytest.mark.long
def test_a_process_of_its_own_speaks_tls() -> None:
    with KinesisProcess(RULES, tls=True) as server:
        server.create_stream("orders")
        with closing(boto3.client("kinesis", **server.client_options)) as boto:
            assert boto.list_streams()["StreamNames"] == ["orders"]
        certificate = server.certificate
    assert certificate is not None
    assert not certificate.exists()
