from __future__ import annotations

import base64
import socket
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from botocore.eventstream import EventStreamBuffer
from h2.events import ConnectionTerminated, ResponseReceived, StreamEnded, StreamReset

from fanout.testing.faults import CutConnection, EndEarly, GoAway, IgnoreCall, RefuseCall
from fanout.testing.kinesis.process import KinesisProcess
from fanout.testing.kinesis.rules import KinesisRules
from fanout.testing.kinesis.server import KinesisServer
from tests.support.patience import eventually
from tests.testing.http2_client import Http2Client

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST, SECOND = "shardId-000000000000", "shardId-000000000001"
SILENT = KinesisRules(
    heartbeat=600,
    takeover_after=0,
    call_interval=0,
    polls_per_second=0,
    polled_bytes_per_second=0,
    max_poll_bytes=100 << 20,
)


@pytest.fixture
def server() -> Iterator[KinesisServer]:
    with KinesisServer(SILENT) as server:
        server.create_stream("orders", 2)
        yield server


@pytest.fixture
def client(server: KinesisServer) -> Iterator[Http2Client]:
    with Http2Client(server.endpoint_url) as client:
        yield client


def consumer(client: Http2Client, stream: str = "orders") -> str:
    """Register a consumer and return its ARN."""
    summary = client.call("DescribeStreamSummary", {"StreamName": stream})
    stream_arn = summary["StreamDescriptionSummary"]["StreamARN"]
    request = {"StreamARN": stream_arn, "ConsumerName": "etl"}
    arn: str = client.call("RegisterStreamConsumer", request)["Consumer"]["ConsumerARN"]
    return arn


def events(body: bytearray) -> list[str]:
    """Return the kinds of the whole frames of an event stream."""
    buffer = EventStreamBuffer()
    buffer.add_data(bytes(body))
    return [message.headers[":event-type"] for message in buffer]


def requests_running() -> int:
    return sum(t.name == "kinesis-server-request" for t in threading.enumerate())


def test_calls_and_a_subscription_share_a_connection(
    server: KinesisServer, client: Http2Client
) -> None:
    number = client.subscribe(consumer(client))
    server.put_records("orders", [("key", b"a")], shard=FIRST)
    client.until(lambda: len(events(client.bodies[number])) == 2)
    assert events(client.bodies[number]) == ["initial-response", "SubscribeToShardEvent"]
    assert client.headers(number)["content-type"] == "application/vnd.amazon.eventstream"
    assert client.call("ListStreams", {})["StreamNames"] == ["orders"]
    assert not client.seen(StreamEnded, number)


def test_a_subscription_that_ends_ends_its_stream(
    server: KinesisServer, client: Http2Client
) -> None:
    number = client.subscribe(consumer(client))
    server.split_shard("orders", FIRST)
    client.until(lambda: client.seen(StreamEnded, number))
    client.ping()
    assert not client.seen(StreamReset)


def test_a_stream_whose_client_does_not_read_is_held_back(server: KinesisServer) -> None:
    window = 10_000
    # The second event is not even asked for before the first one has left.
    server.inject(EndEarly(event=2))
    server.put_records("orders", [("key", bytes(900_000))] * 3, shard=FIRST)
    with Http2Client(server.endpoint_url, window=window) as client:
        number = client.subscribe(consumer(client))
        client.until(lambda: len(client.bodies[number]) == window)
        for _ in range(3):
            client.ping()
            assert client.call("ListStreams", {})["StreamNames"] == ["orders"]
        assert len(client.bodies[number]) == window
        assert server.statistics().faults == {}
        client.open_window(number, 5_000)
        client.until(lambda: len(client.bodies[number]) == window + 5_000)
        client.open_window(number, 10_000_000)
        client.until(lambda: client.seen(StreamEnded, number))
        assert events(client.bodies[number]) == ["initial-response", "SubscribeToShardEvent"]
        assert server.statistics().faults == {"EndEarly": 1}


def test_an_answer_begins_although_the_window_is_closed(server: KinesisServer) -> None:
    with Http2Client(server.endpoint_url, window=0) as client:
        number = client.request("ListStreams", {})
        client.until(lambda: client.seen(ResponseReceived, number))
        assert client.headers(number)[":status"] == "200"
        client.ping()
        assert not client.bodies[number]
        client.open_window(number, 1_000)
        client.until(lambda: client.seen(StreamEnded, number))


