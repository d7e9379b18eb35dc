"""What the service allows of streams, their records and their consumers, on every wire."""

from __future__ import annotations

import json
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.exceptions import ClientError

from fanout.testing.kinesis.api_model import extend_model
from fanout.testing.kinesis.rules import KinesisRules
from tests.testing.conftest import ONCE
from tests.testing.wires import Wire

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST = "shardId-000000000000"
ORDERS = {"StreamName": "orders"}
MIB = 1 << 20
ON_DEMAND = {"StreamMode": "ON_DEMAND"}
OTHER = "222222222222"


def call(kinesis: Any, operation: str, client: Any = None, **arguments: Any) -> dict[str, Any]:
    """Call an operation that the installed botocore may not know yet."""
    client = client or kinesis.client
    extend_model(client.meta.service_model)
    answer: dict[str, Any] = client._make_api_call(operation, arguments)
    return answer


def refusal(kinesis: Any, operation: str, client: Any = None, **arguments: Any) -> tuple[str, str]:
    with pytest.raises(ClientError) as error:
        call(kinesis, operation, client, **arguments)
    answer = error.value.response["Error"]
    return answer["Code"], answer["Message"]


def summary(kinesis: Any, name: str = "orders") -> dict[str, Any]:
    answer = call(kinesis, "DescribeStreamSummary", StreamName=name)
    described: dict[str, Any] = answer["StreamDescriptionSummary"]
    return described


def on_demand(kinesis: Any, name: str = "events", **options: Any) -> str:
    call(kinesis, "CreateStream", StreamName=name, StreamModeDetails=ON_DEMAND, **options)
    return str(summary(kinesis, name)["StreamARN"])


def widths(kinesis: Any, parts: int) -> list[float]:
    listed = call(kinesis, "ListShards", **ORDERS, ShardFilter={"Type": "AT_LATEST"})["Shards"]
    ranges = sorted(
        (int(each["HashKeyRange"]["StartingHashKey"]), int(each["HashKeyRange"]["EndingHashKey"]))
        for each in listed
    )
    return [round((end + 1 - start) * parts / 2**128, 6) for start, end in ranges]


# Shards.


@pytest.mark.parametrize(
    ("before", "target"),
    [
        (1, 2),
        (3, 5),
        (6, 3),
        (4, 4),
        *(
            pytest.param(*change, marks=pytest.mark.long)
            for change in [(2, 3), (3, 6), (4, 7), (6, 4), (5, 3)]
        ),
    ],
)
def test_a_changed_number_of_shards_is_uniform(
    start: Callable[..., Any], before: int, target: int
) -> None:
    kinesis = start(shards=before)
    answer = call(
        kinesis,
        "UpdateShardCount",
        StreamARN=kinesis.stream_arn,
        TargetShardCount=target,
        ScalingType="UNIFORM_SCALING",
    )
    counts = (answer["CurrentShardCount"], answer["TargetShardCount"], answer["StreamName"])
    assert counts == (before, target, "orders")
    assert widths(kinesis, target) == [1.0] * target
    assert summary(kinesis)["OpenShardCount"] == target


def test_children_of_a_changed_number_of_shards_name_their_parents(
    start: Callable[..., Any],
) -> None:
    kinesis = start(shards=3)
    target = {"TargetShardCount": 5, "ScalingType": "UNIFORM_SCALING"}
    call(kinesis, "UpdateShardCount", **ORDERS, **target)
    listed = {each["ShardId"]: each for each in call(kinesis, "ListShards", **ORDERS)["Shards"]}
    parents = [
        [each[name] for name in ("ParentShardId", "AdjacentParentShardId") if name in each]
        for each in listed.values()
    ]
    assert [len(each) for each in parents[:3]] == [0, 0, 0]
    assert all(1 <= len(each) <= 2 for each in parents[3:])
    closed = {key for key, each in listed.items() if "Ending" in str(each["SequenceNumberRange"])}
    assert {name for each in parents for name in each} == closed


