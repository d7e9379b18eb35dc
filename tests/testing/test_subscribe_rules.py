from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError, EventStreamError

from fanout.errors import OptionError
from fanout.testing.kinesis.rules import KinesisRules

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST = "shardId-000000000000"


def code(error: pytest.ExceptionInfo[ClientError]) -> str:
    return str(error.value.response["Error"]["Code"])


def test_a_second_subscribe_within_the_spacing_is_refused(start: Callable[..., Any]) -> None:
    kinesis = start(KinesisRules(call_interval=0))
    kinesis.subscribe()
    with pytest.raises(ClientError) as error:
        kinesis.subscribe()
    assert code(error) == "ResourceInUseException"
    assert kinesis.server.statistics().violations == {"subscribed_too_soon": 1}


def test_the_spacing_counts_after_the_first_connection_has_gone(start: Callable[..., Any]) -> None:
    kinesis = start(KinesisRules(call_interval=0, subscription_life=0.01))
    assert list(kinesis.subscribe()) == []
    with pytest.raises(ClientError) as error:
        kinesis.subscribe()
    assert code(error) == "ResourceInUseException"


def test_a_later_subscribe_takes_over(kinesis: Any) -> None:
    old = kinesis.subscribe("LATEST")
    new = kinesis.subscribe("LATEST")
    with pytest.raises(EventStreamError) as error:
        list(old)
    assert code(error) == "ResourceInUseException"
    kinesis.put(b"a")
    assert any(event["Records"] for event in new)


def test_another_shard_is_not_taken_over(start: Callable[..., Any]) -> None:
    kinesis = start(shards=2)
    events = kinesis.subscribe(shard=FIRST)
    kinesis.subscribe(shard="shardId-000000000001")
    assert next(events)["Records"] == []
    assert kinesis.server.statistics().open_subscriptions == 2


def test_another_consumer_does_not_take_over(kinesis: Any) -> None:
    events = kinesis.subscribe()
    kinesis.subscribe(consumer=kinesis.register("audit"))
    assert next(events)["Records"] == []


def test_two_calls_within_the_interval_are_too_many(start: Callable[..., Any]) -> None:
    kinesis = start(KinesisRules(takeover_after=0, call_interval=60))
    kinesis.subscribe()
    with pytest.raises(ClientError) as error:
        kinesis.subscribe()
    assert code(error) == "LimitExceededException"
    assert kinesis.server.statistics().violations == {"subscribed_too_often": 1}


def test_subscribe_calls_are_counted_per_shard(kinesis: Any) -> None:
    kinesis.subscribe()
    kinesis.subscribe()
    assert kinesis.server.statistics().subscribe_calls == {FIRST: 2}


def test_an_unknown_consumer_is_not_found(kinesis: Any) -> None:
    with pytest.raises(ClientError) as error:
        kinesis.subscribe(consumer=kinesis.consumer_arn + "9")
    assert code(error) == "ResourceNotFoundException"
    assert kinesis.server.statistics().violations == {"unknown_consumer": 1}


def test_an_unknown_shard_is_not_found(kinesis: Any) -> None:
    with pytest.raises(ClientError) as error:
        kinesis.subscribe(shard="shardId-000000000009")
    assert code(error) == "ResourceNotFoundException"
    assert kinesis.server.statistics().violations == {"unknown_shard": 1}


@pytest.mark.parametrize(
    "position",
    [
        {"kind": "AT_TIMESTAMP"},
        {"kind": "AT_TIMESTAMP", "Timestamp": datetime.now(UTC) + timedelta(days=1)},
        {"kind": "AFTER_SEQUENCE_NUMBER"},
        {"kind": "AT_SEQUENCE_NUMBER", "SequenceNumber": "0"},
        {"kind": "AT_SEQUENCE_NUMBER", "SequenceNumber": "9" * 56},
    ],
    ids=["no time", "future", "no number", "below", "above"],
)
def test_a_bad_position_is_an_invalid_argument(kinesis: Any, position: dict[str, Any]) -> None:
    with pytest.raises(ClientError) as error:
        kinesis.subscribe(**position)
    assert code(error) == "InvalidArgumentException"
    assert kinesis.server.statistics().violations == {"invalid_position": 1}


def test_a_position_of_an_unknown_kind_is_no_valid_request(kinesis: Any) -> None:
    with pytest.raises(ClientError) as error:
        kinesis.subscribe("NOWHERE")
    assert code(error) == "ValidationException"


def test_a_number_of_another_shard_is_an_invalid_argument(start: Callable[..., Any]) -> None:
    kinesis = start(shards=2)
    (number,) = kinesis.put(b"a", shard="shardId-000000000001")
    with pytest.raises(ClientError) as error:
        kinesis.subscribe("AT_SEQUENCE_NUMBER", shard=FIRST, SequenceNumber=number)
    assert code(error) == "InvalidArgumentException"


def test_deregistering_ends_live_subscriptions(kinesis: Any) -> None:
    events = kinesis.subscribe()
    kinesis.client.deregister_stream_consumer(ConsumerARN=kinesis.consumer_arn)
    with pytest.raises(EventStreamError) as error:
        list(events)
    assert code(error) == "ResourceNotFoundException"


def test_deleting_the_stream_ends_live_subscriptions(kinesis: Any) -> None:
    events = kinesis.subscribe()
    kinesis.client.delete_stream(StreamName="orders", EnforceConsumerDeletion=True)
    with pytest.raises(EventStreamError) as error:
        list(events)
    assert code(error) == "ResourceNotFoundException"


