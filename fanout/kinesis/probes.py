"""Calls that are made to see whether they may be made."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar, final

import aiohttp
from botocore.exceptions import BotoCoreError, ClientError

from fanout.core.lineage import Split
from fanout.core.verdicts import Fatal, Phase
from fanout.errors import FanOutError
from fanout.kinesis.decode import decode_records
from fanout.kinesis.explain import code_of, hint_of
from fanout.kinesis.findings import Finding, fine, problem, unknown
from fanout.kinesis.policy import judge

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping
    from typing import Any

    from fanout.core.positions import Position
    from fanout.kinesis.connection import KinesisConnection
    from fanout.kinesis.transport import StreamDescription, Transport

__all__ = (
    "CALL_ERRORS",
    "Attempt",
    "attempt",
    "first_arrival",
    "next_arrival",
    "reason",
    "subscribe_once",
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
    transport: Transport, stream: StreamDescription, shard_id: str, position: Mapping[str, Any]
) -> int | None:
    """Return when the next record arrived, in milliseconds since the Unix epoch; None without one.

    Args:
        transport: The calls: GetShardIterator once and GetRecords once, for one record.
        stream: The stream.
        shard_id: The shard.
        position: After which record, as the StartingPosition of SubscribeToShard.
    """
    iterator = await transport.get_shard_iterator(stream.arn, shard_id, position)
    return await first_arrival(transport, stream, shard_id, iterator)


async def first_arrival(
    transport: Transport, stream: StreamDescription, shard_id: str, iterator: str
) -> int | None:
    """Return when the first record of an iterator arrived, as `next_arrival` does."""
    async with transport.get_records(stream.arn, iterator, limit=1) as unread:
        body = b"".join([chunk async for chunk in unread.chunks])
    said, _ = decode_records(body, stream=stream.name, shard_id=shard_id)
    arrivals = said.records["approximateArrivalTimestamp"]
    if len(arrivals) and arrivals[0].is_valid:
        return int(arrivals[0].value) // 1000
    # A sparse shard may be searched in several answers; the lag tells the time that is reached.
    behind = said.millis_behind or 0
    return round(stream.server_time.timestamp() * 1000) - behind if behind else None