@pytest.mark.parametrize(
    ("before", "target", "text"),
    [(3, 7, "over double"), (1, 3, "over double"), (6, 2, "below half"), (5, 2, "below half")],
)
def test_more_than_double_and_less_than_half_the_shards_are_refused(
    start: Callable[..., Any], before: int, target: int, text: str
) -> None:
    kinesis = start(shards=before)
    scaling = {"TargetShardCount": target, "ScalingType": "UNIFORM_SCALING"}
    code, message = refusal(kinesis, "UpdateShardCount", **ORDERS, **scaling)
    assert code == "InvalidArgumentException"
    assert f"{text} your current open shard count" in message
    assert f"{before} Target shard count: {target}" in message
    assert summary(kinesis)["OpenShardCount"] == before


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        ("SplitShard", {"ShardToSplit": FIRST, "NewStartingHashKey": "5"}),
        ("MergeShards", {"ShardToMerge": FIRST, "AdjacentShardToMerge": "shardId-000000000001"}),
        ("UpdateShardCount", {"TargetShardCount": 2, "ScalingType": "UNIFORM_SCALING"}),
    ],
)
def test_the_shards_of_an_on_demand_stream_are_the_service_s_own(
    kinesis: Any, operation: str, arguments: dict[str, Any]
) -> None:
    on_demand(kinesis)
    code, message = refusal(kinesis, operation, StreamName="events", **arguments)
    assert code == "ValidationException"
    assert message.endswith("is in On-Demand mode.")


def test_a_provisioned_stream_needs_a_number_of_shards(kinesis: Any) -> None:
    mode = {"StreamModeDetails": {"StreamMode": "PROVISIONED"}}
    for options in ({}, mode):
        code, message = refusal(kinesis, "CreateStream", StreamName="new", **options)
        assert (code, "ShardCount" in message) == ("ValidationException", True)


@pytest.mark.parametrize(
    "operation", ["GetShardIterator", "SplitShard", "MergeShards", "SubscribeToShard"]
)
def test_an_unknown_shard_is_named_with_its_stream(kinesis: Any, operation: str) -> None:
    unknown = "shardId-000000000077"
    arguments = {
        "GetShardIterator": ORDERS | {"ShardId": unknown, "ShardIteratorType": "LATEST"},
        "SplitShard": ORDERS | {"ShardToSplit": unknown, "NewStartingHashKey": "5"},
        "MergeShards": ORDERS | {"ShardToMerge": unknown, "AdjacentShardToMerge": FIRST},
        "SubscribeToShard": {
            "ConsumerARN": kinesis.consumer_arn,
            "ShardId": unknown,
            "StartingPosition": {"Type": "LATEST"},
        },
    }[operation]
    code, message = refusal(kinesis, operation, **arguments)
    assert code == "ResourceNotFoundException"
    assert unknown in message
    assert "stream orders" in message


def test_limits_count_open_shards_and_on_demand_streams(start: Callable[..., Any]) -> None:
    kinesis = start(shards=3)
    on_demand(kinesis)
    kinesis.server.split_shard("orders", FIRST)
    limits = kinesis.client.describe_limits()
    assert (limits["OpenShardCount"], limits["OnDemandStreamCount"]) == (4, 1)


# Pages.


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("StreamName", "orders"),
        ("StreamARN", None),
        ("ExclusiveStartShardId", FIRST),
        ("ShardFilter", {"Type": "AT_LATEST"}),
        ("StreamCreationTimestamp", 1),
    ],
)
def test_a_token_comes_alone(start: Callable[..., Any], name: str, value: Any) -> None:
    kinesis = start(shards=2)
    token = call(kinesis, "ListShards", **ORDERS, MaxResults=1)["NextToken"]
    given = {name: value or kinesis.stream_arn}
    code, message = refusal(kinesis, "ListShards", NextToken=token, **given)
    assert code == "InvalidArgumentException"
    assert message == f"NextToken and {name} cannot be provided together."


def test_a_listing_of_shards_needs_a_stream_or_a_token(kinesis: Any) -> None:
    code, message = refusal(kinesis, "ListShards")
    assert code == "InvalidArgumentException"
    assert message == "Either NextToken or StreamName should be provided."


