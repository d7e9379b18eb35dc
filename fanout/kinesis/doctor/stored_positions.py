"""How a stored position stands to the stream that it is of, and to the stream's retention."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from fanout.core.positions import Cursor, Horizon, Timestamp
from fanout.kinesis.aws.error_hints import DENIED, code_of
from fanout.kinesis.doctor.findings import Finding, fine, problem, unknown, warning
from fanout.kinesis.doctor.probes import CALL_ERRORS, next_arrival, reason
from fanout.kinesis.reading.subscription import starting_position

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fanout.core.checkpoint import Checkpoint, SplitPosition
    from fanout.kinesis.aws.api import KinesisClient, ShardDescription, StreamDescription

__all__ = ("examine_backlog", "examine_shards")

_MILLIS_PER_HOUR: Final = 3_600_000
# Below this share of the retention period it is time to act.
_SCARCE: Final = 0.25
# How many shards are asked at once; each is asked once, and allows 5 calls a second.
_AT_ONCE: Final = 16
_NAMED: Final = 5
_PATIENCE: Final = 30.0

_CATCH_UP: Final = (
    "start the reader, or make it faster, before they expire; a longer retention period "
    "(IncreaseStreamRetentionPeriod) keeps them meanwhile"
)
_DENIED: Final = "kinesis:GetShardIterator and kinesis:GetRecords are not granted"
_GRANT: Final = "grant both to find out; `fanout iam-policy` with --polling writes the policy"
_AGAIN: Final = "try again in a minute"
_LOST: Final = (
    "what expired unread is lost; open the stream with on_data_loss='earliest', which goes on with "
    "the oldest record that is left, or start anew, with a new checkpoint"
)


def examine_shards(checkpoint: Checkpoint, listed: Iterable[ShardDescription]) -> list[Finding]:
    """Compare the shards that a checkpoint knows with those that the service lists."""
    known = checkpoint.splits
    ids = {shard.shard_id for shard in listed}
    unfinished = {id_ for id_, state in known.items() if not state.ended}
    figures = (
        f"{len(known)} shards known, {len(known) - len(unfinished)} of them read to the end; "
        f"{len(ids - known.keys())} listed ones are new to it and begin after their parents"
    )
    findings = [fine("checkpoint", figures)]
    if expired := unfinished - ids:
        findings.append(
            problem(
                "expired shards",
                f"{_named(expired)}: not read to the end, and no longer listed",
                _LOST,
            )
        )
    return findings


async def examine_backlog(
    client: KinesisClient,
    stream: StreamDescription,
    states: Sequence[SplitPosition],
) -> list[Finding]:
    """Find out how long the unread records of shards are still kept.

    A position says itself when its newest record arrived, and unread ones arrived later. Where
    that is not enough, the service is asked for the next record, 16 shards at a time.

    Args:
        client: The calls.
        stream: The stream, as it was described just now.
        states: The positions of listed shards that are not read to their end.

    Returns:
        At most one finding for each status.

    Cancellation: no call outlives it.
    """
    begun = [state for state in states if not isinstance(state.position, Horizon)]
    turns = asyncio.Semaphore(_AT_ONCE)

    async def one(state: SplitPosition) -> _Left:
        async with turns:
            return await _left(client, stream, state)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(state)) for state in begun]
    return _told([task.result() for task in tasks], stream, not_begun=len(states) - len(begun))


@final
@dataclass(frozen=True, slots=True)
class _Left:
    """How long the unread records of a shard are still kept.

    Args:
        shard_id: The shard.
        hours: At least so many; 0 where some may be gone already.
        obstacle: Why nothing closer is known; empty where `hours` is reliable.
    """

    shard_id: str
    hours: float
    obstacle: str = ""


async def _left(client: KinesisClient, stream: StreamDescription, state: SplitPosition) -> _Left:
    shard_id = state.split.id
    reached = state.position.millis if isinstance(state.position, Timestamp) else state.newest
    at_least = 0.0 if reached is None else _hours_left(stream, reached)
    if at_least >= _SCARCE * stream.retention_hours:
        return _Left(shard_id, at_least)
    try:
        async with asyncio.timeout(_PATIENCE):
            arrival = await next_arrival(
                client, stream, shard_id, starting_position(state.position)
            )
    except CALL_ERRORS as error:
        # Such a number is before the oldest record, as the others are this shard's own.
        if code_of(error) == "InvalidArgumentException" and isinstance(state.position, Cursor):
            return _Left(shard_id, 0.0)
        return _Left(shard_id, at_least, _obstacle(error))
    if arrival is None:
        return _Left(shard_id, float(stream.retention_hours))
    if isinstance(state.position, Timestamp) and not at_least:
        # The service goes on at its oldest record without a word: those before it are gone.
        return _Left(shard_id, 0.0)
    return _Left(shard_id, _hours_left(stream, arrival))


def _hours_left(stream: StreamDescription, arrival: int) -> float:
    age = stream.server_time.timestamp() * 1000 - arrival
    return max(0.0, stream.retention_hours - age / _MILLIS_PER_HOUR)


def _obstacle(error: Exception) -> str:
    if code_of(error) in DENIED:
        return _DENIED
    return reason(error)


def _told(found: Sequence[_Left], stream: StreamDescription, *, not_begun: int) -> list[Finding]:
    """Sum up the shards by what is to be done."""
    check = "backlog"
    scarce = _SCARCE * stream.retention_hours
    sure = [each for each in found if not each.obstacle]
    gone = {each.shard_id: each for each in sure if not each.hours}
    short = {each.shard_id: each for each in sure if 0 < each.hours < scarce}
    safe = [each for each in sure if each.hours >= scarce]
    unsure = {each.shard_id: each for each in found if each.obstacle}
    findings = []
    if gone:
        findings.append(
            problem(check, f"the records that follow in {_named(gone)} have expired", _LOST)
        )
    if short:
        least = min(each.hours for each in short.values())
        findings.append(
            warning(
                check,
                f"unread records of {_named(short)} expire in {least:.1f} of "
                f"{stream.retention_hours} h",
                _CATCH_UP,
            )
        )
    if unsure:
        obstacles = sorted({each.obstacle for each in unsure.values()})
        detail = f"not found out for {_named(unsure)}: {'; '.join(obstacles)}"
        findings.append(unknown(check, detail, _GRANT if _DENIED in obstacles else _AGAIN))
    good = []
    if safe:
        least = min(each.hours for each in safe)
        good.append(f"unread records are kept for {least:.1f} h or more (shards: {len(safe)})")
    if not_begun:
        good.append(f"to be read from the oldest record on (shards: {not_begun})")
    if good or not findings:
        nothing = "of the listed shards, those that it knows were read to their end"
        findings.append(fine(check, "; ".join(good) or nothing))
    return findings


def _named(shards: Iterable[str] | Mapping[str, object]) -> str:
    """Name a few shards, and count the rest."""
    ids = sorted(shards)
    rest = len(ids) - _NAMED
    return ", ".join(ids[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
