from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING, Any

import aioboto3
import pytest

import fanout
from fanout.errors import OptionError
from fanout.kinesis import KinesisSource, iam_policy, open_writer
from fanout.kinesis.aws.api import KinesisClient
from fanout.kinesis.aws.client import open_kinesis_client
from fanout.testing.kinesis.credentials import REGION

if TYPE_CHECKING:
    from tests.support.kinesis.reading import Stream

STREAM_ARN = "arn:aws:kinesis:eu-west-1:111122223333:stream/orders"
CONSUMER_ARN = f"{STREAM_ARN}/consumer/etl:1700000000"
KEY_ARN = "arn:aws:kms:eu-west-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"


def actions(policy: dict[str, Any]) -> list[str]:
    return [action for statement in policy["Statement"] for action in statement["Action"]]


def resources(policy: dict[str, Any]) -> set[str]:
    return {resource for each in policy["Statement"] for resource in each["Resource"]}


class Calls:
    """A session whose calls of Kinesis are written down as the actions that they need."""

    def __init__(self) -> None:
        self.session = aioboto3.Session(
            region_name=REGION, aws_access_key_id="testing", aws_secret_access_key="testing"
        )
        self.needed: set[str] = set()
        self.session.events.register("before-parameter-build.kinesis.*", self._record)

    def _record(self, params: dict[str, Any], model: Any, **_: Any) -> None:
        self.needed.add(f"kinesis:{model.name}")
        if "Tags" in params:  # API reference, RegisterStreamConsumer
            self.needed.add("kinesis:TagResource")


async def test_every_call_of_the_transport_is_granted_and_no_other(stream: Stream) -> None:
    calls = Calls()
    async with open_kinesis_client(
        stream="orders", endpoint_url=stream.server.endpoint_url, session=calls.session
    ) as kinesis:
        made = {
            "describe_stream": await kinesis.describe_stream(),
            "list_shards": (shards := await kinesis.list_shards()),
            "register_consumer": (
                consumer := await kinesis.register_consumer(stream.arn, "etl", {"a": "b"})
            ),
            "describe_consumer": await kinesis.describe_consumer(arn=consumer.arn),
            "list_consumers": await kinesis.list_consumers(stream.arn),
        }
        await kinesis.renew_credentials()
        made["renew_credentials"] = None
        position = {"Type": "LATEST"}
        async with kinesis.subscribe(consumer.arn, shards[0].shard_id, position) as chunks:
            made["subscribe"] = await anext(chunks)
        iterator = await kinesis.get_shard_iterator(stream.arn, shards[0].shard_id, position)
        made["get_shard_iterator"] = iterator
        async with kinesis.get_records(stream.arn, iterator) as unread:
            made["get_records"] = unread.size
        await kinesis.deregister_consumer(consumer.arn)
        made["deregister_consumer"] = None
    methods = inspect.getmembers(KinesisClient, inspect.isfunction)
    assert made.keys() == {name for name, _ in methods if not name.startswith("_")}
    through_a_consumer = actions(iam_policy(stream.arn, deploy=True))
    polling = actions(iam_policy(stream.arn, mode="polling"))
    assert sorted({*through_a_consumer, *polling}) == sorted(calls.needed)
    assert len(through_a_consumer) == len(set(through_a_consumer))


async def test_reading_with_the_arn_of_a_consumer_needs_what_run_time_is_granted(
    stream: Stream,
) -> None:
    async with stream.open():
        pass
    async with open_kinesis_client(
        stream="orders", endpoint_url=stream.server.endpoint_url, session=Calls().session
    ) as kinesis:
        (consumer,) = await kinesis.list_consumers(stream.arn)
    calls = Calls()
    stream.put(1)
    source = KinesisSource(
        stream=stream.arn,
        consumer=consumer.arn,
        start="TRIM_HORIZON",
        endpoint_url=stream.server.endpoint_url,
        session=calls.session,
    )
    async with fanout.open(source) as opened:
        await opened.drain(max_records=1, first_wait=math.inf)
    assert sorted(actions(iam_policy(stream.arn, consumer.arn))) == sorted(calls.needed)


async def test_reading_by_polls_needs_what_polling_is_granted(stream: Stream) -> None:
    calls = Calls()
    stream.put(1)
    where = {"endpoint_url": stream.server.endpoint_url, "session": calls.session}
    source = KinesisSource(stream=stream.arn, mode="polling", start="TRIM_HORIZON", **where)
    async with fanout.open(source) as opened:
        await opened.drain(max_records=1, first_wait=math.inf)
    assert sorted(actions(iam_policy(stream.arn, mode="polling"))) == sorted(calls.needed)


@pytest.mark.parametrize("aggregate", [False, True])
async def test_writing_needs_what_a_writer_is_granted(stream: Stream, *, aggregate: bool) -> None:
    stream.distribute()
    calls = Calls()
    where = {"endpoint_url": stream.server.endpoint_url, "session": calls.session}
    async with open_writer(stream.arn, aggregate=aggregate, **where) as writer:
        await writer.write([{"data": b"1"}])
    policy = iam_policy(stream.arn, mode="write", kms_key_arn=KEY_ARN)
    assert {*actions(policy)} == calls.needed | {"kms:GenerateDataKey"}