@pytest.mark.long
def test_a_client_that_reads_nothing_may_still_put(server: KinesisServer) -> None:
    with Http2Client(server.endpoint_url) as client:
        number = client.subscribe(consumer(client))
        server.put_records("orders", [("key", bytes(900_000))] * 30, shard=FIRST)
        put = {"StreamName": "orders", "PartitionKey": "key", "ExplicitHashKey": str(2**128 - 1)}
        for _ in range(20):
            client.request("PutRecord", put | {"Data": base64.b64encode(bytes(500_000)).decode()})
        with Http2Client(server.endpoint_url) as other:
            eventually(lambda: stored(other) == 20)
        client.until(lambda: len(client.bodies[number]) > 30 * 1_200_000)


def stored(client: Http2Client) -> int:
    """Count the records of the second shard."""
    place = {"StreamName": "orders", "ShardId": SECOND, "ShardIteratorType": "TRIM_HORIZON"}
    token = client.call("GetShardIterator", place)["ShardIterator"]
    return len(client.call("GetRecords", {"ShardIterator": token})["Records"])


def test_a_request_may_be_larger_than_every_window(client: Http2Client) -> None:
    record = {"PartitionKey": "key", "Data": base64.b64encode(bytes(900_000)).decode()}
    request = {"StreamName": "orders", "Records": [record] * 5}
    assert client.call("PutRecords", request)["FailedRecordCount"] == 0


def test_a_large_frame_may_follow_the_acknowledgement_of_its_size(client: Http2Client) -> None:
    while client.h2.max_outbound_frame_size < 50_000:
        client.h2.receive_data(client.socket.recv(1 << 16))
    record = {"PartitionKey": "key", "Data": base64.b64encode(bytes(30_000)).decode()}
    # Both leave in one piece, so that the server reads them together.
    answer = client.call("PutRecord", {"StreamName": "orders"} | record)
    assert answer["ShardId"] in {FIRST, SECOND}


@pytest.mark.long
def test_many_requests_may_come_before_the_client_knows_the_settings(client: Http2Client) -> None:
    numbers = [client.request("ListStreams", {}) for _ in range(200)]
    client.until(lambda: all(client.seen(StreamEnded, number) for number in numbers))


def test_a_cut_resets_its_stream_and_no_other(server: KinesisServer, client: Http2Client) -> None:
    server.inject(CutConnection(shard=FIRST))
    arn = consumer(client)
    cut, whole = client.subscribe(arn, FIRST), client.subscribe(arn, SECOND)
    server.put_records("orders", [("key", b"a")], shard=FIRST)
    client.until(lambda: client.seen(StreamReset, cut))
    assert events(client.bodies[cut]) == ["initial-response"]
    server.put_records("orders", [("key", b"a")], shard=SECOND)
    client.until(lambda: "SubscribeToShardEvent" in events(client.bodies[whole]))


def test_a_clean_cut_ends_the_stream_inside_a_frame(
    server: KinesisServer, client: Http2Client
) -> None:
    server.inject(CutConnection(clean=True))
    number = client.subscribe(consumer(client))
    server.put_records("orders", [("key", b"a")], shard=FIRST)
    client.until(lambda: client.seen(StreamEnded, number))
    assert events(client.bodies[number]) == ["initial-response"]


def test_a_goaway_takes_the_whole_connection(server: KinesisServer, client: Http2Client) -> None:
    server.inject(GoAway(shard=FIRST))
    arn = consumer(client)
    first, second = client.subscribe(arn, FIRST), client.subscribe(arn, SECOND)
    client.until(lambda: client.bodies[first] and client.bodies[second])
    server.put_records("orders", [("key", b"a")], shard=FIRST)
    while client.receive():
        pass
    assert client.seen(ConnectionTerminated)
    assert events(client.bodies[first]) == ["initial-response", "SubscribeToShardEvent"]
    assert not any(client.seen(StreamEnded, number) for number in (first, second))
    eventually(lambda: requests_running() == 0)


def test_a_client_that_resets_a_stream_keeps_its_connection(server: KinesisServer) -> None:
    with Http2Client(server.endpoint_url, window=10_000) as client:
        server.put_records("orders", [("key", bytes(900_000))], shard=FIRST)
        number = client.subscribe(consumer(client))
        client.until(lambda: len(client.bodies[number]) == 10_000)
        client.h2.reset_stream(number)
        client.flush()
        eventually(lambda: server.statistics().open_subscriptions == 0)
        assert client.call("ListStreams", {})["StreamNames"] == ["orders"]


