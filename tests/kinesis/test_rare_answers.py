"""Valid answers of Kinesis that come rarely, one call after the other, end to end.

The reference of each call lists its errors, and what an answer may leave out:
https://docs.aws.amazon.com/kinesis/latest/APIReference/API_Operations.html. Beside the tests here:

DescribeStreamSummary
    Throttled or failed: again for a minute, here. CREATING or DELETING: test_source.py. Without
    KeyId, EncryptionType or ConsumerCount, or a readable Date: test_client.py.
ListShards
    Throttled, failed or an expired token: again for a minute, here; the token alone, an empty page
    and a page without Shards: test_client.py. A shard that is missing: test_resharding.py.
DescribeStreamConsumer, RegisterStreamConsumer
    Throttled, failed, CREATING, DELETING, not found yet, or registered by another one meanwhile
    (ResourceInUse): here and in test_registration.py.
DeregisterStreamConsumer
    Throttled, failed, in use or gone already: here and in test_registration.py.
ListStreamConsumers
    Throttled or failed: again for a minute, here. An empty page: test_client.py.
SubscribeToShard
    Each error, as the answer and as a frame: here, test_faults.py and test_policy.py. An event
    without records, or without a continuation or children alone: test_subscription.py. A record
    without a key: test_records_without_key.py; without a time: test_decode.py.
GetShardIterator, GetRecords
    Throttled, failed, an expired iterator: here and in test_poller.py. Empty although there is
    more, without MillisBehindLatest, without an iterator or children alone: test_poller.py and
    test_polling.py.
PutRecords
    Refused as a whole or in part: tests/kinesis/writer.
AssumeRole of STS, for the credentials of any call
    Throttled or failed: here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fanout.core.policy import Retry
from fanout.kinesis.consumers import open_consumers
from fanout.kinesis.policy import judge
from fanout.kinesis.writer import open_writer
from fanout.testing.faults import RefuseCall
from tests.kinesis.test_policy import PHASES, refused
from tests.support.kinesis.reading import Stream, session

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

# One attempt more than botocore makes where it is allowed to.
TIMES = 4

ANSWERS: dict[str, dict[str, Any]] = {
    "throttled": {"code": "LimitExceededException"},
    "throttled by the gateway": {"code": "ThrottlingException"},
    "failed": {"code": "InternalFailure", "status": 500},
    "a page of the load balancer": {"code": "ServiceUnavailable", "status": 503, "html": True},
}
POLLED = {
    **ANSWERS,
    "throttled": {"code": "ProvisionedThroughputExceededException"},
    "failed in the model's words": {"code": "InternalFailureException", "status": 500},
    "the key is throttled": {"code": "KMSThrottlingException"},
}

CALLS: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "DescribeStreamSummary": ("polling", ANSWERS),
    "ListShards": ("polling", ANSWERS | {"expired": {"code": "ExpiredNextTokenException"}}),
    "DescribeStreamConsumer": ("efo", ANSWERS),
    "RegisterStreamConsumer": ("efo", ANSWERS | {"taken": {"code": "ResourceInUseException"}}),
    "SubscribeToShard": ("efo", ANSWERS | {"taken": {"code": "ResourceInUseException"}}),
    "GetShardIterator": ("polling", POLLED),
    "GetRecords": ("polling", POLLED | {"expired": {"code": "ExpiredIteratorException"}}),
}


@pytest.mark.fault("The service throttles, fails or lets a page token expire while a stream is")
@pytest.mark.long
@pytest.mark.parametrize(
    ("action", "answer"),
    [
        pytest.param(action, answer, id=f"{action} is {name}")
        for action, (_, answers) in CALLS.items()
        for name, answer in answers.items()
    ],
)
async def test_a_call_that_is_refused_for_now_ends_nothing(
    stream: Stream, action: str, answer: dict[str, Any]
) -> None:
    stream.put(3)
    stream.inject(RefuseCall(action=action, times=TIMES, **answer))
    mode, _ = CALLS[action]
    async with stream.reading(mode=mode) as reader:
        await reader.has(3)
    assert reader.log == stream.log
    assert stream.server.statistics().faults == {"RefuseCall": TIMES}


async def consumers(stream: Stream) -> None:
    async with open_consumers(stream.source(mode="polling")) as opened:
        await opened.describe_all()
        await opened.price(shard_hour_price=1.0, gb_price=1.0, gb_per_month=1.0)


async def written(stream: Stream) -> None:
    options: Any = {"endpoint_url": stream.server.endpoint_url, "session": session()}
    async with open_writer(stream.name, **options) as writer:
        await writer.write([{"partitionKey": "ann", "data": b"1"}])


async def deregistered(stream: Stream) -> None:
    async with stream.open(deregister="on_close") as opened:
        assert opened.positions


@pytest.mark.long
@pytest.mark.parametrize(
    ("action", "use"),
    [
        ("DescribeStreamSummary", consumers),
        ("ListStreamConsumers", consumers),
        ("ListShards", consumers),
        ("ListShards", written),
        ("PutRecords", written),
        ("DeregisterStreamConsumer", deregistered),
    ],
)
async def test_a_call_of_another_use_that_is_refused_for_now_ends_nothing(
    stream: Stream, action: str, use: Callable[[Stream], Awaitable[None]]
) -> None:
    stream.inject(RefuseCall(action=action, times=TIMES, **ANSWERS["failed"]))
    await use(stream)
    assert stream.server.statistics().faults == {"RefuseCall": TIMES}


@pytest.mark.parametrize("code", ["Throttling", "IDPCommunicationError"])
def test_sts_that_refuses_for_now_ends_nothing(code: str) -> None:
    for first in (True, False):
        for phase in PHASES:
            assert isinstance(judge(refused(code), phase, first=first), Retry)