def test_a_consumer_arn_ends_with_its_creation(kinesis: Any) -> None:
    consumer = kinesis.client.describe_stream_consumer(ConsumerARN=kinesis.consumer_arn)
    created = consumer["ConsumerDescription"]["ConsumerCreationTimestamp"]
    assert kinesis.consumer_arn.endswith(f"/consumer/etl:{int(created.timestamp())}")


def test_a_name_that_is_registered_again_gets_another_arn(kinesis: Any) -> None:
    kinesis.client.deregister_stream_consumer(ConsumerARN=kinesis.consumer_arn)
    assert kinesis.register("etl") != kinesis.consumer_arn


def test_registering_a_name_twice_is_refused(kinesis: Any) -> None:
    with pytest.raises(ClientError) as error:
        kinesis.register("etl")
    assert code(error) == "ResourceInUseException"


def test_the_tags_of_a_consumer_and_of_its_stream_are_listed(kinesis: Any) -> None:
    kinesis.client.add_tags_to_stream(StreamARN=kinesis.stream_arn, Tags={"team": "orders"})
    audit = kinesis.client.register_stream_consumer(
        StreamARN=kinesis.stream_arn, ConsumerName="audit", Tags={"team": "audit"}
    )
    for arn, team in ((kinesis.stream_arn, "orders"), (audit["Consumer"]["ConsumerARN"], "audit")):
        listed = kinesis.client.list_tags_for_resource(ResourceARN=arn)
        assert listed["Tags"] == [{"Key": "team", "Value": team}]


def test_a_consumer_and_its_stream_are_tagged_by_their_arns(kinesis: Any) -> None:
    for arn in (kinesis.stream_arn, kinesis.consumer_arn):
        kinesis.client.tag_resource(ResourceARN=arn, Tags={"team": "orders", "tier": "b"})
        kinesis.client.untag_resource(ResourceARN=arn, TagKeys=["tier", "unknown"])
        listed = kinesis.client.list_tags_for_resource(ResourceARN=arn)
        assert listed["Tags"] == [{"Key": "team", "Value": "orders"}]


def test_streams_are_listed_by_name_in_pages(kinesis: Any) -> None:
    for number in range(101):
        kinesis.server.create_stream(f"stream-{number:03}")
    first = kinesis.client.list_streams()
    assert first["HasMoreStreams"]
    assert len(first["StreamNames"]) == len(first["StreamSummaries"]) == 100
    last = kinesis.client.list_streams(NextToken=first["NextToken"])
    assert (last["HasMoreStreams"], "NextToken" in last) == (False, False)
    names = [*first["StreamNames"], *last["StreamNames"]]
    assert names == ["orders", *(f"stream-{number:03}" for number in range(101))]
    third = kinesis.client.list_streams(ExclusiveStartStreamName=names[1], Limit=1)
    assert third["StreamNames"] == [names[2]]


def test_deregistering_by_name_spares_the_others(kinesis: Any) -> None:
    kinesis.register("audit")
    kinesis.client.deregister_stream_consumer(StreamARN=kinesis.stream_arn, ConsumerName="etl")
    consumers = kinesis.client.list_stream_consumers(StreamARN=kinesis.stream_arn)["Consumers"]
    assert [consumer["ConsumerName"] for consumer in consumers] == ["audit"]


def test_a_consumer_is_creating_first(start: Callable[..., Any]) -> None:
    kinesis = start(KinesisRules(consumer_creating=60))
    consumer = kinesis.client.describe_stream_consumer(ConsumerARN=kinesis.consumer_arn)
    assert consumer["ConsumerDescription"]["ConsumerStatus"] == "CREATING"
    with pytest.raises(ClientError) as error:
        kinesis.subscribe()
    assert code(error) == "ResourceInUseException"
    assert kinesis.server.statistics().violations == {"subscribed_before_active": 1}


def test_a_consumer_becomes_active(start: Callable[..., Any]) -> None:
    kinesis = start(KinesisRules(consumer_creating=0.05))
    status = "CREATING"
    deadline = time.monotonic() + 10
    while status == "CREATING":
        assert time.monotonic() < deadline
        consumer = kinesis.client.describe_stream_consumer(ConsumerARN=kinesis.consumer_arn)
        status = consumer["ConsumerDescription"]["ConsumerStatus"]
    assert status == "ACTIVE"


def test_a_sixth_consumer_in_creating_is_refused(start: Callable[..., Any]) -> None:
    kinesis = start(KinesisRules(consumer_creating=60))
    for index in range(4):
        kinesis.register(f"c{index}")
    with pytest.raises(ClientError) as error:
        kinesis.register("c5")
    assert code(error) == "LimitExceededException"


def test_a_twenty_first_consumer_is_refused(kinesis: Any) -> None:
    for index in range(1, 20):
        kinesis.register(f"c{index}")
    with pytest.raises(ClientError) as error:
        kinesis.register("c20")
    assert code(error) == "LimitExceededException"
    kinesis.client.deregister_stream_consumer(ConsumerARN=kinesis.consumer_arn)
    kinesis.register("c20")


@pytest.mark.parametrize("name", ["heartbeat", "subscription_life", "max_event_records"])
def test_a_rule_of_0_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match=name):
        KinesisRules(**dict[str, Any]({name: 0}))


def test_a_negative_spacing_is_refused() -> None:
    with pytest.raises(OptionError, match="takeover_after"):
        KinesisRules(takeover_after=-1)
