"""Make single calls to a stream to find out whether they are allowed and what they return."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final, Generic, TypeVar, final

import aiohttp
from botocore.exceptions import BotoCoreError, ClientError

from fanout.core.backoff import Backoff, FullJitter
from fanout.core.error_text import text_of
from fanout.core.events import Split
from fanout.core.findings import Finding, fine, problem, unknown
from fanout.core.policy import Phase, Retry
from fanout.core.positions import Timestamp
from fanout.errors import FanOutError
from fanout.kinesis.aws.api import NO_TAGS, stream_of_consumer
from fanout.kinesis.aws.error_hints import code_of, hint_of
from fanout.kinesis.connection import KinesisConnection
from fanout.kinesis.doctor.checks import consumer_quota, consumer_state, http_version, price
from fanout.kinesis.policy import judge
from fanout.kinesis.reading.decode import decode_records
from fanout.kinesis.registration import ConsumerRegistration

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence
    from typing import Any

    from fanout.kinesis.aws.api import ConsumerDescription, KinesisClient, StreamDescription
    from fanout.kinesis.options import KinesisOptions

CALL_ERRORS: Final = (FanOutError, ClientError, BotoCoreError, aiohttp.ClientError, OSError)
"""The errors of the service, of the network and of decoding an answer."""

# The service answers within a second; a subscription sends an event every 5 seconds.
CALL_TIMEOUT: Final = 30.0

_SUBSCRIBE: Final = "SubscribeToShard"
_ITERATOR: Final = "GetShardIterator"
_RECORDS: Final = "GetRecords"
READING: Final = frozenset({f"kinesis:{_SUBSCRIBE}", f"kinesis:{_RECORDS}"})
"""The names of the checks that request records."""

_ARN: Final = "arn:"
_NOT_FOUND: Final = "ResourceNotFoundException"

T = TypeVar("T")


@final
@dataclass(frozen=True, slots=True)
class Probe(Generic[T]):
    """The outcome of a call: an answer or an error, and whether the call is allowed."""

    finding: Finding
    answer: T | None = None
    error: Exception | None = None

    @property
    def code(self) -> str | None:
        """The service's code of the error; None without an error or without a code."""
        return None if self.error is None else code_of(self.error)


async def probe(action: str, call: Awaitable[T]) -> Probe[T]:
    """Make a call, which is cancelled after 30 seconds; a failure becomes a finding.

    `action` is the call's name in the API, which is that of its IAM action.
    """
    check = f"kinesis:{action}"
    try:
        async with asyncio.timeout(CALL_TIMEOUT):
            answer = await call
    except CALL_ERRORS as error:
        return Probe(_failure(check, error), error=error)
    return Probe(fine(check, "allowed"), answer=answer)


def _failure(check: str, error: Exception) -> Finding:
    why, hint = reason(error), hint_of(error)
    if hint:
        return problem(check, why, hint)
    if code_of(error) is None and not isinstance(error, FanOutError):
        return problem(check, why, "check the region, the endpoint and the network")
    if not isinstance(judge(error, Phase.DISCOVER), Retry):
        return problem(check, why, "no reader gets further; see what the service refuses")
    return unknown(check, why, "try again in a minute")


def reason(error: Exception) -> str:
    """Return why a call failed, as a clause."""
    match error:
        case ClientError():
            details = error.response.get("Error", {})
            return f"refused as {details.get('Code')}: {details.get('Message')}"
        case TimeoutError():
            return f"no answer within {CALL_TIMEOUT:g} s"
        case _:
            return text_of(error)


async def probe_consumer(
    options: KinesisOptions,
    client: KinesisClient,
    stream: StreamDescription | None,
    open_shards: Sequence[str],
    *,
    subscribe: bool,
) -> list[Finding]:
    """Describe the consumer that the options name, and subscribe to one shard if requested."""
    # The stream is None if it may not be described.
    name = options.consumer or ""
    described = await _describe(client, name, stream.arn if stream else options.only_stream)
    consumer = described.answer
    findings = [described.finding]
    if not subscribe:
        findings.append(
            unknown(
                f"kinesis:{_SUBSCRIBE}",
                "not tried, as it would interrupt a running reader of this consumer",
                "if there is none, or a moment does not matter, --subscribe tries it on one shard",
            )
        )
    elif stream and consumer and consumer.status == "ACTIVE" and open_shards:
        registration = ConsumerRegistration(
            client,
            stream.arn,
            consumer.arn,
            jitter=FullJitter(Backoff(), Random()),  # noqa: S311 - jitter, no secret
            tags=NO_TAGS,
        )
        connection = KinesisConnection(options, client, stream, registration)
        findings.append(await _probe_subscribe(connection, stream, open_shards[-1]))
    else:
        findings.append(
            unknown(
                f"kinesis:{_SUBSCRIBE}", "not tried: that takes an ACTIVE consumer and open shards"
            )
        )
    findings.append(http_version(options.http_version))
    if stream is not None and stream_of_consumer(name) not in {None, stream.arn}:
        findings.append(
            problem(
                "consumer",
                f"{name} is not registered on {stream.arn}, which {options.only_stream!r} is for "
                f"these credentials",
                "give the ARN of the stream to read, or a consumer of this one",
            )
        )
    elif consumer is not None or described.code == _NOT_FOUND:
        findings.append(consumer_state(name, consumer))
    if stream is not None:
        quota = consumer_quota(stream, exists=consumer is not None)
        findings += [quota, price(stream)]
    return findings