def test_a_token_expires(start: Callable[..., Any]) -> None:
    kinesis = start(KinesisRules(token_life=0.2), shards=2)
    kinesis.register("second")
    shards = call(kinesis, "ListShards", **ORDERS, MaxResults=1)["NextToken"]
    listing = {"StreamARN": kinesis.stream_arn, "MaxResults": 1}
    consumers = call(kinesis, "ListStreamConsumers", **listing)["NextToken"]
    time.sleep(0.25)
    assert refusal(kinesis, "ListShards", NextToken=shards)[0] == "ExpiredNextTokenException"
    expired = refusal(kinesis, "ListStreamConsumers", **listing, NextToken=consumers)
    assert expired[0] == "ExpiredNextTokenException"


def test_consumers_are_listed_in_pages(kinesis: Any) -> None:
    for name in "abcd":
        kinesis.register(name)
    pages = kinesis.client.get_paginator("list_stream_consumers").paginate(
        StreamARN=kinesis.stream_arn, PaginationConfig={"PageSize": 2}
    )
    listed = [[each["ConsumerName"] for each in page["Consumers"]] for page in pages]
    assert listed == [["etl", "a"], ["b", "c"], ["d"]]
    arguments = {"StreamARN": kinesis.stream_arn, "NextToken": "nonsense"}
    assert refusal(kinesis, "ListStreamConsumers", **arguments)[0] == "InvalidArgumentException"


# Records.


@pytest.mark.parametrize(
    "limit", [1024, *(pytest.param(limit, marks=pytest.mark.long) for limit in (2048, 10_240))]
)
def test_a_record_with_its_key_is_as_large_as_the_stream_s_own_limit(
    start: Callable[..., Any], limit: int, wire: Wire
) -> None:
    if wire.cbor:
        pytest.skip("the client of this test writes CBOR slowly")
    kinesis = start()
    settings = {"StreamARN": kinesis.stream_arn, "MaxRecordSizeInKiB": limit}
    if limit > 1024:
        call(kinesis, "UpdateMaxRecordSize", **settings)
    assert summary(kinesis)["MaxRecordSizeInKiB"] == limit
    data = bytes(limit * 1024 - 3)
    kinesis.client.put_record(**ORDERS, PartitionKey="key", Data=data)
    code, message = refusal(kinesis, "PutRecord", **ORDERS, PartitionKey="four", Data=data)
    assert code == "ValidationException"
    assert str(limit * 1024) in message


def test_a_stream_is_created_with_its_own_limit(kinesis: Any) -> None:
    call(kinesis, "CreateStream", StreamName="big", ShardCount=1, MaxRecordSizeInKiB=10_240)
    assert summary(kinesis, "big")["MaxRecordSizeInKiB"] == 10_240


@pytest.mark.long
def test_a_call_puts_up_to_ten_mebibytes(kinesis: Any, wire: Wire) -> None:
    if wire.cbor:
        pytest.skip("the client of this test writes CBOR slowly")
    record = {"PartitionKey": "k", "Data": bytes(MIB - 1)}
    assert call(kinesis, "PutRecords", **ORDERS, Records=[record] * 10)["FailedRecordCount"] == 0
    small = {"PartitionKey": "k", "Data": b""}
    code, message = refusal(kinesis, "PutRecords", **ORDERS, Records=[record] * 10 + [small])
    assert (code, message) == ("InvalidArgumentException", "Records size exceeds 10 MB limit")


def test_a_dry_run_checks_a_call_and_does_nothing(kinesis: Any) -> None:
    (number,) = kinesis.put(b"a")
    where = {"ShardId": FIRST, "ShardIteratorType": "TRIM_HORIZON"}
    token = kinesis.client.get_shard_iterator(**ORDERS, **where)["ShardIterator"]
    record = {"PartitionKey": "k", "Data": b"b"}
    position = {"Type": "TRIM_HORIZON"}
    subscription = {"ConsumerARN": kinesis.consumer_arn, "StartingPosition": position}
    good: list[tuple[str, dict[str, Any]]] = [
        ("PutRecord", ORDERS | record),
        ("PutRecords", ORDERS | {"Records": [record]}),
        ("GetShardIterator", ORDERS | where),
        ("GetRecords", {"ShardIterator": token}),
        ("SubscribeToShard", subscription | {"ShardId": FIRST}),
    ]
    for operation, arguments in good:
        code, _ = refusal(kinesis, operation, **arguments, DryRun=True)
        assert code == "DryRunOperationException", operation
    records = kinesis.client.get_records(ShardIterator=token)["Records"]
    assert [each["SequenceNumber"] for each in records] == [number]
    unknown = subscription | {"ShardId": "shardId-000000000009"}
    assert refusal(kinesis, "SubscribeToShard", **unknown, DryRun=True)[0] == (
        "ResourceNotFoundException"
    )
    missing = {"StreamName": "nothing"} | record
    assert refusal(kinesis, "PutRecord", **missing, DryRun=True)[0] == "ResourceNotFoundException"


