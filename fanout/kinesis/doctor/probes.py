"""Calls that are made to see whether they may be made."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final, Generic, TypeVar, final

import aiohttp
from botocore.exceptions import BotoCoreError, ClientError

from fanout.core.backoff import Backoff, FullJitter
from fanout.core.events import Split
from fanout.core.policy import Fatal, Phase
from fanout.core.positions import Timestamp
from fanout.errors import FanOutError
from fanout.kinesis.aws.api import NO_TAGS
from fanout.kinesis.aws.error_hints import code_of, hint_of
from fanout.kinesis.connection import KinesisConnection
from fanout.kinesis.doctor.checks import consumer_quota, consumer_state, price
from fanout.kinesis.doctor.findings import Finding, fine, problem, unknown
from fanout.kinesis.policy import judge
from fanout.kinesis.reading.decode import decode_records
from fanout.kinesis.registration import ConsumerRegistration

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence
    from typing import Any

    from fanout.core.positions import Position
    from fanout.kinesis.aws.api import ConsumerDescription, KinesisClient, StreamDescription
    from fanout.kinesis.options import KinesisOptions

__all__ = (
    "CALL_ERRORS",
    "READING",
    "Attempt",
    "attempt",
    "first_arrival",
    "next_arrival",
    "reason",
    "subscribe_once",
    "try_consumer",
    "try_polling",
)


# What the service, the network and the decoding of an answer can raise.
CALL_ERRORS: Final = (FanOutError, ClientError, BotoCoreError, aiohttp.ClientError, OSError)
# The service answers within a second; a subscription sends an event every 5 seconds.
_PATIENCE: Final = 30.0

T = TypeVar("T")


@final
@dataclass(frozen=True, slots=True)
class Attempt(Generic[T]):
    """How a call went.

    Args:
        finding: Whether it may be made.
        answer: What it returned; None where it failed.
        error: What it raised; None where it succeeded.
    """

    finding: Finding
    answer: T | None = None
    error: Exception | None = None

    @property
    def code(self) -> str | None:
        """The service's name of what it raised; None where it raised nothing, or named nothing."""
        return None if self.error is None else code_of(self.error)


async def attempt(action: str, call: Awaitable[T]) -> Attempt[T]:
    """Make a call; a failure is a finding.

    Args:
        action: Its name in the API, which is that of its IAM action.
        call: The call, which is given up after 30 seconds.
    """
    check = f"kinesis:{action}"
    try:
        async with asyncio.timeout(_PATIENCE):
            answer = await call
    except CALL_ERRORS as error:
        return Attempt(_failure(check, error), error=error)
    return Attempt(fine(check, "allowed"), answer=answer)


def _failure(check: str, error: Exception) -> Finding:
    why, hint = reason(error), hint_of(error)
    if hint:
        return problem(check, why, hint)
    if code_of(error) is None and not isinstance(error, FanOutError):
        return problem(check, why, "check the region, the endpoint and the network")
    if isinstance(judge(error, Phase.DISCOVER), Fatal):
        return problem(check, why, "no reader gets further; please report it")
    return unknown(check, why, "try again in a minute")


def reason(error: Exception) -> str:
    """Say why a call failed."""
    match error:
        case ClientError():
            said = error.response.get("Error", {})
            return f"refused as {said.get('Code')}: {said.get('Message')}"
        case TimeoutError():
            return f"no answer within {_PATIENCE:g} s"
        case _:
            return str(error) or type(error).__name__


async def subscribe_once(connection: KinesisConnection, shard_id: str, position: Position) -> None:
    """Subscribe to a shard, wait for the first event, and leave.

    It ends a subscription of the same consumer to the shard that is older than 5 seconds.
    """
    async with connection.subscribe(Split(shard_id), position, _reserve) as events:
        await anext(events)


async def _reserve(nbytes: int) -> None:
    """Let the one event be read; its frame is bounded."""


async def next_arrival(
    client: KinesisClient, stream: StreamDescription, shard_id: str, position: Mapping[str, Any]
) -> int | None:
    """Return when the next record arrived, in milliseconds since the Unix epoch; None without one.

    Args:
        client: The calls: GetShardIterator once and GetRecords once, for one record.
        stream: The stream.
        shard_id: The shard.
        position: After which record, as the StartingPosition of SubscribeToShard.
    """
    iterator = await client.get_shard_iterator(stream.arn, shard_id, position)
    return await first_arrival(client, stream, shard_id, iterator)


