"""Read shards by GetRecords, without a consumer.

The rate limits are those of GetRecords and GetShardIterator in the AWS API reference: a shard takes
five calls of each in a second and returns 2 MiB a second, all of its pollers together.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeAlias, final

import pyarrow.compute as pc
from botocore.exceptions import ClientError

from fanout.errors import MalformedEventError
from fanout.kinesis.aws.error_hints import code_of
from fanout.kinesis.intervals import KINESIS_INTERVALS
from fanout.kinesis.reading.decode import decode_records
from fanout.kinesis.reading.shard_reader import ShardReader
from fanout.kinesis.starting_position import starting_position

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    import pyarrow as pa

    from fanout.core.events import Batch, End, Split
    from fanout.core.positions import Position
    from fanout.core.source import Reserve
    from fanout.kinesis.aws.api import KinesisClient, StreamDescription, UnreadRecords
    from fanout.kinesis.reading.deaggregation import Deaggregator
    from fanout.kinesis.reading.decode import ShardEvent

    # An answer of GetRecords, and the iterator for the next call; None at the end of the shard.
    _Answer: TypeAlias = tuple[ShardEvent, str | None]

_BYTES_PER_SECOND: Final = 2 * 1024 * 1024


@final
class Poller:
    """Poll the shards of one stream, each within the rate limit of the service."""

    # The rate limit of a shard outlives a subscription: the next one continues it.

    def __init__(
        self,
        client: KinesisClient,
        stream: StreamDescription,
        *,
        max_event_bytes: int,
        deaggregator: Deaggregator,
    ) -> None:
        self._client = client
        self._stream = stream
        self._max_event_bytes = max_event_bytes
        self._deaggregator = deaggregator
        self._rate_limits: defaultdict[str, ShardRateLimit] = defaultdict(ShardRateLimit)

    @asynccontextmanager
    async def open(
        self, split: Split, position: Position, reserve: Reserve
    ) -> AsyncIterator[AsyncIterator[Batch | End]]:
        """Request an iterator and the first answer; the events go on until the shard ends.

        Each event is the answer to one call, which is made when the event is awaited, and not
        before the service allows it. Memory is reserved before a body is read. The iterator raises
        any error of the service or the network too, UnconfirmedEndError after an answer with one of
        the two signs of the shard's end, and MalformedEventError if an answer contradicts itself or
        its position.
        """
        first = self._events(
            split, position, await self._poll_from(position, split, reserve), reserve
        )
        async with aclosing(first) as events:
            yield events

    async def _events(
        self, split: Split, position: Position, answer: _Answer | None, reserve: Reserve
    ) -> AsyncGenerator[Batch | End, None]:
        reader = ShardReader(split, position, self._deaggregator)
        while answer is not None:
            event, iterator = answer
            answer = None
            batches = reader.read(event)
            del event  # no name here keeps an event alive while the next one is awaited
            while batches:
                yield batches.popleft()
            if not reader.at_end() and iterator is not None:
                answer = await self._poll_on(iterator, reader.position, split, reserve)

    async def _poll_on(
        self, iterator: str, position: Position, split: Split, reserve: Reserve
    ) -> _Answer:
        """Poll with an iterator, or from a position if the iterator has expired."""
        try:
            return await self._poll(split, iterator, reserve)
        except ClientError as error:
            # An iterator is valid for 5 minutes, and a slow consumer may take longer.
            if code_of(error) != "ExpiredIteratorException":
                raise
        return await self._poll_from(position, split, reserve)

    async def _poll_from(self, position: Position, split: Split, reserve: Reserve) -> _Answer:
        async with self._rate_limits[split.id].call():
            iterator = await self._client.get_shard_iterator(
                self._stream.arn, split.id, starting_position(position)
            )
        return await self._poll(split, iterator, reserve)

    async def _poll(self, split: Split, iterator: str, reserve: Reserve) -> _Answer:
        limit = self._rate_limits[split.id]
        async with (
            limit.call(),
            self._client.get_records(self._stream.arn, iterator) as unread,
        ):
            answered_at = asyncio.get_running_loop().time()
            size = self._max_event_bytes if unread.size is None else unread.size
            limit.rest(answered_at, size)
            body = await _read(unread, size, self._max_event_bytes, reserve)
        event, following = decode_records(body, stream=self._stream.name, shard_id=split.id)
        limit.set_idle(idle=event.millis_behind == 0 and not event.records.num_rows)
        limit.rest(answered_at, _data_bytes(event.records))
        return event, following


async def _read(unread: UnreadRecords, size: int, limit: int, reserve: Reserve) -> memoryview:
    """Read a body of at most `size` bytes into memory that is allocated once."""
    if size > limit:
        raise MalformedEventError(
            f"an answer of GetRecords announces {size} bytes, more than the {limit} allowed"
        )
    await reserve(size)
    body = memoryview(bytearray(size))
    arrived = 0
    async for chunk in unread.chunks:
        if arrived + len(chunk) > size:
            raise MalformedEventError(f"an answer of GetRecords has more than {size} bytes")
        body[arrived : arrived + len(chunk)] = chunk
        arrived += len(chunk)
    return body[:arrived]


def _data_bytes(records: pa.RecordBatch) -> int:
    """Return the bytes of the data, before base64, and of the partition keys."""
    # The API reference does not state whether keys count for readers; for writers they do.
    if not records.num_rows:
        return 0
    columns = (records.column(name) for name in ("data", "partitionKey"))
    # Without `min_count` the sum of a column of nulls is null.
    return sum(pc.sum(pc.binary_length(column), min_count=0).as_py() for column in columns)


@final
class ShardRateLimit:
    """Space the calls about one shard, by the clock of the event loop.

    GetRecords and GetShardIterator are spaced together, which keeps to the limit of either. A rest
    begins with an answer: the service has counted it, however long the network took with it.
    """

    def __init__(self) -> None:
        self._free_at = -math.inf
        self._intervals = KINESIS_INTERVALS.current
        self._interval = self._intervals.poll

    @asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        """Wait until a call may be made; the next one may follow a fifth of a second after it."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._free_at - loop.time()))
        try:
            yield
        finally:
            self._free_at = max(self._free_at, loop.time() + self._intervals.poll)

    def set_idle(self, *, idle: bool) -> None:
        """Set whether the last answer had nothing new; idle rests double, up to a second."""
        intervals = self._intervals
        longer = min(2 * self._interval, intervals.idle_poll)
        self._interval = longer if idle else intervals.poll

    def rest(self, answered_at: float, nbytes: int) -> None:
        """Let the shard rest until its average rate is allowed; an answer's last call counts."""
        rest = min(nbytes / _BYTES_PER_SECOND, self._intervals.longest_rest)
        self._free_at = answered_at + max(rest, self._interval)
