"""Check whether a stream can be read, and advise what to do if it cannot."""

from __future__ import annotations

import asyncio
import math
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from fanout.core.findings import Backlog, Finding, fine, problem, unknown
from fanout.core.option_checks import wrong_type
from fanout.errors import FanOutError, OptionError, ServiceError
from fanout.kinesis.aws.client import open_kinesis_client, server_time
from fanout.kinesis.aws.error_hints import ACCESS_DENIED, BAD_CREDENTIALS, explained
from fanout.kinesis.aws.session import open_session
from fanout.kinesis.doctor.checkpoint import examine_checkpoint, read_backlogs
from fanout.kinesis.doctor.checks import (
    available_memory,
    clock,
    distribution,
    encryption,
    memory,
    open_files,
    record_size,
    shard_count,
    stream_state,
)
from fanout.kinesis.doctor.checks import landers as examine_landers
from fanout.kinesis.doctor.probes import READING, Probe, probe, probe_consumer, probe_polling
from fanout.kinesis.open_files import open_files_limit
from fanout.kinesis.options import KinesisOptions
from fanout.kinesis.stream_positions import StreamSplits, identity, of_one_stream, stored_streams

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fanout.core.checkpoint import Checkpoint
    from fanout.kinesis.aws.api import KinesisClient, StreamDescription

_NOT_FOUND = "ResourceNotFoundException"


async def diagnose(
    options: KinesisOptions,
    *,
    checkpoint: Checkpoint | None = None,
    subscribe: bool = False,
    landers: int | None = None,
) -> list[Finding]:
    """Check everything that reading a stream requires, and advise what to do about each problem.

    Nothing is registered or changed, and no running subscription is disturbed unless `subscribe`
    is set.

    Args:
        options: What to read and how: a `KinesisSource`.
        checkpoint: Stored positions, of other streams too, to compare with the shards and the
            retention period; `Checkpoint.from_json(stream.positions)`.
        subscribe: Call SubscribeToShard on one open shard. That takes the shard over from a
            running reader of the same consumer, which takes it back within seconds. It has no
            effect in polling.
        landers: How many landers are to read the stream; None for the driver.

    Returns:
        The findings, in the order of the checks; of several streams one after the other, with the
        name of the stream before each check. A failure is a finding, not an exception.

    Cancellation: every connection is closed.
    """
    if not isinstance(options, KinesisOptions):
        raise wrong_type("options", options, "a KinesisSource")
    if isinstance(options.stream, str):
        return await _diagnose_stream(options, checkpoint, subscribe=subscribe, landers=landers)
    stored = {} if checkpoint is None else stored_streams(checkpoint.source)
    findings: list[Finding] = []
    for name, stream in zip(options.stream_names, options.streams, strict=True):
        one = replace(options, stream=stream)
        is_new = name not in stored and not stored.keys().isdisjoint(options.stream_names)
        found = await _diagnose_stream(
            one, None if is_new else checkpoint, subscribe=subscribe, landers=landers
        )
        if is_new:
            found.append(
                fine("checkpoint", "it has no positions of the stream: it begins at start")
            )
        findings += [replace(each, check=f"{name}: {each.check}") for each in found]
    return findings


async def _diagnose_stream(
    options: KinesisOptions,
    checkpoint: Checkpoint | None,
    *,
    subscribe: bool,
    landers: int | None,
) -> list[Finding]:
    async with AsyncExitStack() as stack:
        try:
            client, method, region = await stack.enter_async_context(_opened(options))
        except FanOutError as error:
            return [problem("credentials", str(error), "")]  # it says what to do
        described = await probe("DescribeStreamSummary", client.describe_stream())
        caller = _caller(f"from {method}, for {region}", described)
        findings = [caller, *_clock(described), described.finding]
        if described.code == _NOT_FOUND:
            return [*findings[:-1], _no_stream(options, region)]
        if described.answer is None and described.code not in ACCESS_DENIED:
            return findings
        return findings + await _examine(
            options, client, described.answer, checkpoint, subscribe=subscribe, landers=landers
        )


async def read_stream_lag(options: KinesisOptions, checkpoint: Checkpoint) -> dict[str, Backlog]:
    """Find out how far a checkpoint is behind in each shard that is not read to its end."""
    lags: dict[str, Backlog] = {}
    for stream in options.streams:
        lags |= await _read_lag(replace(options, stream=stream), checkpoint)
    return lags


