"""Judge the limits and the state of a stream and of this machine, without a call.

Each check returns a `Finding`.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fanout.core.findings import (
    LANDERS_APART,
    Finding,
    fine,
    lander_cores,
    lander_count,
    problem,
    unknown,
    warning,
)
from fanout.core.sentence import Sentence
from fanout.kinesis.aws.api import MAX_SHARDS
from fanout.kinesis.aws.endpoint import HTTP_2
from fanout.kinesis.consumers import list_price
from fanout.kinesis.open_files import open_files_needed

if TYPE_CHECKING:
    from datetime import datetime

    from fanout.kinesis.aws.api import ConsumerDescription, StreamDescription
    from fanout.kinesis.options import KinesisOptions

# AWS refuses a request whose signature is 5 minutes from its own clock (IAM user guide, "Signature
# Version 4 troubleshooting").
_SIGNATURE_LIFE: Final = timedelta(minutes=5)
_NOTABLE_SKEW: Final = timedelta(minutes=1)

# Registered consumers of one stream; the second figure is that of On-demand Advantage (developer
# guide, "Develop enhanced fan-out consumers").
_CONSUMERS: Final = 20
_CONSUMERS_ADVANTAGE: Final = 50

# DescribeStreamSummary calls a second in an account, and bytes a second that a shard sends to a
# consumer (AWS API reference, DescribeStreamSummary; developer guide, "Quotas and limits").
_DESCRIPTIONS: Final = 20
_SHARD_RATE: Final = 2 << 20

_MANY_SHARDS: Final = MAX_SHARDS * 4 // 5

_AROUND_RECORD: Final = 4096
_AWS_KEY: Final = "alias/aws/kinesis"
_MIB: Final = 1 << 20


def clock(host: datetime, server: datetime) -> Finding:
    """Compare this machine's clock with the service's, both read at the same moment."""
    skew = host - server
    seconds = abs(skew).total_seconds()
    detail = f"{seconds:.0f} s {'ahead of' if skew > timedelta() else 'behind'} the service's clock"
    advice = "AWS refuses signatures that are 5 minutes off; run a time service such as chrony here"
    if abs(skew) >= _SIGNATURE_LIFE:
        return problem("clock", detail, advice)
    if abs(skew) >= _NOTABLE_SKEW:
        return warning("clock", detail, advice)
    return fine("clock", f"within {max(seconds, 1):.0f} s of the service's")


def stream_state(stream: StreamDescription) -> Finding:
    """Check whether a stream can be read."""
    detail = f"{stream.arn} is {stream.status} and keeps records for {stream.retention_hours} h"
    match stream.status:
        case "ACTIVE" | "UPDATING":
            return fine("stream", detail)
        case "CREATING":
            return problem("stream", detail, "wait until it is ACTIVE")
        case _:
            return problem("stream", detail, "read another stream")


def shard_count(listed: int, open_shards: int) -> Finding:
    """Compare a stream's shards with the limit of a reader."""
    # The service lists open shards, and closed ones with records.
    detail = f"{open_shards} open, {listed - open_shards} closed; {MAX_SHARDS:,} are read at most"
    if listed > _MANY_SHARDS:
        return warning("shards", detail, "merge shards; closed ones go with the retention period")
    return fine("shards", detail)


def distribution(stream: StreamDescription) -> Finding:
    """Tell who chooses the shard of a record, on which the order of a partition key depends."""
    check = "distribution"
    if stream.automatic:
        return fine(
            check,
            "the service distributes the records (RecordDistributionStrategy AUTO): those of a "
            "partition key have no order, and partitionKey is null where the producer gave none",
        )
    return fine(check, "the partition key decides the shard of a record, and keeps its order")


def record_size(options: KinesisOptions, stream: StreamDescription) -> Finding:
    """Compare the largest record of a stream with the largest event that is accepted."""
    check = "record size"
    # An event has one record at least, in base64, and some hundred bytes around it.
    needed = stream.max_record_bytes * 4 // 3 + _AROUND_RECORD
    detail = f"a record of the stream has up to {stream.max_record_bytes / _MIB:g} MiB"
    if needed > options.max_event_bytes:
        return problem(
            check,
            f"{detail}, and no event above {options.max_event_bytes:,} bytes is accepted",
            Sentence.of("set {max_event_bytes} to " + f"{needed} or more"),
        )
    return fine(check, detail)


def encryption(stream: StreamDescription, *, was_read: bool) -> Finding:
    """Check whether a KMS key encrypts the records, and whether it can be used."""
    # Where a call for records just succeeded, it can.
    if stream.key_id is None:
        return fine("encryption", "records are not encrypted with a key of KMS")
    detail = f"records are encrypted with the KMS key {stream.key_id}"
    if was_read or stream.key_id == _AWS_KEY:
        return fine("encryption", detail)
    return unknown(
        "encryption",
        f"{detail}; whether it may be used was not tried",
        "check that the key is enabled, and grant kms:Decrypt on it: `fanout iam-policy` with "
        "--kms-key-arn writes the policy",
    )