def test_a_call_that_is_never_answered_ends_with_its_reset(
    server: KinesisServer, client: Http2Client
) -> None:
    server.inject(IgnoreCall(action="ListStreams"))
    number = client.request("ListStreams", {})
    eventually(lambda: server.statistics().faults == {"IgnoreCall": 1})
    client.ping()
    assert (requests_running(), client.seen(StreamEnded, number)) == (2, False)
    client.h2.reset_stream(number)
    client.flush()
    eventually(lambda: requests_running() == 1)


def test_a_refused_call_has_its_status_and_code(server: KinesisServer, client: Http2Client) -> None:
    server.inject(RefuseCall(action="ListStreams", code="AccessDeniedException", message="not you"))
    number = client.request("ListStreams", {})
    client.until(lambda: client.seen(StreamEnded, number))
    headers = client.headers(number)
    assert (headers[":status"], headers["x-amzn-errortype"]) == ("400", "AccessDeniedException")


def test_what_is_no_http2_is_hung_up_on(
    server: KinesisServer, capfd: pytest.CaptureFixture[str]
) -> None:
    address = ("127.0.0.1", int(server.endpoint_url.rpartition(":")[2]))
    with socket.create_connection(address, timeout=10) as raw:
        raw.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\1\1\4\0\0\0\0nonsense")
        while raw.recv(1000):
            pass
    eventually(lambda: requests_running() == 0)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("window", [10_000, 1 << 30], ids=["full window", "full socket"])
def test_close_is_quick_while_a_client_does_not_read(
    server: KinesisServer, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanout.testing.kinesis.consumers.GRACE", 60.0)
    with Http2Client(server.endpoint_url, window=window) as client:
        client.subscribe(consumer(client))
        server.put_records("orders", [("key", bytes(900_000))] * 30, shard=FIRST)
        eventually(lambda: server.statistics().open_subscriptions == 1)
        begin = time.monotonic()
        server.close()
        assert time.monotonic() - begin < 20  # what it must not wait for takes a minute
    assert requests_running() == 0


def test_close_ends_what_a_connection_carries(server: KinesisServer, client: Http2Client) -> None:
    arn = consumer(client)
    for shard in (FIRST, SECOND):
        client.subscribe(arn, shard)
    server.inject(IgnoreCall(action="ListStreams"))
    client.request("ListStreams", {})
    eventually(lambda: server.statistics().faults == {"IgnoreCall": 1})
    eventually(lambda: server.statistics().open_subscriptions == 2)
    server.close()
    assert requests_running() == 0
    while client.receive():
        pass


def test_a_hundred_subscriptions_share_a_connection(
    server: KinesisServer, client: Http2Client
) -> None:
    server.create_stream("wide", 100)
    arn = consumer(client, "wide")
    numbers = [client.subscribe(arn, f"shardId-{index:012}") for index in range(100)]
    client.until(lambda: all(client.bodies[number] for number in numbers))
    keys = [str(index) for index in range(2_000)]
    server.put_records("wide", [(key, b"a") for key in keys])
    client.until(lambda: all(len(events(client.bodies[number])) > 1 for number in numbers))
    client.ping()
    assert server.statistics().open_subscriptions == 100


@pytest.mark.prove
def test_a_thousand_subscriptions_cost_less_than_100_kb_each() -> None:
    with KinesisProcess(SILENT) as server, ExitStack() as scope:
        server.create_stream("wide", 1_000)
        clients = [scope.enter_context(Http2Client(server.endpoint_url)) for _ in range(4)]
        arn = consumer(clients[0], "wide")
        before = 0
        for index in range(1_000):
            client = clients[index % 4]
            body = client.bodies[client.subscribe(arn, f"shardId-{index:012}")]
            client.until(body.__len__)
            if index == 99:
                before = resident(server.pid)
        assert server.statistics().open_subscriptions == 1_000
        assert (resident(server.pid) - before) / 900 < 100
        for client in clients:
            client.ping()


def resident(pid: int) -> int:
    """Return the memory of a process in KB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def test_both_protocols_are_served_on_one_port(kinesis: Any) -> None:
    with Http2Client(kinesis.server.endpoint_url) as client:
        assert client.call("ListStreams", {})["StreamNames"] == ["orders"]
    assert kinesis.client.list_streams()["StreamNames"] == ["orders"]
