"""The calls of Kinesis that a stream needs, as a protocol, and the values that they return.

Errors of the service (botocore's ClientError) and of the network (aiohttp's and botocore's) pass
unchanged; the caller judges them by the table in `fanout.kinesis.policy`.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol, final

from fanout.errors import MalformedEventError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from datetime import datetime

# A longer listing is treated as a fault, so that it cannot exhaust memory. An account may at
# first open 20,000 shards in a region, or fewer (developer guide, "Quotas and limits"), and closed
# ones are listed for as long as their records are kept. A stream has at most 50 consumers (AWS API
# reference, RegisterStreamConsumer).
MAX_SHARDS: Final = 50_000
MAX_CONSUMERS: Final = 1_000

MAX_HASH_KEY: Final = 2**128 - 1
_MAX_HASH_KEY_DIGITS: Final = len(str(MAX_HASH_KEY))

# The name of a stream or a consumer, and the ARNs of both with their parts.
NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
STREAM_ARN: Final = re.compile(
    r"(?P<stream_arn>arn:aws[a-z0-9-]*:kinesis:(?P<region>[a-z0-9-]+):[0-9]{12}"
    r":stream/(?P<stream>[a-zA-Z0-9_.-]{1,128}))"
)
CONSUMER_ARN: Final = re.compile(STREAM_ARN.pattern + r"/consumer/[a-zA-Z0-9_.-]{1,128}(:[0-9]+)?")

NO_TAGS: Final[Mapping[str, str]] = MappingProxyType({})


@final
@dataclass(frozen=True, slots=True)
class StreamDescription:
    """A stream, as the service describes it."""

    name: str
    arn: str
    status: str  # CREATING, DELETING, ACTIVE or UPDATING
    created: datetime  # tells a stream from one that replaces it: both have the same name and ARN
    server_time: datetime  # the service's clock when it answered, to the second
    retention_hours: int
    open_shards: int  # those that accept records
    consumers: int | None  # None if the service does not send it
    key_id: str | None  # the KMS key, as its ARN, its id or an alias; None without encryption
    on_demand: bool = False  # the service scales it, and bills its GB instead of its shards
    # The service distributes the records, and keys decide nothing (RecordDistributionStrategy
    # AUTO). Its owner may change that at any time.
    automatic: bool = False
    max_record_bytes: int = 1 << 20  # of data and partition key


@final
@dataclass(frozen=True, slots=True)
class HashRange:
    """The hash keys of a shard, both ends included; a shard keeps them until it is closed."""

    # https://docs.aws.amazon.com/kinesis/latest/APIReference/API_HashKeyRange.html
    start: int = 0
    end: int = MAX_HASH_KEY

    def __contains__(self, hash_key: int) -> bool:
        return self.start <= hash_key <= self.end

    @property
    def is_whole(self) -> bool:
        """Whether the range holds every hash key."""
        return self.start == 0 and self.end >= MAX_HASH_KEY


def hash_key_of(partition_key: str) -> int:
    """Return the hash key of a record that was put without an explicit one."""
    # It is the MD5 of the partition key:
    # https://docs.aws.amazon.com/kinesis/latest/APIReference/API_PutRecord.html
    return int.from_bytes(hashlib.md5(partition_key.encode(), usedforsecurity=False).digest())


def parse_hash_key(digits: bytes) -> int:
    """Parse a decimal number below 2**128; an error is a clause that follows a record's name."""
    if digits.isdigit() and len(digits) <= _MAX_HASH_KEY_DIGITS:
        hash_key = int(digits)
        if hash_key <= MAX_HASH_KEY:
            return hash_key
    raise MalformedEventError("has an explicit hash key that is not a number below 2**128")


def stream_of_consumer(consumer: str) -> str | None:
    """Return the ARN of a consumer's stream, where the consumer is given by its own ARN."""
    match = CONSUMER_ARN.fullmatch(consumer)
    return None if match is None else match["stream_arn"]


@final
@dataclass(frozen=True, slots=True)
class ShardDescription:
    """A shard, as the service describes it."""

    shard_id: str
    # One after a split, two after a merge. They may have expired, and are then not listed.
    parents: tuple[str, ...]
    first: int  # the sequence number that it began with
    # The sequence number that it was closed with, above that of any record; None while it is open.
    last: int | None
    hash_range: HashRange


@final
@dataclass(frozen=True, slots=True)
class ConsumerDescription:
    """A stream consumer, as the service describes it."""

    name: str  # unique on its stream
    arn: str
    status: str  # CREATING, DELETING or ACTIVE
    created: datetime


@final
@dataclass(frozen=True, slots=True)
class UnreadRecords:
    """An answer of GetRecords of which only the headers have been read."""

    size: int | None  # the bytes of the body; None if the service does not send it
    chunks: AsyncIterator[bytes]  # the body, a JSON document, as it arrives


@final
@dataclass(frozen=True, slots=True)
class PutResult:
    """The answer to one record of PutRecords: its shard, or why it was refused."""

    shard_id: str | None
    error_code: str | None = None  # such as ProvisionedThroughputExceededException
    message: str = ""  # the service's own sentence, which names the shard


class KinesisClient(Protocol):
    """Make the calls of one stream; cancelling any of them closes its connection."""

    async def renew_credentials(self) -> None:
        """Find credentials again, as at the opening; without success the old ones stay in use."""

    async def describe_stream(self) -> StreamDescription:
        """Call DescribeStreamSummary."""

    async def list_shards(self) -> list[ShardDescription]:
        """Call ListShards until the last page: every shard within the retention period.

        More than MAX_SHARDS are a ServiceError, and so is a page token that comes twice.
        """

    async def list_consumers(self, stream_arn: str) -> list[ConsumerDescription]:
        """Call ListStreamConsumers until the last page, with the bound MAX_CONSUMERS."""

    async def register_consumer(
        self, stream_arn: str, name: str, tags: Mapping[str, str] = NO_TAGS
    ) -> ConsumerDescription:
        """Call RegisterStreamConsumer; the consumer is usable when it is described as ACTIVE.

        With any tags the caller needs kinesis:TagResource too.
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
        """

    async def get_shard_iterator(
        self, stream_arn: str, shard_id: str, starting_position: Mapping[str, Any]
    ) -> str:
        """Call GetShardIterator once, without a retry or a timeout: the caller has to set one.

        The service allows 5 calls a second. The iterator expires after 5 minutes.
        """

    def get_records(
        self, stream_arn: str, shard_iterator: str, *, limit: int | None = None
    ) -> AbstractAsyncContextManager[UnreadRecords]:
        """Call GetRecords once, without a retry or a timeout; hand over its body unread.

        Leaving the context closes the connection, unless the body was read to its end. Without a
        limit the service's own one holds.
        """


class KinesisWritingClient(KinesisClient, Protocol):
    """Make the calls of one stream that is written to, too."""

    async def put_records(self, records: Sequence[Mapping[str, Any]]) -> list[PutResult]:
        """Call PutRecords once, without a retry or a timeout; some of the records may be refused.

        It takes up to 500 PutRecordsRequestEntry of the AWS API, and checks none of them. An answer
        that has not one result for each is a ServiceError.
        """
