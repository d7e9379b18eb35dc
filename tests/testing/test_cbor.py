from __future__ import annotations

import http.client
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import cbor2
import pytest

from fanout.testing.kinesis.rules import KinesisRules
from fanout.testing.kinesis.server import KinesisServer
from tests.testing.wires import to_cbor

if TYPE_CHECKING:
    from collections.abc import Iterator

CBOR = "application/x-amz-cbor-1.1"
SCOPE = "Credential=testing/20260101/us-east-1/kinesis/aws4_request"
UNKNOWN = {"StreamName": "unknown"}


@pytest.fixture
def server() -> Iterator[KinesisServer]:
    with KinesisServer(KinesisRules.fast()) as server:
        server.create_stream("orders")
        yield server


def post(server: KinesisServer, action: str, body: bytes, kind: str = CBOR) -> tuple[int, Any, Any]:
    """Return the status, the headers and the body of an answer."""
    connection = http.client.HTTPConnection(server.endpoint_url.removeprefix("http://"))
    headers = {
        "Authorization": f"AWS4-HMAC-SHA256 {SCOPE}, SignedHeaders=host, Signature=0",
        "Content-Type": kind,
        "X-Amz-Target": f"Kinesis_20131202.{action}",
    }
    connection.request("POST", "/", body, headers)
    with connection.getresponse() as answer:
        content = answer.read()
    connection.close()
    return answer.status, answer.headers, content


def call(server: KinesisServer, action: str, request: dict[str, Any]) -> Any:
    status, headers, body = post(server, action, to_cbor(request))
    assert (status, headers["content-type"]) == (200, CBOR)
    # A time as the SDK for Java reads it: any number, in milliseconds.
    return cbor2.loads(body, semantic_decoders={1: lambda value, _: ("time", value)})


def test_data_is_a_byte_string(server: KinesisServer) -> None:
    put = {"StreamName": "orders", "PartitionKey": "key", "Data": "AP8="}
    assert call(server, "PutRecord", put)["ShardId"] == "shardId-000000000000"
    (record,) = polled(server)["Records"]
    assert (record["Data"], record["PartitionKey"]) == (b"\x00\xff", "key")


def test_records_of_one_call_are_byte_strings(server: KinesisServer) -> None:
    records = [{"PartitionKey": "key", "Data": data} for data in ("YQ==", "", "Yg==")]
    answer = call(server, "PutRecords", {"StreamName": "orders", "Records": records})
    assert answer["FailedRecordCount"] == 0
    assert [record["Data"] for record in polled(server)["Records"]] == [b"a", b"", b"b"]


def test_a_time_is_tagged_and_in_whole_milliseconds(server: KinesisServer) -> None:
    before = int(datetime.now(UTC).timestamp() * 1000)
    server.put_records("orders", [("key", b"a")])
    (record,) = polled(server)["Records"]
    name, millis = record["ApproximateArrivalTimestamp"]
    assert name == "time"
    assert before <= millis <= int(datetime.now(UTC).timestamp() * 1000)
    summary = call(server, "DescribeStreamSummary", {"StreamName": "orders"})
    name, millis = summary["StreamDescriptionSummary"]["StreamCreationTimestamp"]
    assert (name, isinstance(millis, int)) == ("time", True)


def test_a_time_of_a_request_is_in_milliseconds(server: KinesisServer) -> None:
    server.put_records("orders", [("key", b"a")])
    (record,) = polled(server)["Records"]
    seconds = record["ApproximateArrivalTimestamp"][1] / 1000
    assert polled(server, "AT_TIMESTAMP", Timestamp=seconds)["Records"] == [record]
    assert polled(server, "AT_TIMESTAMP", Timestamp=seconds - 1)["Records"] == [record]


def test_an_error_is_in_cbor_too(server: KinesisServer) -> None:
    status, headers, body = post(server, "DescribeStream", to_cbor(UNKNOWN))
    assert (status, headers["content-type"]) == (400, CBOR)
    error = cbor2.loads(body)
    assert (headers["x-amzn-errortype"], error["__type"]) == ("ResourceNotFoundException",) * 2
    assert "Stream unknown" in error["message"]


def test_a_refused_subscription_is_answered_in_cbor(server: KinesisServer) -> None:
    consumer = "arn:aws:kinesis:us-east-1:123456789012:stream/orders/consumer/nobody:1"
    request = {"ConsumerARN": consumer, "ShardId": "x", "StartingPosition": {"Type": "LATEST"}}
    status, headers, body = post(server, "SubscribeToShard", to_cbor(request))
    assert (status, headers["content-type"]) == (400, CBOR)
    assert cbor2.loads(body)["__type"] == "ResourceNotFoundException"


def test_an_answer_without_members_is_an_empty_map(server: KinesisServer) -> None:
    request = {"StreamName": "orders", "Tags": {"team": "a"}}
    assert call(server, "AddTagsToStream", request) == {}


def test_a_call_without_a_body_has_no_members(server: KinesisServer) -> None:
    status, _, body = post(server, "ListStreams", b"")
    assert (status, b"orders" in body) == (200, True)


@pytest.mark.parametrize(
    "body",
    [
        b"\xff",
        b"\xa1",
        b"\xa0\xa0",
        b"{}",
        b"\x80",
        cbor2.dumps({"StreamName": {1, 2}}),
        b"\xc1\x61a",
    ],
    ids=["break", "cut", "two", "json", "list", "set", "time"],
)
def test_what_is_not_readable_is_a_serialization_exception(
    server: KinesisServer, body: bytes
) -> None:
    status, headers, answer = post(server, "ListStreams", body)
    assert (status, headers["content-type"]) == (400, CBOR)
    assert cbor2.loads(answer)["__type"] == "SerializationException"


def test_who_speaks_json_is_answered_in_json(server: KinesisServer) -> None:
    kind = "application/x-amz-json-1.1"
    status, headers, body = post(server, "DescribeStream", json.dumps(UNKNOWN).encode(), kind)
    assert (status, "json" in headers["content-type"]) == (400, True)
    assert json.loads(body)["__type"] == "ResourceNotFoundException"


def polled(server: KinesisServer, kind: str = "TRIM_HORIZON", **position: Any) -> Any:
    request = {
        "StreamName": "orders",
        "ShardId": "shardId-000000000000",
        "ShardIteratorType": kind,
        **position,
    }
    token = call(server, "GetShardIterator", request)["ShardIterator"]
    return call(server, "GetRecords", {"ShardIterator": token})
