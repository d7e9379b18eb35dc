"""Check whether a queue can be read, and advise what to do if it cannot."""

from __future__ import annotations

from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from fanout.core.findings import Finding, fine, problem, unknown, warning
from fanout.errors import FanOutError
from fanout.kinesis.aws.client import open_kinesis_client
from fanout.kinesis.aws.error_hints import explained
from fanout.kinesis.doctor.checks import clock, encryption, stream_state
from fanout.kinesis.doctor.probes import probe
from fanout.kinesis.queue.client import DEAD
from fanout.kinesis.queue.source import open_client

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence

    from fanout.kinesis.aws.api import StreamDescription
    from fanout.kinesis.queue.client import QueueClient, QueueDescription, QueueRecord
    from fanout.kinesis.queue.options import QueueOptions

_NOT_FOUND: Final = "ResourceNotFoundException"
# A receipt that no record has: to settle it changes nothing.
_NO_RECEIPT: Final = ("fanout-doctor",)
_MALFORMED: Final = frozenset({"ValidationException", "InvalidArgumentException"})
_SECONDS_PER_HOUR: Final = 3600


async def diagnose_queue(options: QueueOptions) -> list[Finding]:
    """Check everything that reading a queue requires, and advise what to do about each problem.

    No record is received from the queue. Up to ten of its dead letters are looked at, which stay
    visible. A failure is a finding, not an exception.

    Args:
        options: What to read and how: a `KinesisQueueSource`.

    Cancellation: every connection is closed.
    """
    async with AsyncExitStack() as stack:
        opening = open_kinesis_client(
            stream=options.stream,
            region=options.resolved_region,
            endpoint_url=options.endpoint_url,
            session=options.session,
            role=options.role,
            insecure=options.insecure,
        )
        try:
            with explained("AWS cannot be called"):
                reader = await stack.enter_async_context(opening)
                client = await stack.enter_async_context(open_client(options, 1))
        except FanOutError as error:
            return [problem("credentials", str(error), "")]  # it says what to do
        described = await probe("DescribeStreamSummary", reader.describe_stream())
        findings = [described.finding]
        if (stream := described.answer) is not None:
            findings += [clock(datetime.now(UTC), stream.server_time), stream_state(stream)]
            findings.append(encryption(stream, was_read=False))
        return findings + await _examine(options, client, stream)


async def _examine(
    options: QueueOptions, client: QueueClient, stream: StreamDescription | None
) -> list[Finding]:
    findings: list[Finding] = []
    arn: str | None = options.queue
    if not options.queue.startswith("arn:"):
        if stream is None:
            return [unknown("queue", "not looked for, as the stream could not be described")]
        listed = await probe("ListQueues", client.find(stream.arn, options.queue))
        findings.append(listed.finding)
        arn = listed.answer
        if listed.error is not None:
            return findings
    if arn is None:
        return [*findings, _no_queue(options)]
    described = await probe("DescribeQueue", client.describe(arn))
    if described.code == _NOT_FOUND:
        return [*findings, _no_queue(options)]
    findings.append(described.finding)
    if (queue := described.answer) is None:
        return findings
    findings.append(_state(queue, stream))
    return [
        *findings,
        *await _permissions(client, arn),
        fine(
            "visibility",
            f"a record is hidden for {options.visibility_timeout} s, and for longer while it is "
            f"worked on; for readers that name no time, {queue.visibility_timeout} s",
        ),
        _dead_letter_target(queue),
        *await _dead_letters(client, queue, stream),
    ]


def _no_queue(options: QueueOptions) -> Finding:
    return problem(
        "queue",
        f"the stream {options.stream} has no queue {options.queue}",
        "create it (CreateQueue), on a stream in on-demand mode, or correct the name",
    )


def _state(queue: QueueDescription, stream: StreamDescription | None) -> Finding:
    detail = f"{queue.arn} is {queue.status}"
    if stream is not None and queue.stream_arn != stream.arn:
        return problem(
            "queue", f"{queue.name} is one of {queue.stream_arn}", "name its stream, or another one"
        )
    match queue.status:
        case "ACTIVE" | "UPDATING":
            return fine("queue", detail)
        case "CREATING":
            return problem("queue", detail, "wait until it is ACTIVE")
        case _:
            return problem("queue", detail, "read another queue")


async def _permissions(client: QueueClient, arn: str) -> list[Finding]:
    return [
        unknown(
            "kinesis:ReceiveQueueRecords",
            "not tried, as it would take records from the readers of the queue",
            "`fanout iam-policy` with --queue-arn writes the policy",
        ),
        await _settling("AcknowledgeQueueRecords", client.acknowledge(arn, _NO_RECEIPT)),
        await _settling("UpdateQueueRecordsVisibility", client.set_visibility(arn, _NO_RECEIPT, 0)),
    ]


async def _settling(action: str, call: Awaitable[Mapping[str, Exception]]) -> Finding:
    """Settle a receipt that no record has; who may do so is told that it is not valid."""
    tried = await probe(action, call)
    if tried.code in _MALFORMED:
        return unknown(f"kinesis:{action}", "not known: the service looks at the receipt first")
    return tried.finding


def _dead_letter_target(queue: QueueDescription) -> Finding:
    check, most = "dead-letter target", queue.max_receive_count
    if most is None:
        return warning(
            check,
            "the queue makes no dead letters: a record that no reader can handle is delivered "
            "until it expires",
            "set its DeadLetterConfiguration (UpdateQueue)",
        )
    if most == 1:
        return warning(
            check,
            "a record that is received once and not acknowledged is a dead letter, also where the "
            "process of its reader died",
            "raise its MaxReceiveCount (UpdateQueue)",
        )
    return fine(check, f"a record that is received {most} times and not acknowledged")


async def _dead_letters(
    client: QueueClient, queue: QueueDescription, stream: StreamDescription | None
) -> list[Finding]:
    """Look at some dead letters, and tell how long the oldest of them is kept."""
    if queue.max_receive_count is None:
        return []
    received = await probe(
        "ReceiveDeadLetterQueueRecords",
        client.receive(queue.arn, wait=1, visible_after=0, letters=DEAD),
    )
    if received.answer is None:
        return [received.finding]
    return [received.finding, _letters(received.answer, stream)]


def _letters(letters: Sequence[QueueRecord], stream: StreamDescription | None) -> Finding:
    if not letters:
        return fine("dead letters", "none")
    detail = f"{len(letters)} or more"
    if stream is not None:
        arrived = min(letter.approximate_arrival_timestamp for letter in letters)
        hours = (stream.server_time.timestamp() - arrived) / _SECONDS_PER_HOUR
        detail += (
            f"; the oldest of these arrived {max(0.0, hours):.1f} h ago, and the stream keeps "
            f"records for {stream.retention_hours} h"
        )
    return warning(
        "dead letters",
        detail,
        "look at them with `fanout queue dead-letters`, and read them again with "
        "`fanout queue restore`, before they expire",
    )
