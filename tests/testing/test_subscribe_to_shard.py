from __future__ import annotations

import json
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from botocore.eventstream import EventStreamBuffer

from fanout.testing.kinesis.rules import KinesisRules
from tests.testing.wires import CBOR, NO_AUTHORITIES, Wire, to_cbor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FIRST = "shardId-000000000000"
SCOPE = "Credential=testing/20260101/us-east-1/kinesis/aws4_request"
# A test under these rules would time out if it had to wait for a heartbeat.
SILENT = KinesisRules(heartbeat=600, takeover_after=0, call_interval=0)


def data(event: dict[str, Any]) -> list[bytes]:
    return [record["Data"] for record in event["Records"]]


def first_frame(kinesis: Any, wire: Wire) -> dict[str, str]:
    """Return the headers of the first frame, which botocore keeps to itself."""
    position = {"Type": "TRIM_HORIZON"}
    request = {"ConsumerARN": kinesis.consumer_arn, "ShardId": FIRST, "StartingPosition": position}
    headers = {
        "X-Amz-Target": "Kinesis_20131202.SubscribeToShard",
        "Authorization": f"AWS4-HMAC-SHA256 {SCOPE}, SignedHeaders=host, Signature=0",
        "Content-Type": CBOR if wire.cbor else "application/x-amz-json-1.1",
    }
    body = to_cbor(request) if wire.cbor else json.dumps(request).encode()
    buffer = EventStreamBuffer()
    with (
        httpx.Client(verify=NO_AUTHORITIES, http1=not wire.http2, http2=wire.http2) as http,
        http.stream("POST", kinesis.server.endpoint_url, content=body, headers=headers) as response,
    ):
        for chunk in response.iter_raw():
            buffer.add_data(chunk)
            if (message := next(buffer, None)) is not None:
                return dict(message.headers)
    raise AssertionError("the subscription ended before its first frame")


def numbers(events: Iterator[dict[str, Any]], count: int) -> list[int]:
    return [int(event["ContinuationSequenceNumber"]) for event in islice(events, count)]


def test_trim_horizon_begins_with_the_oldest_record(kinesis: Any) -> None:
    kinesis.put(b"a", b"b")
    assert data(next(kinesis.subscribe("TRIM_HORIZON"))) == [b"a", b"b"]


def test_latest_begins_after_the_newest_record(start: Callable[..., Any]) -> None:
    kinesis = start(SILENT)
    kinesis.put(b"a")
    events = kinesis.subscribe("LATEST")
    kinesis.put(b"b")
    assert data(next(events)) == [b"b"]


def test_at_sequence_number_begins_with_that_record(kinesis: Any) -> None:
    number = kinesis.put(b"a", b"b", b"c")[1]
    events = kinesis.subscribe("AT_SEQUENCE_NUMBER", SequenceNumber=number)
    assert data(next(events)) == [b"b", b"c"]


def test_after_sequence_number_begins_behind_that_record(kinesis: Any) -> None:
    number = kinesis.put(b"a", b"b", b"c")[1]
    events = kinesis.subscribe("AFTER_SEQUENCE_NUMBER", SequenceNumber=number)
    assert data(next(events)) == [b"c"]


def test_at_timestamp_begins_with_the_first_record_that_arrived_then(kinesis: Any) -> None:
    kinesis.put(b"a", b"b")
    arrival = next(kinesis.subscribe())["Records"][0]["ApproximateArrivalTimestamp"]
    assert data(next(kinesis.subscribe("AT_TIMESTAMP", Timestamp=arrival))) == [b"a", b"b"]


def test_at_timestamp_before_the_horizon_begins_with_the_oldest_record(kinesis: Any) -> None:
    kinesis.put(b"a")
    events = kinesis.subscribe("AT_TIMESTAMP", Timestamp=datetime(2020, 1, 1, tzinfo=UTC))
    assert data(next(events)) == [b"a"]


def test_a_record_carries_key_number_and_arrival(kinesis: Any) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    (number,) = kinesis.put(b"a")
    (record,) = next(kinesis.subscribe())["Records"]
    assert record["ApproximateArrivalTimestamp"] >= before
    assert (record["PartitionKey"], record["SequenceNumber"]) == ("key", number)


def test_a_record_is_pushed_without_waiting_for_a_heartbeat(start: Callable[..., Any]) -> None:
    kinesis = start(SILENT)
    events = kinesis.subscribe()
    kinesis.put(b"a")
    assert data(next(events)) == [b"a"]
    kinesis.put(b"b")
    assert data(next(events)) == [b"b"]


def test_an_initial_response_comes_first(kinesis: Any, wire: Wire) -> None:
    assert first_frame(kinesis, wire)[":event-type"] == "initial-response"


def test_the_initial_response_can_be_switched_off(start: Callable[..., Any], wire: Wire) -> None:
    kinesis = start(KinesisRules(heartbeat=0.05, initial_response=False))
    assert first_frame(kinesis, wire)[":event-type"] == "SubscribeToShardEvent"


def test_an_idle_shard_sends_empty_events(kinesis: Any) -> None:
    assert [data(event) for event in islice(kinesis.subscribe(), 2)] == [[], []]


def test_the_continuation_moves_without_records(kinesis: Any) -> None:
    first, second, third = numbers(kinesis.subscribe(), 3)
    assert first < second < third


