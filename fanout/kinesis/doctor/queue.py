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
from fanout.kinesis.queue.client import DEAD, open_queue_client

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence

    from fanout.kinesis.aws.api import StreamDescription
    from fanout.kinesis.queue.client import QueueClient, QueueDescription
    from fanout.kinesis.queue.options import QueueOptions
    from fanout.kinesis.queue.records import QueueRecord

_NOT_FOUND: Final = "ResourceNotFoundException"
_NO_RECEIPT: Final = ("fanout-doctor",)  # to settle what no record has changes nothing
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
                client = await stack.enter_async_context(open_queue_client(options, 1))
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
    described = None if arn is None else await probe("DescribeQueue", client.describe(arn))
    if described is None or described.code == _NOT_FOUND:
        detail = f"the stream {options.stream} has no queue {options.queue}"
        advice = "create it, on a stream in on-demand mode (CreateQueue), or correct the name"
        return [*findings, problem("queue", detail, advice)]
    findings.append(described.finding)
    if (queue := described.answer) is None:
        return findings
    return [
        *findings,
        _state(queue, stream),
        unknown(
            "kinesis:ReceiveQueueRecords",
            "not tried, as it would take records from the readers of the queue",
            "`fanout iam-policy` with --queue-arn writes the policy",
        ),
        await _settling("AcknowledgeQueueRecords", client.acknowledge(queue.arn, _NO_RECEIPT)),
        await _settling(
            "UpdateQueueRecordsVisibility", client.set_visibility(queue.arn, _NO_RECEIPT, 0)
        ),
        fine(
            "visibility",
            f"a record is hidden for {options.visibility_timeout} s, and for longer while it is "
            f"worked on; for readers that name no time, {queue.visibility_timeout} s",
        ),
        *await _dead_letters(client, queue, stream),
    ]


def _state(queue: QueueDescription, stream: StreamDescription | None) -> Finding:
    if stream is not None and queue.stream_arn != stream.arn:
        detail = f"{queue.name} is one of {queue.stream_arn}"
        return problem("queue", detail, "name its stream, or another queue")
    detail = f"{queue.arn} is {queue.status}"
    if queue.status in {"ACTIVE", "UPDATING"}:
        return fine("queue", detail)
    return problem("queue", detail, "wait until it is ACTIVE, or read another queue")


async def _settling(action: str, call: Awaitable[Mapping[str, Exception]]) -> Finding:
    """Settle a receipt that no record has; who may do so is told that it is not valid."""
    tried = await probe(action, call)
    if tried.code in _MALFORMED:
        return unknown(f"kinesis:{action}", "not known: the service looks at the receipt first")
    return tried.finding


async def _dead_letters(
    client: QueueClient, queue: QueueDescription, stream: StreamDescription | None
) -> list[Finding]:
    """Tell when a record becomes a dead letter, and how long the oldest of some is kept."""
    check, most = "dead-letter target", queue.max_receive_count
    if most is None:
        detail = "none: a record that no reader can handle is delivered until it expires"
        return [warning(check, detail, "set its DeadLetterConfiguration (UpdateQueue)")]
    target = fine(check, f"the queue itself, for what was received {most} times")
    if most == 1:
        detail = "a record is a dead letter as soon as its reader dies: it is received once"
        target = warning(check, detail, "raise its MaxReceiveCount (UpdateQueue)")
    call = client.receive(queue.arn, wait=1, visible_after=0, letters=DEAD)
    received = await probe("ReceiveDeadLetterQueueRecords", call)
    if received.answer is None:
        return [target, received.finding]
    return [target, received.finding, _letters(received.answer, stream)]


def _letters(letters: Sequence[QueueRecord], stream: StreamDescription | None) -> Finding:
    if not letters:
        return fine("dead letters", "none")
    detail = f"{len(letters)} or more"
    if stream is not None:
        arrived = min(letter.approximate_arrival_timestamp for letter in letters)
        hours = max(0.0, stream.server_time.timestamp() - arrived) / _SECONDS_PER_HOUR
        kept = stream.retention_hours
        detail += f"; the oldest of these arrived {hours:.1f} h ago, and is kept for {kept} h"
    advice = (
        "look at them (`fanout queue dead-letters`), and read them again (`fanout queue restore`)"
    )
    return warning("dead letters", detail, advice)