# Distribution by the service.


def test_an_automatic_stream_spreads_records_and_ignores_their_keys(kinesis: Any) -> None:
    arn = on_demand(kinesis, RecordDistributionStrategy="AUTO")
    assert summary(kinesis, "events")["RecordDistributionStrategy"] == "AUTO"
    records = [
        {"PartitionKey": "same", "ExplicitHashKey": "0", "Data": b"%d" % n} for n in range(8)
    ]
    records += [{"Data": b"%d" % n} for n in range(8, 16)]
    answer = call(kinesis, "PutRecords", StreamARN=arn, Records=records)["Records"]
    shards = [each["ShardId"] for each in answer]
    assert sorted(shards.count(each) for each in set(shards)) == [4, 4, 4, 4]
    found = {}
    for shard in set(shards):
        where = {"ShardId": shard, "ShardIteratorType": "TRIM_HORIZON"}
        token = call(kinesis, "GetShardIterator", StreamARN=arn, **where)["ShardIterator"]
        for each in call(kinesis, "GetRecords", ShardIterator=token)["Records"]:
            found[int(each["Data"])] = each.get("PartitionKey")
    assert found == dict.fromkeys(range(8), "same") | dict.fromkeys(range(8, 16))


def test_the_strategy_changes_while_a_stream_lives(kinesis: Any) -> None:
    arn = on_demand(kinesis)
    assert summary(kinesis, "events")["RecordDistributionStrategy"] == "USER_PARTITION_KEY"
    record = {"StreamARN": arn, "Data": b"a"}
    assert refusal(kinesis, "PutRecord", **record)[0] == "ValidationException"
    operation = "UpdateStreamRecordDistributionStrategy"
    call(kinesis, operation, StreamARN=arn, RecordDistributionStrategy="AUTO")
    put = call(kinesis, "PutRecord", **record)
    ordering = {"PartitionKey": "a", "SequenceNumberForOrdering": put["SequenceNumber"]}
    assert refusal(kinesis, "PutRecord", **record, **ordering)[0] == "InvalidArgumentException"
    call(kinesis, operation, StreamARN=arn, RecordDistributionStrategy="USER_PARTITION_KEY")
    assert refusal(kinesis, "PutRecord", **record)[0] == "ValidationException"
    call(kinesis, "PutRecord", **record, **ordering)


def test_the_service_distributes_on_demand_streams_alone(kinesis: Any) -> None:
    operation = "UpdateStreamRecordDistributionStrategy"
    auto = {"RecordDistributionStrategy": "AUTO"}
    code, _ = refusal(kinesis, operation, StreamARN=kinesis.stream_arn, **auto)
    assert code == "InvalidArgumentException"
    code, _ = refusal(kinesis, "CreateStream", StreamName="new", ShardCount=1, **auto)
    assert code == "InvalidArgumentException"
    assert "RecordDistributionStrategy" not in summary(kinesis)
    arn = on_demand(kinesis, **auto)
    provisioned = {"StreamModeDetails": {"StreamMode": "PROVISIONED"}}
    call(kinesis, "UpdateStreamMode", StreamARN=arn, **provisioned)
    assert refusal(kinesis, "PutRecord", StreamARN=arn, Data=b"a")[0] == "ValidationException"


# Settings.