def test_the_continuation_is_not_the_number_of_the_last_record(kinesis: Any) -> None:
    (number,) = kinesis.put(b"a")
    assert numbers(kinesis.subscribe(), 1) > [int(number)]


def test_sequence_numbers_have_56_digits(kinesis: Any) -> None:
    (number,) = kinesis.put(b"a")
    assert len(number) == len(next(kinesis.subscribe())["ContinuationSequenceNumber"]) == 56


def test_a_record_put_after_a_continuation_has_a_larger_number(kinesis: Any) -> None:
    (continuation,) = numbers(kinesis.subscribe(), 1)
    (number,) = kinesis.put(b"a")
    assert int(number) > continuation


@pytest.mark.parametrize("kind", ["AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"])
@pytest.mark.parametrize("per_event", [1, 2, 10], ids=["backlog", "middle", "tip"])
def test_a_continuation_neither_repeats_nor_skips(
    start: Callable[..., Any], kind: str, per_event: int
) -> None:
    rules = KinesisRules(max_event_records=per_event, takeover_after=0, call_interval=0)
    kinesis = start(rules)
    kinesis.put(b"a", b"b", b"c")
    event = next(kinesis.subscribe())
    kinesis.put(b"d")
    seen = data(event)
    events = kinesis.subscribe(kind, SequenceNumber=event["ContinuationSequenceNumber"])
    while len(seen) < 4:
        seen += data(next(events))
    assert seen == [b"a", b"b", b"c", b"d"]


def test_the_tip_is_0_behind(kinesis: Any) -> None:
    kinesis.put(b"a")
    assert next(kinesis.subscribe())["MillisBehindLatest"] == 0


def test_a_backlog_is_more_than_0_behind(start: Callable[..., Any]) -> None:
    kinesis = start(KinesisRules(max_event_records=1))
    kinesis.put(b"a", b"b")
    assert next(kinesis.subscribe())["MillisBehindLatest"] > 0


def test_an_event_holds_so_many_records_at_most(start: Callable[..., Any]) -> None:
    kinesis = start(KinesisRules(max_event_records=2))
    kinesis.put(b"a", b"b", b"c")
    assert [data(event) for event in islice(kinesis.subscribe(), 2)] == [[b"a", b"b"], [b"c"]]


def test_an_event_holds_so_many_bytes_at_most(start: Callable[..., Any]) -> None:
    kinesis = start(KinesisRules(max_event_bytes=2 * len(b"keya")))
    kinesis.put(b"a", b"b", b"c")
    assert [data(event) for event in islice(kinesis.subscribe(), 2)] == [[b"a", b"b"], [b"c"]]


def test_a_record_above_the_limit_of_bytes_is_sent_alone(start: Callable[..., Any]) -> None:
    kinesis = start(KinesisRules(max_event_bytes=1))
    kinesis.put(b"a", b"b")
    assert [data(event) for event in islice(kinesis.subscribe(), 2)] == [[b"a"], [b"b"]]


def test_a_subscription_ends_after_its_life(start: Callable[..., Any]) -> None:
    kinesis = start(KinesisRules(subscription_life=0.1))
    assert list(kinesis.subscribe()) == []


def test_a_closed_shard_ends_with_its_children(kinesis: Any) -> None:
    kinesis.put(b"a")
    low, high = kinesis.server.split_shard("orders", FIRST)
    (event,) = kinesis.subscribe()
    assert data(event) == [b"a"]
    assert [child["ShardId"] for child in event["ChildShards"]] == [low, high]


def test_the_last_event_has_no_continuation(kinesis: Any) -> None:
    kinesis.server.split_shard("orders", FIRST)
    (event,) = kinesis.subscribe()
    assert "ContinuationSequenceNumber" not in event


def test_only_the_last_event_of_a_backlog_names_children(start: Callable[..., Any]) -> None:
    kinesis = start(KinesisRules(max_event_records=1))
    kinesis.put(b"a", b"b")
    kinesis.server.split_shard("orders", FIRST)
    assert ["ChildShards" in event for event in kinesis.subscribe()] == [False, True]


def test_a_closed_shard_past_its_last_record_ends_at_once(start: Callable[..., Any]) -> None:
    kinesis = start(SILENT)
    (number,) = kinesis.put(b"a")
    kinesis.server.split_shard("orders", FIRST)
    (event,) = kinesis.subscribe("AFTER_SEQUENCE_NUMBER", SequenceNumber=number)
    assert (data(event), len(event["ChildShards"])) == ([], 2)


def test_a_live_subscription_learns_of_a_split_at_once(start: Callable[..., Any]) -> None:
    kinesis = start(SILENT)
    events = kinesis.subscribe("LATEST")
    kinesis.server.split_shard("orders", FIRST)
    assert [len(event["ChildShards"]) for event in events] == [2]


def test_a_child_of_a_merge_names_both_parents(start: Callable[..., Any]) -> None:
    kinesis = start(SILENT, shards=2)
    second = "shardId-000000000001"
    merged = kinesis.server.merge_shards("orders", FIRST, second)
    (event,) = kinesis.subscribe()
    (child,) = event["ChildShards"]
    assert (child["ShardId"], child["ParentShards"]) == (merged, [FIRST, second])
    assert child["HashKeyRange"] == {
        "StartingHashKey": "0",
        "EndingHashKey": str(2**128 - 1),
    }
