"""Write to a stream of Kinesis from asyncio, at least once and in order for each partition key."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any, Final, final

from fanout.core.backoff import Backoff, FullJitter
from fanout.core.statistics import WriterStatistics
from fanout.kinesis.aws.client import open_kinesis_client
from fanout.kinesis.aws.error_hints import explained
from fanout.kinesis.control_calls import until_answered
from fanout.kinesis.writing.entries import make_entries
from fanout.kinesis.writing.sender import PutSender
from fanout.kinesis.writing.shard_queues import OpenShards, ShardQueues
from fanout.kinesis.writing.stream_settings import StreamSettings
from fanout.kinesis.writing.write_options import (
    DELIVERY_TIMEOUT,
    MAX_BYTES_IN_FLIGHT,
    KinesisWriteOptions,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    import pyarrow as pa

# A shard that throttles takes records again within a second.
_WAITS: Final = Backoff(base=0.1, cap=5.0)


def open_writer(
    stream: str,
    *,
    aggregate: bool = False,
    max_record_bytes: int | None = None,
    max_bytes_in_flight: int = MAX_BYTES_IN_FLIGHT,
    delivery_timeout: float = DELIVERY_TIMEOUT,
    region: str | None = None,
    endpoint_url: str | None = None,
    session: Any = None,
    role_arn: str | None = None,
    external_id: str | None = None,
    role_session_name: str | None = None,
    insecure: bool = False,
) -> AbstractAsyncContextManager[KinesisWriter]:
    """Open a writer to a stream of Kinesis, for `async with`.

    Each record is written at least once, and the records of a partition key in their order: of a
    key one record is under way at a time, and a record that fails is put again before any later
    one. A record that was put although no answer came is there twice. Leaving the block waits until
    all records are confirmed; if the block raises, records that are not confirmed are dropped.

    Where the service distributes the records (RecordDistributionStrategy AUTO), records need no
    partition key, and those of a key have no order.

    Args:
        stream: The stream's name or ARN.
        aggregate: Whether records of a partition key that wait together are put as one record in
            the format of the KPL. `KinesisSource`, the KCL and Firehose take them apart; a reader
            that does not gets the packed bytes. None is made where the service distributes them.
        max_record_bytes: The most bytes in a record with its partition key; None for the stream's
            own limit, which is 1 MiB unless it was raised, and 10 MiB at most.
        max_bytes_in_flight: The most bytes that may wait to be confirmed.
        delivery_timeout: Seconds from the first attempt to put a record until it is confirmed.
        region: The AWS region; None takes it from the ARN, else from the session.
        endpoint_url: An endpoint instead of the region's.
        session: An `aioboto3.Session`; None makes one from the environment.
        role_arn: A role to assume, refreshed before it expires.
        external_id: The external id that the trust policy of the role asks for.
        role_session_name: The name of this writer in the logs of the role's account; None for
            `"fanout"`.
        insecure: Allow plain http to a host that is not this machine.

    Raises:
        OptionError: If an option is malformed, or two contradict each other.
        SetupError: If credentials or a region are missing.
        ServiceError: If the stream does not exist, or its shards may not be listed.

    Cancellation: every connection is closed before the block is left.
    """
    options = KinesisWriteOptions(
        stream=stream,
        aggregate=aggregate,
        max_record_bytes=max_record_bytes,
        max_bytes_in_flight=max_bytes_in_flight,
        delivery_timeout=delivery_timeout,
        region=region,
        endpoint_url=endpoint_url,
        role_arn=role_arn,
        external_id=external_id,
        role_session_name=role_session_name,
        insecure=insecure,
    )
    options.check_writing()
    return open_with(options, session)


@asynccontextmanager
async def open_with(
    options: KinesisWriteOptions, session: Any = None
) -> AsyncIterator[KinesisWriter]:
    """Open a writer with checked options; see `open_writer`."""
    arguments: Any = dict(options.client_options)
    jitter = FullJitter(_WAITS, Random())  # noqa: S311 - it spreads attempts
    async with AsyncExitStack() as stack:
        with explained(f"the stream {options.stream!r} cannot be written to"):
            opening = open_kinesis_client(**arguments, session=session)
            client = await stack.enter_async_context(opening)
        with explained(f"the shards of {options.stream!r} cannot be listed"):
            shards = OpenShards(await until_answered(client.list_shards, jitter))
        settings = StreamSettings(client, options.stream, options.max_record_bytes)
        if options.aggregate:
            await settings.read_now(jitter)
        queues = ShardQueues(shards, aggregate=options.aggregate, automatic=settings.automatic)
        sender = PutSender(
            client,
            queues,
            settings,
            max_bytes=options.max_bytes_in_flight,
            delivery_timeout=options.delivery_timeout,
            jitter=jitter,
        )
        await stack.enter_async_context(sender.running())
        writer = KinesisWriter(sender, options)
        yield writer
        # Calls of other tasks that have begun in the block end before it.
        async with writer._lock:  # noqa: SLF001 - in its module
            await sender.flush()


@final
class KinesisWriter:
    """Writes records to a stream; made by `open_writer`. Any task may call it.

    A final error ends the writing: every later call raises it too.

    Args:
        sender: Puts the records.
        options: The limits.
    """

    def __init__(self, sender: PutSender, options: KinesisWriteOptions) -> None:
        self._sender = sender
        self._options = options
        self._lock = asyncio.Lock()

    async def write(self, records: pa.RecordBatch | Sequence[Mapping[str, Any]]) -> None:
        """Write records; those of a partition key stay in the order of the rows.

        It returns when all of them have room in `max_bytes_in_flight`; `flush` waits for Kinesis.

        Args:
            records: Records with the columns `partitionKey` (string) and `data` (string or binary),
                and optionally `explicitHashKey` (a string of decimal digits) and `deduplicationId`
                (16 bytes, for `read_deduplication_ids`). Or rows as mappings. The partition key may
                be null or missing where the service distributes the records.

        Raises:
            UnwritableRecordError: If a record is too large, or lacks a key that its stream needs,
                or Kinesis cannot hold a value; none of the records is written then.
            ServiceError: If the stream does not exist, or the service refuses a call for good.
            WriteTimeoutError: If Kinesis does not confirm a record in time.

        Cancellation: some of the records may be written.
        """
        entries = make_entries(records)
        async with self._lock:
            await self._sender.check(entries.largest, keyless=entries.keyless)
            await self._sender.put(entries)

    async def flush(self) -> None:
        """Wait until Kinesis has confirmed all written records.

        Raises:
            FanOutError: As for `write`.

        Cancellation: nothing is lost; call it again.
        """
        await self._sender.flush()

    def statistics(self) -> WriterStatistics:
        """Return the counters since the writer was opened; any thread may call it."""
        sender = self._sender
        return WriterStatistics(
            records=sender.records,
            bytes=sender.bytes,
            requests=sender.calls,
            retries=sender.put_again,
            throttled=sender.throttled,
            waiting_bytes=sender.waiting,
            origin=self._options.origin,
        )
