"""Compare stored positions with the shards of their stream and with its retention period."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from fanout.core.findings import Finding, fine, named, problem, unknown, warning
from fanout.core.positions import Cursor, Horizon, Timestamp
from fanout.kinesis.aws.error_hints import ACCESS_DENIED, code_of
from fanout.kinesis.connection import identity
from fanout.kinesis.doctor.probes import CALL_ERRORS, CALL_TIMEOUT, next_arrival, reason
from fanout.kinesis.starting_position import starting_position

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanout.core.checkpoint import Checkpoint, SplitPosition
    from fanout.kinesis.aws.api import KinesisClient, ShardDescription, StreamDescription

_MILLIS_PER_HOUR: Final = 3_600_000
# A backlog that is kept for less than this share of the retention period is a warning.
_SHORT: Final = 0.25
# The shards that are requested at once; each shard allows 5 calls a second and gets one.
_CONCURRENT_CALLS: Final = 16
_CATCH_UP: Final = (
    "start the reader, or make it faster, before they expire; a longer retention period "
    "(IncreaseStreamRetentionPeriod) keeps them meanwhile"
)
_DENIED: Final = "kinesis:GetShardIterator and kinesis:GetRecords are not granted"
_GRANT: Final = "grant both to find out; `fanout iam-policy` with --polling writes the policy"
_AGAIN: Final = "try again in a minute"
_LOST: Final = (
    "records that expired unread are lost; open the stream with on_data_loss='earliest' to "
    "continue with the oldest record that is left, or start anew with a new checkpoint"
)


async def examine_checkpoint(
    client: KinesisClient,
    stream: StreamDescription | None,
    listed: Sequence[ShardDescription] | None,
    checkpoint: Checkpoint,
) -> list[Finding]:
    """Compare a checkpoint with its stream, the listed shards and the retention period.

    Args:
        client: The calls of the stream.
        stream: The stream, as it was described just now; None if that failed.
        listed: The listed shards; None if the listing failed.
        checkpoint: The stored positions.

    Cancellation: no call outlives it.
    """
    if stream is None or listed is None:
        return [unknown("checkpoint", "not compared, as the stream or its shards are not known")]
    if checkpoint.source != identity(stream):
        return [
            problem(
                "checkpoint",
                f"it belongs to {checkpoint.source}, not to {identity(stream)}",
                "resume it with the stream that it was written for, or start with a new one",
            )
        ]
    ids = {shard.shard_id for shard in listed}
    unfinished = [
        state for id_, state in checkpoint.splits.items() if id_ in ids and not state.ended
    ]
    return [
        *_examine_shards(checkpoint, ids),
        *await _examine_backlog(client, stream, unfinished),
    ]


def _examine_shards(checkpoint: Checkpoint, listed: set[str]) -> list[Finding]:
    """Compare the shards of a checkpoint with the ids of those that the service lists."""
    known = checkpoint.splits
    unfinished = {id_ for id_, state in known.items() if not state.ended}
    counts = (
        f"{len(known)} shards known, {len(known) - len(unfinished)} of them read to the end; "
        f"{len(listed - known.keys())} listed ones are new to it and begin after their parents"
    )
    findings = [fine("checkpoint", counts)]
    if expired := unfinished - listed:
        findings.append(
            problem(
                "expired shards",
                f"{named(expired)}: not read to the end, and no longer listed",
                _LOST,
            )
        )
    return findings


async def _examine_backlog(
    client: KinesisClient, stream: StreamDescription, states: Sequence[SplitPosition]
) -> list[Finding]:
    """Find out how long the unread records of shards are still kept.

    A position holds the arrival time of its newest record, and unread ones arrived later. If that
    is not enough, the next record is requested from the service, for 16 shards at a time.

    Args:
        client: The calls of the stream.
        stream: The stream, as it was described just now.
        states: The positions of listed shards that are not read to their end.

    Returns:
        At most one finding for each status.

    Cancellation: no call outlives it.
    """
    begun = [state for state in states if not isinstance(state.position, Horizon)]
    calls = asyncio.Semaphore(_CONCURRENT_CALLS)

    async def one(state: SplitPosition) -> _Backlog:
        async with calls:
            return await _backlog_of(client, stream, state)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(state)) for state in begun]
    return _summary([task.result() for task in tasks], stream, not_begun=len(states) - len(begun))


@final
@dataclass(frozen=True, slots=True)
class _Backlog:
    """Hold how long the unread records of a shard are still kept.

    Args:
        shard_id: The shard.
        hours: At least this many hours; 0 if some may have expired already.
        obstacle: Why no better number is known; empty if `hours` is reliable.
    """

    shard_id: str
    hours: float
    obstacle: str = ""


async def _backlog_of(
    client: KinesisClient, stream: StreamDescription, state: SplitPosition
) -> _Backlog:
    shard_id = state.split.id
    reached = state.position.millis if isinstance(state.position, Timestamp) else state.newest
    at_least = 0.0 if reached is None else _hours_kept(stream, reached)
    if at_least >= _SHORT * stream.retention_hours:
        return _Backlog(shard_id, at_least)
    try:
        async with asyncio.timeout(CALL_TIMEOUT):
            arrival = await next_arrival(
                client, stream, shard_id, starting_position(state.position)
            )
    except CALL_ERRORS as error:
        # The sequence number is one of this shard, so a refused one has expired.
        if code_of(error) == "InvalidArgumentException" and isinstance(state.position, Cursor):
            return _Backlog(shard_id, 0.0)
        return _Backlog(shard_id, at_least, _obstacle(error))
    if arrival is None:
        return _Backlog(shard_id, float(stream.retention_hours))
    if isinstance(state.position, Timestamp) and not at_least:
        # The service starts at its oldest record and does not report that earlier ones expired.
        return _Backlog(shard_id, 0.0)
    return _Backlog(shard_id, _hours_kept(stream, arrival))


def _hours_kept(stream: StreamDescription, arrival: int) -> float:
    age = stream.server_time.timestamp() * 1000 - arrival
    return max(0.0, stream.retention_hours - age / _MILLIS_PER_HOUR)


def _obstacle(error: Exception) -> str:
    if code_of(error) in ACCESS_DENIED:
        return _DENIED
    return reason(error)


def _summary(
    backlogs: Sequence[_Backlog], stream: StreamDescription, *, not_begun: int
) -> list[Finding]:
    """Group the shards by what the user should do about them."""
    check = "backlog"
    limit = _SHORT * stream.retention_hours
    reliable = [each for each in backlogs if not each.obstacle]
    expired = {each.shard_id: each for each in reliable if not each.hours}
    short = {each.shard_id: each for each in reliable if 0 < each.hours < limit}
    safe = [each for each in reliable if each.hours >= limit]
    unreliable = {each.shard_id: each for each in backlogs if each.obstacle}
    findings = []
    if expired:
        findings.append(
            problem(check, f"the records that follow in {named(expired)} have expired", _LOST)
        )
    if short:
        least = min(each.hours for each in short.values())
        findings.append(
            warning(
                check,
                f"unread records of {named(short)} expire in {least:.1f} of "
                f"{stream.retention_hours} h",
                _CATCH_UP,
            )
        )
    if unreliable:
        obstacles = sorted({each.obstacle for each in unreliable.values()})
        detail = f"not found out for {named(unreliable)}: {'; '.join(obstacles)}"
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