async def _read_lag(options: KinesisOptions, checkpoint: Checkpoint) -> dict[str, Backlog]:
    async with _opened(options) as (client, _, _):
        with explained("the lag cannot be read"):
            stream = await client.describe_stream()
            listed = {shard.shard_id for shard in await client.list_shards()}
        positions = of_one_stream(checkpoint, stream)
        if positions.source != identity(stream):
            raise OptionError(f"it belongs to {checkpoint.source}, not to {identity(stream)}")
        splits = positions.splits.items()
        unread = [state for id_, state in splits if id_ in listed and not state.ended]
        lags = await read_backlogs(client, stream, unread)
        gone = (id_ for id_, state in splits if id_ not in listed and not state.ended)
        lags |= dict.fromkeys(gone, Backlog(retention=math.inf, hours=math.inf, gone=True))
    if positions is checkpoint:
        return lags
    names = StreamSplits(stream.name)
    return {names.split_id(shard_id): lag for shard_id, lag in lags.items()}


@asynccontextmanager
async def _opened(options: KinesisOptions) -> AsyncIterator[tuple[KinesisClient, str, str]]:
    """Open a client; also return which provider the credentials are from, and the region."""
    with explained("AWS cannot be called"):
        session, region = await open_session(options.session, options.resolved_region, options.role)
        credentials = await session.get_credentials()
    opening = open_kinesis_client(
        stream=options.only_stream,
        region=region,
        endpoint_url=options.endpoint_url,
        session=session,
        insecure=options.insecure,
        http_version=options.http_version,
    )
    async with AsyncExitStack() as stack:
        with explained("AWS cannot be called"):
            client = await stack.enter_async_context(opening)
        yield client, credentials.method, region


def _caller(provider: str, described: Probe[StreamDescription]) -> Finding:
    """Report whether the service accepts the credentials."""
    code = described.code
    if code in BAD_CREDENTIALS:
        return problem(
            "credentials",
            f"{provider}; refused as {code}",
            "renew them; if they are new, check this machine's clock",
        )
    # Only an answer, or a refusal for another reason, shows that the service checked them.
    if described.error is None or code == _NOT_FOUND or code in ACCESS_DENIED:
        return fine("credentials", f"{provider}; the service accepts them")
    if code is None:
        return unknown("credentials", f"{provider}; the service did not answer")
    return unknown("credentials", f"{provider}; the service did not check them")


def _no_stream(options: KinesisOptions, region: str) -> Finding:
    return problem(
        "stream",
        f"there is no stream {options.only_stream} in {region} in this account",
        "check its name, the region, and whose credentials these are",
    )


def _clock(described: Probe[StreamDescription]) -> list[Finding]:
    """Compare the clocks, also by a refusal: a wrong clock is a reason to refuse."""
    host = datetime.now(UTC)
    match described:
        case Probe(answer=stream) if stream is not None:
            return [clock(host, stream.server_time)]
        case Probe(error=ClientError() as error):
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
    landers: int | None,
) -> list[Finding]:
    """Make the other checks of a stream that exists; it is None if it may not be described."""
    listed = await probe("ListShards", client.list_shards())
    open_shards = [shard.shard_id for shard in listed.answer or () if shard.last is None]
    findings = [listed.finding]
    if options.mode == "polling":
        findings += await probe_polling(client, stream, open_shards)
    else:
        findings += await probe_consumer(options, client, stream, open_shards, subscribe=subscribe)
    if listed.answer is not None:
        findings.append(shard_count(len(listed.answer), len(open_shards)))
        if landers is not None:
            findings += examine_landers(options, landers, len(open_shards))
    if stream is not None:
        was_read = any(each.check in READING and each.status == "ok" for each in findings)
        findings += [
            stream_state(stream),
            distribution(stream),
            record_size(options, stream),
            encryption(stream, was_read=was_read),
            open_files(stream.open_shards, open_files_limit()),
            memory(options, stream.open_shards, await asyncio.to_thread(available_memory)),
        ]
    if checkpoint is not None:
        findings += await examine_checkpoint(client, stream, listed.answer, checkpoint)
    return findings