def test_the_tags_of_a_new_stream_are_kept_and_there_are_fifty_at_most(kinesis: Any) -> None:
    call(kinesis, "CreateStream", StreamName="new", ShardCount=1, Tags={"team": "a"})
    tags = kinesis.client.list_tags_for_stream(StreamName="new")["Tags"]
    assert tags == [{"Key": "team", "Value": "a"}]
    arn = summary(kinesis, "new")["StreamARN"]
    thirty = [{f"{letter}{n}": "v" for n in range(30)} for letter in "ab"]
    call(kinesis, "AddTagsToStream", StreamName="new", Tags=thirty[0])
    for operation, named in [
        ("AddTagsToStream", {"StreamName": "new"}),
        ("TagResource", {"ResourceARN": arn}),
    ]:
        code, message = refusal(kinesis, operation, **named, Tags=thirty[1])
        assert (code, "50 tags" in message) == ("InvalidArgumentException", True)
    many = {f"{n}": "v" for n in range(51)}
    code, _ = refusal(kinesis, "CreateStream", StreamName="x", ShardCount=1, Tags=many)
    assert code in {"InvalidArgumentException", "ValidationException"}


def test_a_stream_with_consumers_is_deleted_only_with_them(kinesis: Any) -> None:
    code, message = refusal(kinesis, "DeleteStream", **ORDERS)
    assert (code, "orders" in message) == ("ResourceInUseException", True)
    assert summary(kinesis)["ConsumerCount"] == 1
    call(kinesis, "DeleteStream", **ORDERS, EnforceConsumerDeletion=True)
    assert refusal(kinesis, "DescribeStreamSummary", **ORDERS)[0] == "ResourceNotFoundException"


@pytest.mark.long
def test_fifty_consumers_need_the_account_s_commitment(kinesis: Any) -> None:
    arn = on_demand(kinesis)
    operation = "RegisterStreamConsumer"
    for number in range(20):
        call(kinesis, operation, StreamARN=arn, ConsumerName=f"c{number}")
    for number in range(19):
        call(kinesis, operation, StreamARN=kinesis.stream_arn, ConsumerName=f"c{number}")
    one_more = {"StreamARN": arn, "ConsumerName": "one-more"}
    assert refusal(kinesis, operation, **one_more)[0] == "LimitExceededException"
    commit = {"MinimumThroughputBillingCommitment": {"Status": "ENABLED"}}
    call(kinesis, "UpdateAccountSettings", **commit)
    for number in range(20, 50):
        call(kinesis, operation, StreamARN=arn, ConsumerName=f"c{number}")
    assert refusal(kinesis, operation, **one_more)[0] == "LimitExceededException"
    provisioned = one_more | {"StreamARN": kinesis.stream_arn}
    assert refusal(kinesis, operation, **provisioned)[0] == "LimitExceededException"
    assert len(call(kinesis, "ListStreamConsumers", StreamARN=arn)["Consumers"]) == 50


def test_an_account_commits_itself_for_a_day(kinesis: Any) -> None:
    name = "MinimumThroughputBillingCommitment"
    assert call(kinesis, "DescribeAccountSettings")[name] == {"Status": "DISABLED"}
    enabled = call(kinesis, "UpdateAccountSettings", **{name: {"Status": "ENABLED"}})[name]
    assert enabled["Status"] == "ENABLED"
    assert (enabled["EarliestAllowedEndAt"] - enabled["StartedAt"]).total_seconds() == 86_400
    disabled = call(kinesis, "UpdateAccountSettings", **{name: {"Status": "DISABLED"}})[name]
    assert disabled["Status"] == "ENABLED_UNTIL_EARLIEST_ALLOWED_END"
    assert call(kinesis, "DescribeAccountSettings")[name] == disabled


def test_warm_throughput_is_for_on_demand_streams_of_such_an_account(kinesis: Any) -> None:
    arn = on_demand(kinesis)
    operation = "UpdateStreamWarmThroughput"
    warm = {"WarmThroughputMiBps": 100}
    assert refusal(kinesis, operation, StreamARN=arn, **warm)[0] == "InvalidArgumentException"
    commit = {"MinimumThroughputBillingCommitment": {"Status": "ENABLED"}}
    call(kinesis, "UpdateAccountSettings", **commit)
    answer = call(kinesis, operation, StreamARN=arn, **warm)
    assert answer["WarmThroughput"] == {"TargetMiBps": 100, "CurrentMiBps": 100}
    assert summary(kinesis, "events")["WarmThroughput"] == answer["WarmThroughput"]
    assert refusal(kinesis, operation, **ORDERS, **warm)[0] == "InvalidArgumentException"
    created = on_demand(kinesis, "created", **warm)
    assert summary(kinesis, "created")["WarmThroughput"]["TargetMiBps"] == 100
    assert created.endswith("created")


