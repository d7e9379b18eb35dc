"""Find out whether a stream can be read, and what to do where it cannot."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from fanout.errors import FanOutError, ServiceError
from fanout.kinesis.aws.client import open_kinesis_client, server_time
from fanout.kinesis.aws.error_hints import DENIED, NOT_BELIEVED, explained
from fanout.kinesis.aws.session import open_session
from fanout.kinesis.connection import identity
from fanout.kinesis.doctor.checks import (
    available_memory,
    clock,
    encryption,
    memory,
    open_files,
    shard_count,
    stream_state,
)
from fanout.kinesis.doctor.findings import Finding, fine, problem, unknown
from fanout.kinesis.doctor.probes import READING, Attempt, attempt, try_consumer, try_polling
from fanout.kinesis.doctor.stored_positions import examine_backlog, examine_shards
from fanout.kinesis.open_files import open_files_limit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanout.core.checkpoint import Checkpoint
    from fanout.kinesis.aws.api import KinesisClient, ShardDescription, StreamDescription
    from fanout.kinesis.options import KinesisOptions

__all__ = ("diagnose",)

_NOT_FOUND = "ResourceNotFoundException"


async def diagnose(
    options: KinesisOptions, *, checkpoint: Checkpoint | None = None, subscribe: bool = False
) -> list[Finding]:
    """Check what reading a stream needs, and say what to do about each.

    Nothing is registered or changed, and no running subscription is disturbed unless `subscribe`
    asks for it.

    Args:
        options: What to read and how: a `KinesisSource`.
        checkpoint: Stored positions, to be held against the shards and the retention period;
            `Checkpoint.from_json(stream.positions)`.
        subscribe: Try SubscribeToShard on one open shard. That takes the shard over from a running
            reader of the same consumer, which takes it back within seconds. Polling has none.

    Returns:
        The findings, in the order of the checks. Whatever fails is a finding, not an exception.

    Cancellation: every connection is closed.
    """
    async with AsyncExitStack() as stack:
        try:
            with explained("AWS cannot be called"):
                session, region = await open_session(
                    options.session, options.resolved_region, options.role_arn
                )
                credentials = await session.get_credentials()
                opening = open_kinesis_client(
                    stream=options.stream,
                    region=region,
                    endpoint_url=options.endpoint_url,
                    session=session,
                    insecure=options.insecure,
                )
                client = await stack.enter_async_context(opening)
        except FanOutError as error:
            return [problem("credentials", str(error), "see to this machine's AWS configuration")]
        described = await attempt("DescribeStreamSummary", client.describe_stream())
        caller = _caller(f"from {credentials.method}, for {region}", described)
        findings = [caller, *_clock(described), described.finding]
        if described.code == _NOT_FOUND:
            return [*findings[:-1], _no_stream(options, region)]
        if described.answer is None and described.code not in DENIED:
            return findings
        return findings + await _examine(
            options, client, described.answer, checkpoint, subscribe=subscribe
        )


def _caller(provider: str, described: Attempt[StreamDescription]) -> Finding:
    """Say whether the service takes the caller for who it is."""
    code = described.code
    if code in NOT_BELIEVED:
        return problem(
            "credentials",
            f"{provider}; refused as {code}",
            "renew them; if they are new, see to this machine's clock",
        )
    # Only a call that was decided says that they were looked at.
    if described.error is None or code == _NOT_FOUND or code in DENIED:
        return fine("credentials", f"{provider}; the service takes them")
    if code is None:
        return unknown("credentials", f"{provider}; the service did not answer")
    return unknown("credentials", f"{provider}; the service did not look at them")


def _no_stream(options: KinesisOptions, region: str) -> Finding:
    return problem(
        "stream",
        f"there is no stream {options.stream} in {region} in this account",
        "check its name, the region, and whose credentials these are",
    )


def _clock(described: Attempt[StreamDescription]) -> list[Finding]:
    """Compare the clocks, by a refusal as well: a wrong clock is a reason to refuse."""
    host = datetime.now(UTC)
    match described:
        case Attempt(answer=stream) if stream is not None:
            return [clock(host, stream.server_time)]
        case Attempt(error=ClientError() as error):
            headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
            try:
                return [clock(host, server_time(headers))]
            except ServiceError:
                return []
        case _:
            return []


async def _examine(
    options: KinesisOptions,
    client: KinesisClient,
    stream: StreamDescription | None,
    checkpoint: Checkpoint | None,
    *,
    subscribe: bool,
) -> list[Finding]:
    """Make the other checks of a stream that exists; None where it may not be described."""
    listed = await attempt("ListShards", client.list_shards())
    open_shards = [shard.shard_id for shard in listed.answer or () if shard.last is None]
    findings = [listed.finding]
    if options.mode == "polling":
        findings += await try_polling(client, stream, open_shards)
    else:
        findings += await try_consumer(options, client, stream, open_shards, subscribe=subscribe)
    if listed.answer is not None:
        findings.append(shard_count(len(listed.answer), len(open_shards)))
    if stream is not None:
        was_read = any(each.check in READING and each.status == "ok" for each in findings)
        findings += [
            stream_state(stream),
            encryption(stream, was_read=was_read),
            open_files(stream.open_shards, open_files_limit()),
            memory(options, stream.open_shards, await asyncio.to_thread(available_memory)),
        ]
    if checkpoint is not None:
        findings += await _examine_checkpoint(client, stream, listed.answer, checkpoint)
    return findings


async def _examine_checkpoint(
    client: KinesisClient,
    stream: StreamDescription | None,
    listed: Sequence[ShardDescription] | None,
    checkpoint: Checkpoint,
) -> list[Finding]:
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
        *examine_shards(checkpoint, listed),
        *await examine_backlog(client, stream, unfinished),
    ]
