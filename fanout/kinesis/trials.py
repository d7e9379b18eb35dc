"""The calls that read a stream, tried: through its consumer, or by polling."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

from fanout.core.backoff import BackoffOptions, FullJitter
from fanout.core.positions import Timestamp
from fanout.kinesis.connection import KinesisConnection
from fanout.kinesis.findings import Finding, fine, unknown
from fanout.kinesis.probes import Attempt, attempt, first_arrival, subscribe_once
from fanout.kinesis.registration import ConsumerRegistration
from fanout.kinesis.transport import NO_TAGS
from fanout.kinesis.vitals import consumer_quota, consumer_state, price

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanout.kinesis.options import KinesisOptions
    from fanout.kinesis.transport import ConsumerDescription, StreamDescription, Transport

__all__ = ("READING", "try_consumer", "try_polling")

_SUBSCRIBE: Final = "SubscribeToShard"
_ITERATOR: Final = "GetShardIterator"
_RECORDS: Final = "GetRecords"
# The checks that ask for records.
READING: Final = frozenset({f"kinesis:{_SUBSCRIBE}", f"kinesis:{_RECORDS}"})

_ARN: Final = "arn:"
_GONE: Final = "ResourceNotFoundException"


async def try_consumer(
    options: KinesisOptions,
    transport: Transport,
    stream: StreamDescription | None,
    open_shards: Sequence[str],
    *,
    subscribe: bool,
) -> list[Finding]:
    """Look at the consumer, and subscribe to one shard where that is asked for.

    Args:
        options: The options; they name the consumer.
        transport: The calls.
        stream: The stream; None where it may not be described.
        open_shards: The ids of its open shards, as far as they are known.
        subscribe: Whether to subscribe.
    """
    name = options.consumer or ""
    described = await _describe(transport, name, stream.arn if stream else options.stream)
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
            transport,
            stream.arn,
            consumer.arn,
            jitter=FullJitter(BackoffOptions(), Random()),  # noqa: S311 - jitter, no secret
            tags=NO_TAGS,
        )
        connection = KinesisConnection(options, transport, stream, registration)
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
    transport: Transport, name: str, stream_arn: str
) -> Attempt[ConsumerDescription]:
    action = "DescribeStreamConsumer"
    if name.startswith(_ARN):
        call = transport.describe_consumer(arn=name)
    elif stream_arn.startswith(_ARN):
        call = transport.describe_consumer(stream_arn=stream_arn, name=name)
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
    transport: Transport, stream: StreamDescription | None, open_shards: Sequence[str]
) -> list[Finding]:
    """Ask for at most one record of one shard; that disturbs nobody.

    Args:
        transport: The calls.
        stream: The stream; None where it may not be described.
        open_shards: The ids of its open shards, as far as they are known.
    """
    if stream is None or not open_shards:
        missing = "not tried, as the stream or its open shards are not known"
        return [unknown(f"kinesis:{action}", missing) for action in (_ITERATOR, _RECORDS)]
    shard_id = open_shards[-1]
    latest = {"Type": "LATEST"}
    begun = await attempt(_ITERATOR, transport.get_shard_iterator(stream.arn, shard_id, latest))
    if begun.answer is None:
        missing = f"not tried, as it needs what {_ITERATOR} returns"
        return [begun.finding, unknown(f"kinesis:{_RECORDS}", missing)]
    polled = await attempt(_RECORDS, first_arrival(transport, stream, shard_id, begun.answer))
    return [begun.finding, polled.finding]