def http_version(version: float) -> Finding:
    """Compare the version of HTTP that subscriptions use with the one that AWS documents."""
    check = "HTTP version"
    if version == HTTP_2:
        return fine(check, "subscriptions use HTTP/2, as AWS documents SubscribeToShard")
    return fine(
        check,
        "subscriptions use HTTP/1.1; that works today, as far as is known, although AWS documents "
        "SubscribeToShard as an HTTP/2 API and does not promise HTTP/1.1",
    )


def consumer_state(name: str, consumer: ConsumerDescription | None) -> Finding:
    """Check whether a consumer can subscribe; the name may be an ARN, as the user gave it."""
    named = not name.startswith("arn:")
    match consumer.status if consumer is not None else "missing":
        case "ACTIVE":
            return fine("consumer", f"{name} is ACTIVE")
        case "CREATING":
            return warning(
                "consumer", f"{name} is CREATING", "nothing: the stream waits for a minute"
            )
        case status if named:
            return warning(
                "consumer",
                f"{name} is {status}",
                "nothing, if the role may register it (`fanout iam-policy` with --deploy): the "
                "stream does so when it opens; otherwise run `fanout consumers register`",
            )
        case status:
            return problem(
                "consumer",
                f"{name} is {status}",
                "give its name in place of its ARN to have it registered again, or the ARN of one "
                "that exists",
            )


def consumer_quota(stream: StreamDescription, *, exists: bool) -> Finding:
    """Check whether a stream has room for a consumer."""
    check = "consumer quota"
    if stream.consumers is None:
        return unknown(check, "the service does not report how many consumers are registered")
    detail = (
        f"{stream.consumers} registered; a stream has room for {_CONSUMERS}, or for "
        f"{_CONSUMERS_ADVANTAGE} with On-demand Advantage"
    )
    advice = "deregister unused ones (`fanout consumers list` and `gc`), or read by polling"
    if exists or stream.consumers < _CONSUMERS:
        return fine(check, detail)
    if stream.consumers < _CONSUMERS_ADVANTAGE:
        return warning(check, detail, advice)
    return problem(check, detail, advice)


def landers(options: KinesisOptions, number: int, open_shards: int) -> list[Finding]:
    """Judge a number of landers: for the shards, the calls that the service takes, and cores."""
    if options.mode == "polling":
        shared = (
            "each shard is polled by one lander at a time, within the 5 calls and 2 MiB a second "
            "that all pollers of the shard share"
        )
    else:
        shared = (
            f"{open_shards} subscriptions of the consumer, one for each open shard, whichever "
            f"lander has it: as many subscribe calls as without landers"
        )
    begin = number * LANDERS_APART
    calls = fine(
        "calls of landers",
        f"{shared}; {number} landers begin within {begin:.1f} s, as each describes the stream, "
        f"which an account may do {_DESCRIPTIONS} times a second",
    )
    count = lander_count(number, open_shards, "open shards", bytes_per_second=_SHARD_RATE)
    return [count, calls, lander_cores(number)]


def price(stream: StreamDescription) -> Finding:
    """Return the price of one consumer."""
    estimate = list_price(stream)
    if stream.on_demand:
        return fine(
            "price",
            f"a consumer costs nothing until it reads, and ${estimate.gb_price} for each GB, as "
            f"the stream is in on-demand mode (list price of us-east-1)",
        )
    return fine(
        "price",
        f"a consumer costs ${estimate.per_consumer:,.2f} a month on {stream.open_shards} open "
        f"shards, and ${estimate.gb_price} for each GB (list prices of us-east-1)",
    )


def open_files(shards: int, limit: int | None) -> Finding:
    """Compare the connections of the subscriptions with the files that this process may open."""
    # Each open shard holds one connection.
    needed = open_files_needed(shards)
    allowed = "any number" if limit is None else f"{limit:,}"
    detail = f"{needed:,} are needed for {shards:,} open shards, {allowed} may be open here"
    if limit is not None and needed > limit:
        return problem(
            "open files",
            detail,
            f"raise the limit before the reader starts (`ulimit -n {needed}`, LimitNOFILE= of a "
            f"systemd unit, nofile of a container)",
        )
    return fine("open files", detail)


def memory(options: KinesisOptions, shards: int, available: int) -> Finding:
    """Compare the bytes that may wait for the consumer with the memory of this machine."""
    # Each open shard holds up to 3 events. What other processes use counts as available.
    needed = min(3 * shards * options.max_event_bytes, options.max_bytes_in_flight)
    detail = (
        f"up to {needed / _MIB:,.0f} MiB of events wait for the consumer; "
        f"this machine or container has {available / _MIB:,.0f} MiB in all"
    )
    advice = Sentence.of(
        "lower {max_bytes_in_flight} (and {max_event_bytes}), or give the reader more memory"
    )
    if needed > available:
        return problem("memory", detail, advice)
    if 2 * needed > available:
        return warning("memory", detail, advice)
    return fine("memory", detail)


def available_memory(limit: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """Return the bytes of memory of this machine, or of its container on Linux. It blocks."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(memory, int(limit.read_text()))
    except (OSError, ValueError):  # no container, or one without a limit: "max"
        return memory
