"""Open a source of Kinesis: check its streams, and ensure its consumer. It loads the AWS SDK."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Final

from fanout.core.backoff import Backoff, FullJitter
from fanout.core.positions import Latest
from fanout.core.sentence import Option, Sentence
from fanout.errors import OptionError, ServiceError
from fanout.kinesis.aws.api import stream_of_consumer
from fanout.kinesis.aws.client import open_kinesis_client
from fanout.kinesis.aws.error_hints import explained
from fanout.kinesis.chosen_shards import ChosenConnection, ShardChoice
from fanout.kinesis.connection import KinesisConnection
from fanout.kinesis.control_calls import until_answered
from fanout.kinesis.open_files import check_open_files
from fanout.kinesis.registration import ConsumerRegistration
from fanout.kinesis.streams_connection import StreamsConnection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fanout.kinesis.aws.api import KinesisClient, StreamDescription
    from fanout.kinesis.options import KinesisOptions

# The service creates a consumer within seconds; the user's backoff may be made for outages.
_CONSUMER_POLLING: Final = Backoff(base=1.0, cap=5.0)


@asynccontextmanager
async def open_source(
    source: KinesisOptions,
) -> AsyncIterator[KinesisConnection | StreamsConnection | ChosenConnection]:
    """Connect to the streams of a source; see `KinesisSource.connect`."""
    async with _open_streams(source) as connection:
        chosen = source.shards
        yield connection if chosen is None else ChosenConnection(connection, ShardChoice(chosen))


@asynccontextmanager
async def _open_streams(
    source: KinesisOptions,
) -> AsyncIterator[KinesisConnection | StreamsConnection]:
    async with AsyncExitStack() as stack:
        if isinstance(source.stream, str):
            yield await stack.enter_async_context(_open_stream(source))
            return
        connections = [
            await stack.enter_async_context(_open_stream(_alone(source, stream)))
            for stream in source.streams
        ]
        check_open_files(sum(connection.stream.open_shards for connection in connections))
        yield StreamsConnection(source, connections)


def _alone(source: KinesisOptions, stream: str) -> KinesisOptions:
    """Return the options of one of the streams, without what is done for all of them."""
    return replace(
        source,
        stream=stream,
        shards=None,
        start=Latest(),
        decode=None,
        on_bad_record="fail",
        event_time=None,
    )


@asynccontextmanager
async def _open_stream(source: KinesisOptions) -> AsyncIterator[KinesisConnection]:
    opening = open_kinesis_client(
        stream=source.only_stream,
        region=source.resolved_region,
        endpoint_url=source.endpoint_url,
        session=source.session,
        role=source.role,
        insecure=source.insecure,
        http_version=source.http_version,
    )
    async with AsyncExitStack() as stack:
        with explained("Kinesis cannot be called"):
            client = await stack.enter_async_context(opening)
        random = Random()  # noqa: S311 - jitter, no secret
        yield await stack.enter_async_context(open_kinesis_connection(source, client, random))


@asynccontextmanager
async def open_kinesis_connection(
    options: KinesisOptions, client: KinesisClient, random: Random
) -> AsyncIterator[KinesisConnection]:
    """Connect with an open client; see `KinesisSource.connect`."""
    jitter = FullJitter(_CONSUMER_POLLING, random)
    stream = await _usable_stream(client, options.only_stream, jitter)
    chosen = stream.open_shards if options.shards is None else len(options.shards)
    check_open_files(min(chosen, stream.open_shards))
    async with AsyncExitStack() as stack:
        registration = None
        if options.mode == "efo" and options.consumer is not None:
            _check_owner(options.consumer, options.only_stream, stream)
            registration = ConsumerRegistration(
                client, stream.arn, options.consumer, jitter=jitter, tags=options.tags
            )
            if options.deregister == "on_close":
                stack.push_async_callback(registration.undo)
            await registration.ensure()
            if registration.registered is not None:
                await _check_same(client, stream, jitter)
        yield KinesisConnection(options, client, stream, registration)


def _check_owner(consumer: str, name: str, stream: StreamDescription) -> None:
    """Check that a consumer that is given by its ARN is one of the stream."""
    # A name is that of a stream in the account of the credentials, and an ARN has its own account.
    owner = stream_of_consumer(consumer)
    if owner not in {None, stream.arn}:
        raise OptionError(
            Option("stream", name),
            f" is {stream.arn} for these credentials, but the consumer {consumer} is registered on "
            f"{owner}: ",
            Sentence.of("set {stream} to the ARN of the one to read"),
        )


async def _check_same(client: KinesisClient, stream: StreamDescription, jitter: FullJitter) -> None:
    """Check that a new consumer belongs to the stream that was described before."""
    # A consumer is deleted with its stream, so an existing one shows that the stream is the same.
    if (await _usable_stream(client, stream.name, jitter)).created != stream.created:
        raise ServiceError(
            f"the stream {stream.name!r} was deleted, and another one was created by its name, "
            f"while it was opened; open it again"
        )


async def _usable_stream(client: KinesisClient, name: str, jitter: FullJitter) -> StreamDescription:
    """Describe a stream that can be read."""
    with explained(f"the stream {name!r} cannot be described"):
        stream = await until_answered(client.describe_stream, jitter)
    if stream.status not in {"ACTIVE", "UPDATING"}:
        raise ServiceError(f"the stream {name!r} is {stream.status}; it must be ACTIVE to be read")
    return stream
