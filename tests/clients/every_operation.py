"""Calls of every operation of Kinesis that the embedded server has, for any client of botocore."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator

    Calls = Generator[tuple[str, dict[str, Any]], dict[str, Any], None]


def every_operation() -> Calls:
    """Yield the operation and the arguments of each call; it takes the answers, and checks them.

    The answer to SubscribeToShard is its first event.
    """
    yield "CreateStream", {"StreamName": "orders", "ShardCount": 2}
    assert (yield "ListStreams", {})["StreamNames"] == ["orders"]
    orders = {"StreamName": "orders"}
    yield from _records(orders)
    yield from _reshards(orders)
    yield from _settings(orders)
    arn = (yield "DescribeStream", orders)["StreamDescription"]["StreamARN"]
    yield from _consumers(arn)
    yield "DescribeLimits", {}
    yield "DeleteStream", orders


def _records(orders: dict[str, Any]) -> Calls:
    put = yield "PutRecord", orders | {"PartitionKey": "a", "Data": b"first"}
    record = {"PartitionKey": "a", "Data": b"second"}
    assert (yield "PutRecords", orders | {"Records": [record]})["FailedRecordCount"] == 0
    position = {"ShardId": put["ShardId"], "ShardIteratorType": "TRIM_HORIZON"}
    iterator = (yield "GetShardIterator", orders | position)["ShardIterator"]
    records = (yield "GetRecords", {"ShardIterator": iterator})["Records"]
    assert [record["Data"] for record in records] == [b"first", b"second"]


def _settings(orders: dict[str, Any]) -> Calls:
    yield "AddTagsToStream", orders | {"Tags": {"team": "a", "tier": "b"}}
    yield "RemoveTagsFromStream", orders | {"TagKeys": ["tier"]}
    assert (yield "ListTagsForStream", orders)["Tags"] == [{"Key": "team", "Value": "a"}]
    yield "IncreaseStreamRetentionPeriod", orders | {"RetentionPeriodHours": 48}
    yield "DecreaseStreamRetentionPeriod", orders | {"RetentionPeriodHours": 36}
    key = {"EncryptionType": "KMS", "KeyId": "alias/aws/kinesis"}
    yield "StartStreamEncryption", orders | key
    metrics = {"ShardLevelMetrics": ["IncomingBytes"]}
    yield "EnableEnhancedMonitoring", orders | metrics
    summary = (yield "DescribeStreamSummary", orders)["StreamDescriptionSummary"]
    assert summary["RetentionPeriodHours"] == 36
    assert (summary["EncryptionType"], summary["KeyId"]) == ("KMS", "alias/aws/kinesis")
    assert summary["EnhancedMonitoring"] == [metrics]
    yield "DisableEnhancedMonitoring", orders | metrics
    yield "StopStreamEncryption", orders | key
    mode = {"StreamMode": "ON_DEMAND"}
    yield "UpdateStreamMode", {"StreamARN": summary["StreamARN"], "StreamModeDetails": mode}
    policy = {"ResourceARN": summary["StreamARN"]}
    yield "PutResourcePolicy", policy | {"Policy": "{}"}
    assert (yield "GetResourcePolicy", policy)["Policy"] == "{}"
    yield "DeleteResourcePolicy", policy
    summary = (yield "DescribeStreamSummary", orders)["StreamDescriptionSummary"]
    assert (summary["EncryptionType"], summary["StreamModeDetails"]) == ("NONE", mode)


def _reshards(orders: dict[str, Any]) -> Calls:
    first, second = (yield "ListShards", orders)["Shards"]
    pair = {"ShardToMerge": first["ShardId"], "AdjacentShardToMerge": second["ShardId"]}
    yield "MergeShards", orders | pair
    (child,) = (yield "ListShards", orders | {"ShardFilter": {"Type": "AT_LATEST"}})["Shards"]
    middle = str(1 << 127)
    where = {"ShardToSplit": child["ShardId"], "NewStartingHashKey": middle}
    yield "SplitShard", orders | where
    target = {"TargetShardCount": 3, "ScalingType": "UNIFORM_SCALING"}
    assert (yield "UpdateShardCount", orders | target)["CurrentShardCount"] == 2


def _consumers(arn: str) -> Calls:
    name = {"StreamARN": arn, "ConsumerName": "audit"}
    consumer = (yield "RegisterStreamConsumer", name | {"Tags": {"team": "a"}})["Consumer"]
    assert (yield "ListStreamConsumers", {"StreamARN": arn})["Consumers"] == [consumer]
    tags = (yield "ListTagsForResource", {"ResourceARN": consumer["ConsumerARN"]})["Tags"]
    assert tags == [{"Key": "team", "Value": "a"}]
    yield "TagResource", {"ResourceARN": arn, "Tags": {"cost": "b"}}
    yield "UntagResource", {"ResourceARN": arn, "TagKeys": ["cost"]}
    described = (yield "DescribeStreamConsumer", name)["ConsumerDescription"]
    assert described == consumer | {"StreamARN": arn}
    event = yield (
        "SubscribeToShard",
        {
            "ConsumerARN": consumer["ConsumerARN"],
            "ShardId": "shardId-000000000000",
            "StartingPosition": {"Type": "TRIM_HORIZON"},
        },
    )
    assert {record["Data"] for record in event["Records"]} <= {b"first", b"second"}
    yield "DeregisterStreamConsumer", name
