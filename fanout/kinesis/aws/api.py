"""The calls of Kinesis that a stream needs, as a protocol, and the values that they return.

Errors of the service (botocore's ClientError) and of the network (aiohttp's and botocore's) pass
unchanged; the caller judges them by the table in `fanout.kinesis.policy`.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol, final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from datetime import datetime

# A longer listing is treated as a fault, so that it cannot exhaust memory. An account may open
# 20,000 shards (developer guide, "Quotas and limits"), and closed ones are listed for as long as
# their records are kept. A stream has at most 50 consumers (AWS API reference,
# RegisterStreamConsumer).
MAX_SHARDS: Final = 50_000
MAX_CONSUMERS: Final = 1_000

MAX_HASH_KEY: Final = 2**128 - 1

NO_TAGS: Final[Mapping[str, str]] = MappingProxyType({})


@final
@dataclass(frozen=True, slots=True)
class StreamDescription:
    """Describe a stream.

    Args:
        name: The stream's name.
        arn: Its ARN.
        status: CREATING, DELETING, ACTIVE or UPDATING.
        created: When it was created; a stream that replaces another of its name has the same ARN.
        server_time: The service's clock when it answered, to the second.
        retention_hours: The hours for which it keeps a record.
        open_shards: The number of shards that accept records.
        consumers: The number of registered consumers; None if the service does not send it.
        key_id: The KMS key that encrypts the records, as its ARN, its id or an alias; None if
            they are not encrypted.
        on_demand: Whether the service scales it, and bills its GB instead of its shards.
    """

    name: str
    arn: str
    status: str
    created: datetime
    server_time: datetime
    retention_hours: int
    open_shards: int
    consumers: int | None
    key_id: str | None
    on_demand: bool = False


@final
@dataclass(frozen=True, slots=True)
class HashRange:
    """Hold the hash keys of a shard, both ends included; a shard keeps them until it is closed.

    https://docs.aws.amazon.com/kinesis/latest/APIReference/API_HashKeyRange.html

    Args:
        start: The lowest.
        end: The highest.
    """

    start: int = 0
    end: int = MAX_HASH_KEY

    def __contains__(self, hash_key: int) -> bool:
        return self.start <= hash_key <= self.end

    @property
    def is_whole(self) -> bool:
        """Whether the range holds every hash key."""
        return self.start == 0 and self.end >= MAX_HASH_KEY


@final
@dataclass(frozen=True, slots=True)
class ShardDescription:
    """Describe a shard.

    Args:
        shard_id: The shard's id.
        parents: The shards that it continues: none, one after a split, two after a merge. They may
            be past the retention period and no longer listed.
        first: The sequence number that it began with.
        last: The sequence number that it was closed with, above that of any record of it; None
            while it is open.
        hash_range: The hash keys of its records.
    """

    shard_id: str
    parents: tuple[str, ...]
    first: int
    last: int | None
    hash_range: HashRange


@final
@dataclass(frozen=True, slots=True)
class ConsumerDescription:
    """Describe a stream consumer.

    Args:
        name: The consumer's name, unique on its stream.
        arn: Its ARN.
        status: CREATING, DELETING or ACTIVE.
        created: When it was registered.
    """

    name: str
    arn: str
    status: str
    created: datetime


@final
@dataclass(frozen=True, slots=True)
class UnreadRecords:
    """Hold an answer of GetRecords of which only the headers have been read.

    Args:
        size: The bytes of the body; None if the service does not send it.
        chunks: The body, a JSON document, as it arrives.
    """

    size: int | None
    chunks: AsyncIterator[bytes]


@final
@dataclass(frozen=True, slots=True)
class PutResult:
    """Hold the answer to one record of PutRecords.

    Args:
        shard_id: The shard that has it; None if it was refused.
        error_code: Why it was refused, such as ProvisionedThroughputExceededException; None if it
            was not.
        message: The service's own sentence, which names the shard.
    """

    shard_id: str | None
    error_code: str | None = None
    message: str = ""


class KinesisClient(Protocol):
    """Make the calls of one stream; cancelling any of them closes its connection."""

    async def renew_credentials(self) -> None:
        """Find credentials again, as when the client was opened, and sign with them from now on.

        Cancellation: the old ones stay.

        Raises:
            Exception: Any error of botocore, if there are none; the old ones stay.
        """

    async def describe_stream(self) -> StreamDescription:
        """Call DescribeStreamSummary."""

    async def list_shards(self) -> list[ShardDescription]:
        """Call ListShards until the last page: every shard within the retention period.

        Raises:
            ServiceError: There are more than MAX_SHARDS, or a page token came twice.
        """

    async def list_consumers(self, stream_arn: str) -> list[ConsumerDescription]:
        """Call ListStreamConsumers until the last page.

        Raises:
            ServiceError: There are more than MAX_CONSUMERS, or a page token came twice.
        """

    async def register_consumer(
        self, stream_arn: str, name: str, tags: Mapping[str, str] = NO_TAGS
    ) -> ConsumerDescription:
        """Call RegisterStreamConsumer; the consumer is usable when it is described as ACTIVE.

        Args:
            stream_arn: The stream to register it on.
            name: Its name.
            tags: Its tags; with any, the caller needs kinesis:TagResource too.
        """

    async def describe_consumer(
        self, *, arn: str | None = None, stream_arn: str | None = None, name: str | None = None
    ) -> ConsumerDescription:
        """Call DescribeStreamConsumer, by the consumer's `arn` or by `stream_arn` and `name`."""

    async def deregister_consumer(self, arn: str) -> None:
        """Call DeregisterStreamConsumer; the consumer is gone when it is no longer described."""

    def subscribe(
        self, consumer_arn: str, shard_id: str, starting_position: Mapping[str, Any]
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Call SubscribeToShard once, without a retry, and hand over its body as raw chunks.

        There is no timeout on the service's silence: the caller has to set one. Leaving the context
        closes the connection at once.

        Args:
            consumer_arn: The consumer to subscribe.
            shard_id: The shard to subscribe to.
            starting_position: StartingPosition as in the AWS API.
        """

    async def get_shard_iterator(
        self, stream_arn: str, shard_id: str, starting_position: Mapping[str, Any]
    ) -> str:
        """Call GetShardIterator once, without a retry; the service allows 5 calls a second.

        There is no timeout: the caller has to set one.

        Args:
            stream_arn: The shard's stream.
            shard_id: The shard to read.
            starting_position: Where to begin, as the StartingPosition of SubscribeToShard.

        Returns:
            An iterator for `get_records`, which expires after 5 minutes.
        """

    def get_records(
        self, stream_arn: str, shard_iterator: str, *, limit: int | None = None
    ) -> AbstractAsyncContextManager[UnreadRecords]:
        """Call GetRecords once, without a retry, and hand over its body before reading it.

        There is no timeout: the caller has to set one.
        Leaving the context closes the connection, unless the body was read to its end.

        Args:
            stream_arn: The iterator's stream.
            shard_iterator: The iterator that `get_shard_iterator` or the last call returned.
            limit: The most records; None for the service's own limit.
        """


class KinesisWritingClient(KinesisClient, Protocol):
    """Make the calls of one stream that is written to, too."""

    async def put_records(self, records: Sequence[Mapping[str, Any]]) -> list[PutResult]:
        """Call PutRecords once, without a retry; some of the records may be refused.

        There is no timeout: the caller has to set one.

        Args:
            records: PutRecordsRequestEntry as in the AWS API, up to 500.

        Returns:
            The result of each record.

        Raises:
            ServiceError: If the answer has not one result for each record.
        """
