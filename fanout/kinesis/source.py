"""Read a Kinesis stream as a source: the user's frozen description, and opening a connection."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Final, final

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
from fanout.kinesis.options import KinesisOptions
from fanout.kinesis.reading.decode import SCHEMA, arrival, cursor_after
from fanout.kinesis.registration import ConsumerRegistration
from fanout.kinesis.streams_connection import StreamsConnection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pyarrow as pa

    from fanout.core.events import Batch
    from fanout.core.positions import Cursor
    from fanout.kinesis.aws.api import KinesisClient, StreamDescription

# The service creates a consumer within seconds; the user's backoff may be made for outages.
_CONSUMER_POLLING: Final = Backoff(base=1.0, cap=5.0)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class KinesisSource(KinesisOptions):
    """Read a Kinesis stream or several; the arguments are those of KinesisOptions."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of a record, named as the Databricks connector names them.

        With `decode` they are the columns that it returns.
        """
        decode = self.user_decode
        return SCHEMA if decode is None else decode.schema

    @asynccontextmanager
    async def connect(
        self, *, available_now: bool = False
    ) -> AsyncIterator[KinesisConnection | StreamsConnection | ChosenConnection]:
        """Connect, check that each stream exists, and ensure that its consumer is ACTIVE.

        In polling no consumer is needed or described.

        With `deregister="on_close"`, leaving the context deregisters a consumer that was registered
        here. That takes 10 seconds at most; if the task is cancelled again, the consumer stays, and
        a warning is logged.

        Args:
            available_now: Has no effect: only an answer to reading a shard shows whether its newest
                record has been read.

        Raises:
            SetupError: If credentials or a region are missing, or the streams have more shards
                than this process may open files.
            OptionError: If the consumer is one of another account's stream.
            ServiceError: If a stream or consumer does not exist or may not be used, or the
                endpoint does not answer.
        """
        del available_now
        async with self._connect() as connection:
            chosen = self.shards
            yield (
                connection if chosen is None else ChosenConnection(connection, ShardChoice(chosen))
            )

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[KinesisConnection | StreamsConnection]:
        async with AsyncExitStack() as stack:
            if isinstance(self.stream, str):
                yield await stack.enter_async_context(_open_stream(self))
                return
            connections = [
                await stack.enter_async_context(_open_stream(self._of(stream)))
                for stream in self.streams
            ]
            check_open_files(sum(connection.stream.open_shards for connection in connections))
            yield StreamsConnection(self, connections)

    def _of(self, stream: str) -> KinesisSource:
        """Return the source of one of the streams, without what is done for all of them."""
        return replace(
            self,
            stream=stream,
            shards=None,
            start=Latest(),
            decode=None,
            on_bad_record="fail",
            event_time=None,
        )

    def cursor(self, batch: Batch, row: int) -> Cursor:
        """Return the position after one row: inside its record if the next row belongs to it too.

        Args:
            batch: The batch with all its rows, so that a record's last row is its last sub-record.
            row: The index of the row.
        """
        return cursor_after(batch, row)

    def arrival(self, records: pa.RecordBatch, row: int) -> int | None:
        """Return when a row arrived, in milliseconds since the Unix epoch; None if not sent."""
        return arrival(records, row)


@asynccontextmanager
async def _open_stream(source: KinesisSource) -> AsyncIterator[KinesisConnection]:
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
