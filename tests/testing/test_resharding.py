from __future__ import annotations

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from fanout.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST, SECOND, THIRD, FOURTH = (f"shardId-{index:012}" for index in range(4))
LAST_HASH_KEY = 2**128 - 1


def shards(kinesis: Any, **options: Any) -> dict[str, Any]:
    answer = kinesis.client.list_shards(StreamName="orders", **options)
    return {shard["ShardId"]: shard for shard in answer["Shards"]}


def hash_range(shard: dict[str, Any]) -> tuple[int, int]:
    both = shard["HashKeyRange"]
    return int(both["StartingHashKey"]), int(both["EndingHashKey"])


def polled(kinesis: Any, shard: str) -> list[bytes]:
    iterator = kinesis.client.get_shard_iterator(
        StreamName="orders", ShardId=shard, ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]
    records = kinesis.client.get_records(ShardIterator=iterator)["Records"]
    return [record["Data"] for record in records]


def test_a_parent_keeps_its_records(kinesis: Any) -> None:
    kinesis.put(b"a", b"b")
    low, high = kinesis.server.split_shard("orders", FIRST)
    assert polled(kinesis, FIRST) == [b"a", b"b"]
    assert polled(kinesis, low) + polled(kinesis, high) == []


def test_a_split_divides_the_range_at_the_key(kinesis: Any) -> None:
    kinesis.client.split_shard(StreamName="orders", ShardToSplit=FIRST, NewStartingHashKey="1000")
    listed = shards(kinesis)
    assert hash_range(listed[SECOND]) == (0, 999)
    assert hash_range(listed[THIRD]) == (1000, LAST_HASH_KEY)


@pytest.mark.parametrize("key", ["0", str(2**128)], ids=["start", "beyond"])
def test_a_split_outside_the_range_is_an_invalid_argument(kinesis: Any, key: str) -> None:
    with pytest.raises(ClientError, match="InvalidArgumentException"):
        kinesis.client.split_shard(StreamName="orders", ShardToSplit=FIRST, NewStartingHashKey=key)


@pytest.mark.parametrize("order", [(FIRST, SECOND), (SECOND, FIRST)], ids=["low", "high"])
def test_a_merge_joins_the_ranges_in_either_order(
    start: Callable[..., Any], order: tuple[str, str]
) -> None:
    kinesis = start(shards=2)
    kinesis.client.merge_shards(
        StreamName="orders", ShardToMerge=order[0], AdjacentShardToMerge=order[1]
    )
    merged = shards(kinesis)[THIRD]
    assert hash_range(merged) == (0, LAST_HASH_KEY)
    assert (merged["ParentShardId"], merged["AdjacentParentShardId"]) == order


def test_shards_that_are_not_neighbours_do_not_merge(start: Callable[..., Any]) -> None:
    kinesis = start(shards=3)
    with pytest.raises(ClientError, match="InvalidArgumentException"):
        kinesis.client.merge_shards(
            StreamName="orders", ShardToMerge=FIRST, AdjacentShardToMerge=THIRD
        )


def test_a_closed_shard_does_not_split_again(kinesis: Any) -> None:
    kinesis.server.split_shard("orders", FIRST)
    with pytest.raises(ClientError, match="InvalidArgumentException"):
        kinesis.client.split_shard(
            StreamName="orders", ShardToSplit=FIRST, NewStartingHashKey="1000"
        )


def test_new_records_go_to_the_children(kinesis: Any) -> None:
    low, high = kinesis.server.split_shard("orders", FIRST)
    for key in ("0", str(LAST_HASH_KEY)):
        kinesis.client.put_record(
            StreamName="orders", PartitionKey="key", Data=key.encode(), ExplicitHashKey=key
        )
    assert (polled(kinesis, low), polled(kinesis, high)) == (
        [b"0"],
        [str(LAST_HASH_KEY).encode()],
    )


def test_records_can_be_put_into_one_shard(start: Callable[..., Any]) -> None:
    kinesis = start(shards=3)
    kinesis.put(b"a", b"b", shard=SECOND)
    assert polled(kinesis, SECOND) == [b"a", b"b"]


def test_records_cannot_be_put_into_a_closed_shard(kinesis: Any) -> None:
    kinesis.server.split_shard("orders", FIRST)
    with pytest.raises(OptionError, match="no open shard"):
        kinesis.put(b"a", shard=FIRST)


def test_a_closed_shard_has_an_ending_number(kinesis: Any) -> None:
    (number,) = kinesis.put(b"a")
    kinesis.server.split_shard("orders", FIRST)
    assert int(shards(kinesis)[FIRST]["SequenceNumberRange"]["EndingSequenceNumber"]) > int(number)


def test_an_open_shard_has_no_ending_number(kinesis: Any) -> None:
    assert "EndingSequenceNumber" not in shards(kinesis)[FIRST]["SequenceNumberRange"]