def test_a_role_that_polls_may_not_use_a_consumer() -> None:
    policy = iam_policy(STREAM_ARN, mode="polling")
    assert resources(policy) == {STREAM_ARN}
    assert sorted(actions(policy)) == [
        "kinesis:DescribeStreamSummary",
        "kinesis:GetRecords",
        "kinesis:GetShardIterator",
        "kinesis:ListShards",
    ]


def test_run_time_is_granted_on_one_stream_and_one_consumer() -> None:
    assert resources(iam_policy(STREAM_ARN, CONSUMER_ARN)) == {STREAM_ARN, CONSUMER_ARN}


def test_a_name_stands_for_every_registration_of_it() -> None:
    policy = iam_policy(STREAM_ARN, f"{STREAM_ARN}/consumer/etl")
    assert resources(policy) == {STREAM_ARN, f"{STREAM_ARN}/consumer/etl:*"}


def test_deployment_registers_a_consumer_again_under_another_arn() -> None:
    policy = iam_policy(STREAM_ARN, CONSUMER_ARN, deploy=True)
    assert resources(policy) == {STREAM_ARN, f"{STREAM_ARN}/consumer/etl:*"}


def test_without_a_consumer_all_those_of_the_stream_are_meant() -> None:
    assert resources(iam_policy(STREAM_ARN)) == {STREAM_ARN, f"{STREAM_ARN}/consumer/*"}


@pytest.mark.parametrize(
    ("partition", "region", "service"),
    [
        ("aws", "eu-west-1", "kinesis.eu-west-1.amazonaws.com"),
        ("aws-cn", "cn-north-1", "kinesis.cn-north-1.amazonaws.com.cn"),
    ],
)
def test_a_key_is_granted_through_kinesis_alone(partition: str, region: str, service: str) -> None:
    stream_arn = f"arn:{partition}:kinesis:{region}:111122223333:stream/orders"
    statement = iam_policy(stream_arn, kms_key_arn=KEY_ARN)["Statement"][-1]
    assert (statement["Action"], statement["Resource"]) == (["kms:Decrypt"], [KEY_ARN])
    assert statement["Condition"] == {"StringEquals": {"kms:ViaService": service}}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"stream_arn": "orders"}, "stream_arn='orders' is not the ARN of a stream"),
        ({"stream_arn": "*"}, "is not the ARN of a stream"),
        (
            {"consumer_arn": "etl"},
            f"consumer_arn='etl' is not the ARN of a consumer of {STREAM_ARN}",
        ),
        ({"consumer_arn": CONSUMER_ARN.replace("orders", "payments")}, "not the ARN of a consumer"),
        ({"consumer_arn": f"{STREAM_ARN}/consumer/*"}, "not the ARN of a consumer"),
        ({"mode": "polling", "deploy": True}, "a role that polls needs none; leave them out"),
        ({"mode": "polling", "consumer_arn": CONSUMER_ARN}, "a role that polls needs none"),
        ({"mode": "write", "deploy": True}, "a role that writes needs none; leave them out"),
        ({"mode": "EFO"}, "mode='EFO' is not understood; use 'efo', 'polling' or 'write'"),
        ({"kms_key_arn": "alias/orders"}, "kms_key_arn='alias/orders' is not the ARN of a key"),
    ],
)
def test_a_policy_that_cannot_be_meant_is_refused(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence.replace("*", r"\*")):
        iam_policy(**{"stream_arn": STREAM_ARN} | arguments)


QUEUE_ARN = "arn:aws:kinesis:eu-west-1:111122223333:queue/0123"


def test_a_role_that_reads_a_queue_needs_no_consumer() -> None:
    stream = "arn:aws:kinesis:eu-west-1:111122223333:stream/orders"
    policy = iam_policy(stream, queue_arn=QUEUE_ARN)
    by_sid = {each["Sid"]: each for each in policy["Statement"]}
    assert by_sid.keys() == {"ReadQueue", "ListQueues", "DescribeStream"}
    assert by_sid["ReadQueue"]["Resource"] == [QUEUE_ARN]
    assert "kinesis:AcknowledgeQueueRecords" in by_sid["ReadQueue"]["Action"]
    deploy = iam_policy(stream, queue_arn=QUEUE_ARN, deploy=True)["Statement"]
    assert "RestoreDeadLetters" in {each["Sid"] for each in deploy}
    with pytest.raises(OptionError, match="exclude each other"):
        iam_policy(stream, f"{stream}/consumer/etl", queue_arn=QUEUE_ARN)
    with pytest.raises(OptionError, match="not the ARN of a queue"):
        iam_policy(stream, queue_arn="orders")


TABLE = "arn:aws:dynamodb:eu-west-1:111122223333:table/orders-app"


def test_a_table_is_granted_and_its_creation_to_who_deploys() -> None:
    stream = "arn:aws:kinesis:eu-west-1:111122223333:stream/orders"
    for mode in ("efo", "polling"):
        for deploy in (False, True):
            policy = iam_policy(stream, mode=mode, table_arn=TABLE, deploy=deploy)
            (shared,) = [one for one in policy["Statement"] if one["Sid"] == "ShareShards"]
            assert shared["Resource"] == [TABLE]
            assert ("dynamodb:CreateTable" in shared["Action"]) is deploy
    with pytest.raises(OptionError, match="not the ARN of a table"):
        iam_policy(stream, table_arn="orders-app")
    with pytest.raises(OptionError, match="is about reading"):
        iam_policy(stream, mode="write", table_arn=TABLE)