# Other accounts.


@pytest.fixture
def stranger(kinesis: Any) -> Any:
    """A client of another account: the id of its access key is the account's number."""
    options = kinesis.server.client_options | {"aws_access_key_id": OTHER}
    with closing(boto3.client("kinesis", **options, config=ONCE)) as client:
        yield client


@pytest.mark.parametrize("wire", [Wire()], ids=["json"])
def test_another_account_has_streams_of_its_own(kinesis: Any, stranger: Any, wire: Wire) -> None:
    del wire
    assert stranger.list_streams()["StreamNames"] == []
    call(kinesis, "CreateStream", stranger, StreamName="orders", ShardCount=1)
    described = stranger.describe_stream_summary(**ORDERS)["StreamDescriptionSummary"]
    assert f":{OTHER}:" in described["StreamARN"]


@pytest.mark.parametrize("wire", [Wire()], ids=["json"])
def test_another_account_does_what_a_policy_allows(kinesis: Any, stranger: Any, wire: Wire) -> None:
    del wire
    arn, consumer = kinesis.stream_arn, kinesis.consumer_arn
    kinesis.put(b"a")
    listing = {"StreamARN": arn}
    code, message = refusal(kinesis, "ListShards", stranger, **listing)
    assert code == "AccessDeniedException"
    assert "kinesis:ListShards" in message
    assert arn in message

    def allow(resource: str, *actions: str, principal: Any = None, **more: Any) -> None:
        statement = {
            "Effect": "Allow",
            "Principal": {"AWS": principal or f"arn:aws:iam::{OTHER}:root"},
            "Action": list(actions),
            "Resource": resource,
        }
        policy = json.dumps({"Version": "2012-10-17", "Statement": [statement | more]})
        call(kinesis, "PutResourcePolicy", ResourceARN=resource, Policy=policy)

    allow(arn, "kinesis:ListShards", "kinesis:Get*")
    (shard,) = call(kinesis, "ListShards", stranger, **listing)["Shards"]
    where = {"ShardId": shard["ShardId"], "ShardIteratorType": "TRIM_HORIZON"}
    token = call(kinesis, "GetShardIterator", stranger, **listing, **where)["ShardIterator"]
    read = call(kinesis, "GetRecords", stranger, **listing, ShardIterator=token)["Records"]
    assert [each["Data"] for each in read] == [b"a"]
    record = listing | {"PartitionKey": "k", "Data": b"b"}
    assert refusal(kinesis, "PutRecord", stranger, **record)[0] == "AccessDeniedException"
    allow(arn, "kinesis:*", principal=["333333333333"])
    assert refusal(kinesis, "ListShards", stranger, **listing)[0] == "AccessDeniedException"
    allow(arn, "kinesis:*", principal=[OTHER], Effect="Deny")
    assert refusal(kinesis, "ListShards", stranger, **listing)[0] == "AccessDeniedException"

    named = {"ConsumerARN": consumer}
    assert refusal(kinesis, "DescribeStreamConsumer", stranger, **named)[0] == (
        "AccessDeniedException"
    )
    allow(consumer, "kinesis:SubscribeToShard", "kinesis:DescribeStreamConsumer")
    described = call(kinesis, "DescribeStreamConsumer", stranger, **named)["ConsumerDescription"]
    assert described["ConsumerARN"] == consumer
    subscription = stranger.subscribe_to_shard(
        **named, ShardId=shard["ShardId"], StartingPosition={"Type": "TRIM_HORIZON"}
    )
    with closing(subscription["EventStream"]) as events:
        event = next(iter(events))["SubscribeToShardEvent"]
    assert [each["Data"] for each in event["Records"]] == [b"a"]


def test_a_policy_that_is_no_json_is_refused(kinesis: Any) -> None:
    policy = {"ResourceARN": kinesis.stream_arn, "Policy": "{"}
    assert refusal(kinesis, "PutResourcePolicy", **policy)[0] == "InvalidArgumentException"