def test_the_numbers_of_children_exceed_those_of_their_parent(kinesis: Any) -> None:
    kinesis.server.split_shard("orders", FIRST)
    listed = shards(kinesis)
    end = int(listed[FIRST]["SequenceNumberRange"]["EndingSequenceNumber"])
    assert int(listed[SECOND]["SequenceNumberRange"]["StartingSequenceNumber"]) > end


def test_the_summary_counts_open_shards_and_consumers(kinesis: Any) -> None:
    kinesis.server.split_shard("orders", FIRST)
    summary = kinesis.client.describe_stream_summary(StreamName="orders")
    description = summary["StreamDescriptionSummary"]
    assert (description["OpenShardCount"], description["ConsumerCount"]) == (2, 1)


def test_describe_stream_names_the_parents(kinesis: Any) -> None:
    kinesis.server.split_shard("orders", FIRST)
    description = kinesis.client.describe_stream(StreamName="orders")["StreamDescription"]
    assert [shard.get("ParentShardId") for shard in description["Shards"]] == [None, FIRST, FIRST]


def test_describe_stream_returns_pages_of_shards(start: Callable[..., Any]) -> None:
    kinesis = start(shards=5)
    pages = kinesis.client.get_paginator("describe_stream").paginate(
        StreamName="orders", PaginationConfig={"PageSize": 2}
    )
    listed = [[each["ShardId"] for each in page["StreamDescription"]["Shards"]] for page in pages]
    names = [f"shardId-{index:012}" for index in range(5)]
    assert listed == [names[:2], names[2:4], names[4:]]


def test_a_page_of_describe_stream_has_at_most_100_shards(start: Callable[..., Any]) -> None:
    kinesis = start(shards=101)
    for limit in ({}, {"Limit": 101}):
        description = kinesis.client.describe_stream(StreamName="orders", **limit)
        assert len(description["StreamDescription"]["Shards"]) == 100
        assert description["StreamDescription"]["HasMoreShards"]


def test_describe_stream_names_the_mode(kinesis: Any) -> None:
    for mode in ("PROVISIONED", "ON_DEMAND"):
        kinesis.client.update_stream_mode(
            StreamARN=kinesis.stream_arn, StreamModeDetails={"StreamMode": mode}
        )
        description = kinesis.client.describe_stream(StreamName="orders")["StreamDescription"]
        assert description["StreamModeDetails"] == {"StreamMode": mode}


def test_update_shard_count_leaves_that_many_open(start: Callable[..., Any]) -> None:
    kinesis = start(shards=2)
    kinesis.client.update_shard_count(
        StreamName="orders", TargetShardCount=3, ScalingType="UNIFORM_SCALING"
    )
    assert len(shards(kinesis, ShardFilter={"Type": "AT_LATEST"})) == 3


def test_a_drained_closed_shard_has_no_next_iterator(kinesis: Any) -> None:
    kinesis.server.split_shard("orders", FIRST)
    iterator = kinesis.client.get_shard_iterator(
        StreamName="orders", ShardId=FIRST, ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]
    assert kinesis.client.get_records(ShardIterator=iterator).get("NextShardIterator") is None


@pytest.mark.parametrize(
    ("shard_filter", "expected"),
    [
        ({"Type": "AT_TRIM_HORIZON"}, [FIRST]),
        ({"Type": "FROM_TRIM_HORIZON"}, [FIRST, SECOND, THIRD]),
        ({"Type": "AT_LATEST"}, [SECOND, THIRD]),
        ({"Type": "AFTER_SHARD_ID", "ShardId": SECOND}, [THIRD]),
        (
            {"Type": "FROM_TIMESTAMP", "Timestamp": datetime.now(UTC) + timedelta(days=1)},
            [SECOND, THIRD],
        ),
        ({"Type": "AT_TIMESTAMP", "Timestamp": datetime.now(UTC) - timedelta(days=1)}, []),
    ],
    ids=lambda value: value["Type"] if isinstance(value, dict) else "",
)
def test_list_shards_filters(
    kinesis: Any, shard_filter: dict[str, Any], expected: list[str]
) -> None:
    kinesis.server.split_shard("orders", FIRST)
    assert list(shards(kinesis, ShardFilter=shard_filter)) == expected


def test_list_shards_goes_on_after_a_shard(start: Callable[..., Any]) -> None:
    kinesis = start(shards=3)
    assert list(shards(kinesis, ExclusiveStartShardId=FIRST)) == [SECOND, THIRD]


def test_list_shards_pages(start: Callable[..., Any]) -> None:
    kinesis = start(shards=3)
    page = kinesis.client.list_shards(StreamName="orders", MaxResults=2)
    rest = kinesis.client.list_shards(NextToken=page["NextToken"])
    assert [shard["ShardId"] for shard in page["Shards"] + rest["Shards"]] == [FIRST, SECOND, THIRD]
    assert "NextToken" not in rest


