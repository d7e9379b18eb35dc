"""Read shards by GetRecords, without a consumer."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, TypeAlias, final

import pyarrow.compute as pc
from botocore.exceptions import ClientError

from fanout.errors import MalformedEventError
from fanout.kinesis.aws.error_hints import code_of
from fanout.kinesis.reading.decode import decode_records
from fanout.kinesis.reading.rate_limit import ShardRateLimit
from fanout.kinesis.reading.shard_reader import ShardReader
from fanout.kinesis.starting_position import starting_position

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    import pyarrow as pa

    from fanout.core.events import Batch, End, Split
    from fanout.core.positions import Position
    from fanout.core.source import Reserve
    from fanout.kinesis.aws.api import KinesisClient, StreamDescription, UnreadRecords
    from fanout.kinesis.reading.deaggregation import Deaggregator
    from fanout.kinesis.reading.decode import ShardEvent

    # What an answer says, and the iterator to go on with; None at the end of the shard.
    _Answer: TypeAlias = tuple[ShardEvent, str | None]

__all__ = ("Poller",)


@final
class Poller:
    """Poll the shards of one stream, each at the pace that the service allows.

    The pace of a shard is kept for as long as the poller is, so that a new subscription goes on
    with it.

    Args:
        client: The calls.
        stream: The stream.
        max_event_bytes: The largest answer that is accepted.
        deaggregator: What takes the stream's aggregated records apart.
    """

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
        self._paces: defaultdict[str, ShardRateLimit] = defaultdict(ShardRateLimit)

    async def open(
        self, split: Split, position: Position, reserve: Reserve
    ) -> AsyncGenerator[Batch | End, None]:
        """Ask for an iterator and its first answer; return the events until the shard ends.

        Each event is the answer to one call, which is made when the event is asked for, and not
        before the service allows it. The generator raises the errors of the service,
        UnconfirmedEndError after an answer with one sign of the shard's end without the other, and
        MalformedEventError if an answer says what cannot be true.

        Args:
            split: The shard.
            position: Where to begin.
            reserve: Waits until memory may be taken; that is done before a body is read.
        """
        answer = await self._poll_from(position, split, reserve)
        return self._events(split, position, answer, reserve)

    async def _events(
        self, split: Split, position: Position, answer: _Answer | None, reserve: Reserve
    ) -> AsyncGenerator[Batch | End, None]:
        reader = ShardReader(split, position, self._deaggregator)
        while answer is not None:
            event, iterator = answer
            answer = None
            said = reader.read(event)
            del event  # no name here holds on to an event while the next one is awaited
            while said:
                yield said.popleft()
            if reader.doubt is not None:
                raise reader.doubt
            if iterator is not None:
                answer = await self._poll_on(iterator, reader.position, split, reserve)

    async def _poll_on(
        self, iterator: str, position: Position, split: Split, reserve: Reserve
    ) -> _Answer:
        """Poll with an iterator, or from a position where the iterator has expired."""
        try:
            return await self._poll(split, iterator, reserve)
        except ClientError as error:
            # It lives for 5 minutes, which a slow consumer may well let pass.
            if code_of(error) != "ExpiredIteratorException":
                raise
        return await self._poll_from(position, split, reserve)

    async def _poll_from(self, position: Position, split: Split, reserve: Reserve) -> _Answer:
        async with self._paces[split.id].call():
            iterator = await self._client.get_shard_iterator(
                self._stream.arn, split.id, starting_position(position)
            )
        return await self._poll(split, iterator, reserve)

    async def _poll(self, split: Split, iterator: str, reserve: Reserve) -> _Answer:
        pace = self._paces[split.id]
        async with (
            pace.call(),
            self._client.get_records(self._stream.arn, iterator) as unread,
        ):
            answered_at = asyncio.get_running_loop().time()
            size = self._max_event_bytes if unread.size is None else unread.size
            pace.rest(answered_at, size)
            body = await _read(unread, size, self._max_event_bytes, reserve)
        event, following = decode_records(body, stream=self._stream.name, shard_id=split.id)
        pace.note(idle=event.millis_behind == 0 and not event.records.num_rows)
        pace.rest(answered_at, _data_bytes(event.records))
        return event, following


async def _read(unread: UnreadRecords, size: int, limit: int, reserve: Reserve) -> memoryview:
    """Read a body of so many bytes at most, into memory that is taken once."""
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
    """Return the bytes of the data, before base64, and of the partition keys.

    The reference does not say whether keys count for readers; for writers they do.
    """
    if not records.num_rows:
        return 0
    columns = (records.column(name) for name in ("data", "partitionKey"))
    return sum(pc.sum(pc.binary_length(column)).as_py() for column in columns)