async def _describe(
    client: KinesisClient, name: str, stream_arn: str
) -> Probe[ConsumerDescription]:
    action = "DescribeStreamConsumer"
    if name.startswith(_ARN):
        call = client.describe_consumer(arn=name)
    elif stream_arn.startswith(_ARN):
        call = client.describe_consumer(stream_arn=stream_arn, name=name)
    else:
        return Probe(unknown(f"kinesis:{action}", "not tried, as it needs the stream's ARN"))
    described = await probe(action, call)
    if described.code == _NOT_FOUND:
        return Probe(fine(f"kinesis:{action}", "allowed"), error=described.error)
    return described


async def _probe_subscribe(
    connection: KinesisConnection, stream: StreamDescription, shard_id: str
) -> Finding:
    """Subscribe to a shard from now on, wait for the first event, and unsubscribe."""
    # This ends a subscription of the same consumer to the shard that is older than 5 seconds.

    async def reserve(nbytes: int) -> None:
        """Accept the one event at once; the size of its frame has a limit."""

    async def first_event() -> None:
        now = Timestamp.at(stream.server_time)
        async with connection.subscribe(Split(shard_id), now, reserve) as events:
            await anext(events)

    subscribed = await probe(_SUBSCRIBE, first_event())
    if subscribed.code == "ResourceInUseException":
        return fine(
            f"kinesis:{_SUBSCRIBE}", "allowed; a reader of this consumer has subscribed just now"
        )
    return subscribed.finding


async def probe_polling(
    client: KinesisClient, stream: StreamDescription | None, open_shards: Sequence[str]
) -> list[Finding]:
    """Request at most one record of one shard; that disturbs no reader."""
    # The stream is None if it may not be described.
    if stream is None or not open_shards:
        missing = "not tried, as the stream or its open shards are not known"
        return [unknown(f"kinesis:{action}", missing) for action in (_ITERATOR, _RECORDS)]
    shard_id = open_shards[-1]
    latest = {"Type": "LATEST"}
    iterator = await probe(_ITERATOR, client.get_shard_iterator(stream.arn, shard_id, latest))
    if iterator.answer is None:
        missing = f"not tried, as it needs what {_ITERATOR} returns"
        return [iterator.finding, unknown(f"kinesis:{_RECORDS}", missing)]
    polled = await probe(_RECORDS, _first_arrival(client, stream, shard_id, iterator.answer))
    return [iterator.finding, polled.finding]


async def next_arrival(
    client: KinesisClient, stream: StreamDescription, shard_id: str, position: Mapping[str, Any]
) -> int | None:
    """Return when the next record arrived, in milliseconds since the Unix epoch; None without one.

    It calls GetShardIterator once and GetRecords once, for one record; one of CALL_ERRORS passes.
    """
    iterator = await client.get_shard_iterator(stream.arn, shard_id, position)
    return await _first_arrival(client, stream, shard_id, iterator)


async def _first_arrival(
    client: KinesisClient, stream: StreamDescription, shard_id: str, iterator: str
) -> int | None:
    async with client.get_records(stream.arn, iterator, limit=1) as unread:
        body = b"".join([chunk async for chunk in unread.chunks])
    event, _ = decode_records(body, stream=stream.name, shard_id=shard_id)
    arrivals = event.records["approximateArrivalTimestamp"]
    if len(arrivals) and arrivals[0].is_valid:
        return int(arrivals[0].value) // 1000
    # The service may need several answers to search a sparse shard; the lag gives the time that
    # it has reached.
    behind = event.millis_behind or 0
    return round(stream.server_time.timestamp() * 1000) - behind if behind else None