def test_list_shards_refuses_a_token_with_a_name(start: Callable[..., Any]) -> None:
    kinesis = start(shards=3)
    token = kinesis.client.list_shards(StreamName="orders", MaxResults=2)["NextToken"]
    with pytest.raises(ClientError, match="cannot be provided together"):
        kinesis.client.list_shards(StreamName="orders", NextToken=token)


def test_puts_from_many_threads_are_all_kept_in_order(start: Callable[..., Any]) -> None:
    kinesis = start(shards=1)

    def put(writer: int) -> list[str]:
        return [kinesis.put(b"%d" % writer)[0] for _ in range(200)]

    with ThreadPoolExecutor(4) as writers:
        placed = list(writers.map(put, range(4)))
    assert all(numbers == sorted(numbers) for numbers in placed)
    assert len({number for numbers in placed for number in numbers}) == 800


def test_records_put_during_splits_are_all_kept(start: Callable[..., Any]) -> None:
    kinesis = start(shards=1)

    def put(writer: int) -> None:
        for index in range(200):
            kinesis.server.put_records("orders", [(f"{writer}-{index}", b"a")])

    with ThreadPoolExecutor(3) as writers:
        waiting = [writers.submit(put, writer) for writer in range(2)]
        for shard in (FIRST, SECOND, THIRD):
            writers.submit(kinesis.server.split_shard, "orders", shard).result()
        for each in waiting:
            each.result()
    assert sum(len(polled(kinesis, shard)) for shard in shards(kinesis)) == 400


def test_put_records_answers_per_record(start: Callable[..., Any]) -> None:
    kinesis = start(shards=2)
    records = [
        {"Data": b"a", "PartitionKey": "key", "ExplicitHashKey": key}
        for key in ("0", str(LAST_HASH_KEY))
    ]
    answer = kinesis.client.put_records(StreamName="orders", Records=records)
    assert [record["ShardId"] for record in answer["Records"]] == [FIRST, SECOND]


def test_more_than_500_records_are_refused(kinesis: Any) -> None:
    records = [{"Data": b"a", "PartitionKey": "key"}] * 501
    with pytest.raises(ClientError, match="ValidationException"):
        kinesis.client.put_records(StreamName="orders", Records=records)


def test_data_that_is_not_base64_is_refused(kinesis: Any) -> None:
    headers = {
        "Content-Type": "application/x-amz-json-1.1",
        "X-Amz-Target": "Kinesis_20131202.PutRecord",
        "Authorization": "AWS4-HMAC-SHA256 Credential=t/20260101/us-east-1/kinesis/aws4_request,",
    }
    record = {"StreamName": "orders", "PartitionKey": "key", "Data": '"'}
    request = urllib.request.Request(  # noqa: S310 (our own server)
        kinesis.server.endpoint_url, json.dumps(record).encode(), headers
    )
    with pytest.raises(urllib.error.HTTPError) as error, urllib.request.urlopen(request):  # noqa: S310 (our own server)
        pass
    with error.value as answer:
        assert json.load(answer)["__type"] == "SerializationException"


@pytest.mark.long
def test_50_000_records_are_put_in_seconds(start: Callable[..., Any]) -> None:
    kinesis = start(shards=2)
    records = [{"Data": b"a" * 100, "PartitionKey": str(index)} for index in range(500)]
    for _ in range(100):
        kinesis.client.put_records(StreamName="orders", Records=records)
    assert len(polled(kinesis, FIRST)) + len(polled(kinesis, SECOND)) == 20_000


def test_what_has_expired_is_listed_and_served_no_more(kinesis: Any) -> None:
    kinesis.put(b"a")
    children = kinesis.server.split_shard("orders", FIRST)
    kinesis.put(b"b", shard=children[0])
    kinesis.server.expire("orders")
    kinesis.put(b"c", shard=children[0])
    shards = kinesis.client.list_shards(StreamName="orders")["Shards"]
    oldest = kinesis.client.list_shards(
        StreamName="orders", ShardFilter={"Type": "AT_TRIM_HORIZON"}
    )["Shards"]
    assert [each["ShardId"] for each in shards] == [each["ShardId"] for each in oldest]
    assert [each["ShardId"] for each in shards] == list(children)
    with pytest.raises(ClientError, match="ResourceNotFoundException"):
        kinesis.subscribe(shard=FIRST)
    (record,) = next(kinesis.subscribe(shard=children[0]))["Records"]
    assert record["Data"] == b"c"
    assert kinesis.server.split_shard("orders", children[0])[0] not in {FIRST, *children}


def test_the_numbers_of_a_stream_that_is_created_again_are_new(kinesis: Any) -> None:
    (old,) = kinesis.put(b"a")
    kinesis.client.delete_stream(StreamName="orders", EnforceConsumerDeletion=True)
    kinesis.server.create_stream("orders")
    kinesis.register("etl")
    kinesis.put(b"b")
    with pytest.raises(ClientError, match="InvalidArgumentException"):
        kinesis.subscribe(
            "AFTER_SEQUENCE_NUMBER", SequenceNumber=old, consumer=kinesis.register("x")
        )