async def first_arrival(
    client: KinesisClient, stream: StreamDescription, shard_id: str, iterator: str
) -> int | None:
    """Return when the first record of an iterator arrived, as `next_arrival` does."""
    async with client.get_records(stream.arn, iterator, limit=1) as unread:
        body = b"".join([chunk async for chunk in unread.chunks])
    said, _ = decode_records(body, stream=stream.name, shard_id=shard_id)
    arrivals = said.records["approximateArrivalTimestamp"]
    if len(arrivals) and arrivals[0].is_valid:
        return int(arrivals[0].value) // 1000
    # A sparse shard may be searched in several answers; the lag tells the time that is reached.
    behind = said.millis_behind or 0
    return round(stream.server_time.timestamp() * 1000) - behind if behind else None


_SUBSCRIBE: Final = "SubscribeToShard"

_ITERATOR: Final = "GetShardIterator"

_RECORDS: Final = "GetRecords"
# The checks that ask for records.
READING: Final = frozenset({f"kinesis:{_SUBSCRIBE}", f"kinesis:{_RECORDS}"})

_ARN: Final = "arn:"

_GONE: Final = "ResourceNotFoundException"


async def try_consumer(
    options: KinesisOptions,
    client: KinesisClient,
    stream: StreamDescription | None,
    open_shards: Sequence[str],
    *,
    subscribe: bool,
) -> list[Finding]:
    """Look at the consumer, and subscribe to one shard where that is asked for.

    Args:
        options: The options; they name the consumer.
        client: The calls.
        stream: The stream; None where it may not be described.
        open_shards: The ids of its open shards, as far as they are known.
        subscribe: Whether to subscribe.
    """
    name = options.consumer or ""
    described = await _describe(client, name, stream.arn if stream else options.stream)
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
        findings.append(await _subscribe(connection, stream, open_shards[-1]))
    else:
        findings.append(
            unknown(
                f"kinesis:{_SUBSCRIBE}", "not tried: that takes an ACTIVE consumer and open shards"
            )
        )
    if consumer is not None or described.code == _GONE:
        findings.append(consumer_state(name, consumer))
    if stream is not None:
        quota = consumer_quota(stream, exists=consumer is not None)
        findings += [quota, price(stream.open_shards)]
    return findings


async def _describe(
    client: KinesisClient, name: str, stream_arn: str
) -> Attempt[ConsumerDescription]:
    action = "DescribeStreamConsumer"
    if name.startswith(_ARN):
        call = client.describe_consumer(arn=name)
    elif stream_arn.startswith(_ARN):
        call = client.describe_consumer(stream_arn=stream_arn, name=name)
    else:
        return Attempt(unknown(f"kinesis:{action}", "not tried, as it needs the stream's ARN"))
    tried = await attempt(action, call)
    if tried.code == _GONE:
        return Attempt(fine(f"kinesis:{action}", "allowed"), error=tried.error)
    return tried


async def _subscribe(
    connection: KinesisConnection, stream: StreamDescription, shard_id: str
) -> Finding:
    now = Timestamp.at(stream.server_time)
    tried = await attempt(_SUBSCRIBE, subscribe_once(connection, shard_id, now))
    if tried.code == "ResourceInUseException":
        return fine(
            f"kinesis:{_SUBSCRIBE}", "allowed; a reader of this consumer has subscribed just now"
        )
    return tried.finding


async def try_polling(
    client: KinesisClient, stream: StreamDescription | None, open_shards: Sequence[str]
) -> list[Finding]:
    """Ask for at most one record of one shard; that disturbs nobody.

    Args:
        client: The calls.
        stream: The stream; None where it may not be described.
        open_shards: The ids of its open shards, as far as they are known.
    """
    if stream is None or not open_shards:
        missing = "not tried, as the stream or its open shards are not known"
        return [unknown(f"kinesis:{action}", missing) for action in (_ITERATOR, _RECORDS)]
    shard_id = open_shards[-1]
    latest = {"Type": "LATEST"}
    begun = await attempt(_ITERATOR, client.get_shard_iterator(stream.arn, shard_id, latest))
    if begun.answer is None:
        missing = f"not tried, as it needs what {_ITERATOR} returns"
        return [begun.finding, unknown(f"kinesis:{_RECORDS}", missing)]
    polled = await attempt(_RECORDS, first_arrival(client, stream, shard_id, begun.answer))
    return [begun.finding, polled.finding]
