"""Requests that no SDK would send: each is answered as the service answers it, on every wire."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import cbor2
import httpx
import pytest

from tests.testing.wires import CBOR, NO_AUTHORITIES, Wire, to_cbor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FIRST = "shardId-000000000000"
JSON = "application/x-amz-json-1.1"
SCOPE = "Credential=testing/20260101/us-east-1/kinesis/aws4_request"
ORDERS = {"StreamName": "orders"}
RECORD = {"PartitionKey": "key", "Data": "YQ=="}


@pytest.fixture
def send(kinesis: Any, wire: Wire) -> Iterator[Callable[[str, bytes], tuple[int, dict[str, Any]]]]:
    """Send a body as it is, and return the status and the document of the answer."""
    with httpx.Client(verify=NO_AUTHORITIES, http1=not wire.http2, http2=wire.http2) as http:

        def send(action: str, body: bytes) -> tuple[int, dict[str, Any]]:
            headers = {
                "X-Amz-Target": f"Kinesis_20131202.{action}",
                "Authorization": f"AWS4-HMAC-SHA256 {SCOPE}, SignedHeaders=host, Signature=0",
                "Content-Type": CBOR if wire.cbor else JSON,
            }
            answer = http.post(kinesis.server.endpoint_url, content=body, headers=headers)
            assert ("cbor" if wire.cbor else "json") in answer.headers["content-type"]
            content = answer.content
            return answer.status_code, cbor2.loads(content) if wire.cbor else json.loads(content)

        yield send


@pytest.fixture
def ask(
    send: Callable[[str, bytes], tuple[int, dict[str, Any]]], wire: Wire
) -> Callable[[str, Any], tuple[int, dict[str, Any]]]:
    def ask(action: str, request: Any) -> tuple[int, dict[str, Any]]:
        return send(action, to_cbor(request) if wire.cbor else json.dumps(request).encode())

    return ask


@pytest.mark.parametrize("action", ["CreateChannel", "Nonsense", "Dispatch", ""])
def test_an_operation_that_is_not_there_is_unknown(ask: Any, action: str) -> None:
    status, answer = ask(action, {})
    assert (status, answer["__type"]) == (400, "UnknownOperationException")


@pytest.mark.parametrize(
    ("action", "request_"),
    [
        ("GetShardIterator", ORDERS | {"ShardIteratorType": "LATEST"}),
        ("GetShardIterator", ORDERS | {"ShardId": FIRST, "ShardIteratorType": "NOWHERE"}),
        ("GetShardIterator", ORDERS | {"ShardId": "", "ShardIteratorType": "LATEST"}),
        ("GetRecords", {"ShardIterator": None}),
        ("GetRecords", {"ShardIterator": "x", "Limit": 0}),
        ("GetRecords", {"ShardIterator": "x", "Limit": 10_001}),
        ("ListShards", ORDERS | {"MaxResults": 0}),
        ("DescribeStream", ORDERS | {"Limit": 0}),
        ("CreateStream", {"StreamName": "a stream"}),
        ("PutRecord", ORDERS | RECORD | {"ExplicitHashKey": "abc"}),
        ("PutRecord", ORDERS | RECORD | {"PartitionKey": ""}),
        ("PutRecords", ORDERS | {"Records": []}),
        ("PutRecords", ORDERS | {"Records": [RECORD | {"ExplicitHashKey": "abc"}]}),
        ("PutRecords", ORDERS | {"Records": [{"PartitionKey": "key"}]}),
        ("SubscribeToShard", {"ShardId": FIRST}),
        ("TagResource", {"ResourceARN": "arn:aws:kinesis:us-east-1:123456789012:stream/orders"}),
    ],
    ids=str,
)
def test_a_value_that_is_missing_or_out_of_its_bounds_is_invalid(
    ask: Any, action: str, request_: dict[str, Any]
) -> None:
    status, answer = ask(action, request_)
    assert (status, answer["__type"]) == (400, "ValidationException"), answer


@pytest.mark.parametrize(
    ("action", "request_"),
    [
        ("ListStreams", {"Limit": "ten"}),
        ("ListStreams", {"Limit": True}),
        ("DescribeStream", {"StreamName": 1}),
        ("PutRecords", ORDERS | {"Records": RECORD}),
        ("PutRecords", ORDERS | {"Records": ["key"]}),
        ("RemoveTagsFromStream", ORDERS | {"TagKeys": [{}]}),
        ("AddTagsToStream", ORDERS | {"Tags": {"team": 1}}),
        ("SubscribeToShard", {"ConsumerARN": [], "ShardId": FIRST}),
    ],
    ids=str,
)
def test_a_value_of_another_type_is_not_readable(
    ask: Any, action: str, request_: dict[str, Any]
) -> None:
    status, answer = ask(action, request_)
    assert (status, answer["__type"]) == (400, "SerializationException"), answer


@pytest.mark.parametrize("body", [b"{", b"[]", b"1", b'"\xff"', b"[" * 100_000])
def test_a_body_that_is_no_structure_is_not_readable(send: Any, body: bytes) -> None:
    status, answer = send("ListStreams", body)
    assert (status, answer["__type"]) == (400, "SerializationException")


@pytest.mark.parametrize("region", ["mars-north-1", "us-east-9"])
def test_a_region_that_aws_has_not_is_refused(
    ask: Any, monkeypatch: pytest.MonkeyPatch, region: str
) -> None:
    scope = f"Credential=testing/20260101/{region}/kinesis/aws4_request"
    monkeypatch.setattr("tests.testing.test_bad_requests.SCOPE", scope)
    status, answer = ask("ListStreams", {})
    assert (status, answer["__type"]) == (400, "InvalidSignatureException")
    assert "valid region" in (answer.get("message") or answer.get("Message", ""))


def test_a_mistake_of_the_server_is_answered_and_logged(
    ask: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        "fanout.testing.kinesis.moto_backend.Backend.list_streams", lambda _: [].pop()
    )
    with caplog.at_level(logging.WARNING, "fanout.testing"):
        status, answer = ask("ListStreams", {})
    assert (status, answer["__type"]) == (500, "InternalFailure")
    assert "IndexError" in caplog.text
