"""Compare stored positions with the shards of their stream and with its retention period."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fanout.core.findings import (
    MILLIS_PER_HOUR,
    Backlog,
    BacklogAdvice,
    Finding,
    examine_backlogs,
    examine_lag,
    fine,
    named,
    problem,
    unknown,
)
from fanout.core.positions import Cursor, Horizon, Timestamp
from fanout.kinesis.aws.error_hints import ACCESS_DENIED, code_of
from fanout.kinesis.doctor.probes import CALL_ERRORS, CALL_TIMEOUT, next_arrival, reason
from fanout.kinesis.starting_position import starting_position
from fanout.kinesis.stream_positions import identity, of_one_stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanout.core.checkpoint import Checkpoint, SplitPosition
    from fanout.kinesis.aws.api import KinesisClient, ShardDescription, StreamDescription

# The shards that are requested at once; each shard allows 5 calls a second and gets one.
_CONCURRENT_CALLS: Final = 16
_DENIED: Final = "kinesis:GetShardIterator and kinesis:GetRecords are not granted"
_GRANT: Final = "grant both to find out; `fanout iam-policy` with --polling writes the policy"
_LOST: Final = (
    "records that expired unread are lost; open the stream with on_data_loss='earliest' to "
    "continue with the oldest record that is left, or start anew with a new checkpoint"
)
_ADVICE: Final = BacklogAdvice(
    longer="a longer retention period (IncreaseStreamRetentionPeriod) keeps them meanwhile",
    lost=_LOST,
    splits="shards",
    obstacles={_DENIED: _GRANT},
)


async def examine_checkpoint(
    client: KinesisClient,
    stream: StreamDescription | None,
    listed: Sequence[ShardDescription] | None,
    checkpoint: Checkpoint,
) -> list[Finding]:
    """Compare a checkpoint with its stream, the listed shards and the retention period.

    The stream is None if it could not be described, and `listed` if the listing failed. The
    checkpoint may have positions of several streams.
    """
    if stream is None or listed is None:
        return [unknown("checkpoint", "not compared, as the stream or its shards are not known")]
    checkpoint = of_one_stream(checkpoint, stream)
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
    begun = [state for state in unfinished if not isinstance(state.position, Horizon)]
    backlogs = await read_backlogs(client, stream, begun)
    return [
        *_examine_shards(checkpoint, ids),
        *examine_backlogs(backlogs, _ADVICE, not_begun=len(unfinished) - len(begun)),
        *([examine_lag(backlogs)] if begun else []),
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


async def read_backlogs(
    client: KinesisClient, stream: StreamDescription, states: Sequence[SplitPosition]
) -> dict[str, Backlog]:
    """Find out how far shards are behind, and how long their unread records are still kept.

    The shards are listed and not read to their end. The next record of each is requested from the
    service, for 16 shards at a time. Kinesis does not count the records that follow.
    """
    calls = asyncio.Semaphore(_CONCURRENT_CALLS)

    async def one(state: SplitPosition) -> Backlog:
        async with calls:
            return await _backlog_of(client, stream, state)

    async with asyncio.TaskGroup() as group:
        tasks = {state.split.id: group.create_task(one(state)) for state in states}
    return {shard_id: task.result() for shard_id, task in tasks.items()}


async def _backlog_of(
    client: KinesisClient, stream: StreamDescription, state: SplitPosition
) -> Backlog:
    position = state.position
    reached = position.millis if isinstance(position, Timestamp) else state.newest
    # The position holds the arrival time of its newest record, and unread ones arrived later.
    hours = 0.0 if reached is None else _hours_kept(stream, reached)
    backlog = Backlog(retention=stream.retention_hours, hours=hours)
    try:
        async with asyncio.timeout(CALL_TIMEOUT):
            arrival = await next_arrival(
                client, stream, state.split.id, starting_position(position)
            )
    except CALL_ERRORS as error:
        # The sequence number is one of this shard, so a refused one has expired.
        if code_of(error) == "InvalidArgumentException" and isinstance(position, Cursor):
            return replace(backlog, hours=0.0)
        return replace(backlog, obstacle=_obstacle(error))
    if arrival is None:
        return replace(backlog, hours=float(stream.retention_hours), millis=0)
    # The service tells its time in whole seconds, which may lie before an arrival.
    millis = max(1, round(stream.server_time.timestamp() * 1000) - arrival)
    if isinstance(position, Timestamp) and not hours:
        # The service starts at its oldest record and does not report that earlier ones expired.
        return replace(backlog, millis=millis)
    return replace(backlog, hours=_hours_kept(stream, arrival), millis=millis)


def _hours_kept(stream: StreamDescription, arrival: int) -> float:
    age = stream.server_time.timestamp() * 1000 - arrival
    return max(0.0, stream.retention_hours - age / MILLIS_PER_HOUR)


def _obstacle(error: Exception) -> str:
    if code_of(error) in ACCESS_DENIED:
        return _DENIED
    return reason(error)
