"""Read shards by SubscribeToShard, through an enhanced fan-out consumer.

Bytes become frames in `event_stream`, frames become events here, an event's records become Arrow
columns in `decode`, and events become batches in `shard_reader`.
"""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Final, Literal, final

import msgspec

from fanout.core.policy import Retry
from fanout.core.stored_json import MALFORMED_JSON
from fanout.errors import DamagedFrameError, MalformedEventError, RemoteError
from fanout.kinesis.reading.decode import decode_event
from fanout.kinesis.reading.event_stream import FrameDecoder
from fanout.kinesis.reading.shard_reader import ShardReader
from fanout.kinesis.starting_position import starting_position

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from fanout.core.events import Batch, End, Split
    from fanout.core.positions import Position
    from fanout.core.source import Reserve
    from fanout.kinesis.aws.api import KinesisClient, StreamDescription
    from fanout.kinesis.reading.deaggregation import Deaggregator
    from fanout.kinesis.reading.decode import ShardEvent
    from fanout.kinesis.reading.event_stream import EventStreamFrame
    from fanout.kinesis.registration import ConsumerRegistration

# A frame that was damaged on the wire arrives intact when it is sent again; one that is damaged in
# each of three answers is damaged at the service.
_ATTEMPTS: Final = 3


@final
class EnhancedFanOut:
    """Subscribe a consumer to the shards of one stream."""

    def __init__(
        self,
        client: KinesisClient,
        stream: StreamDescription,
        registration: ConsumerRegistration,
        *,
        damaged_frames: DamagedFrames,
        max_event_bytes: int,
        deaggregator: Deaggregator,
    ) -> None:
        self._client = client
        self._stream = stream
        self._registration = registration
        self._damaged_frames = damaged_frames
        self._max_event_bytes = max_event_bytes
        self._deaggregator = deaggregator

    @asynccontextmanager
    async def open(
        self, split: Split, position: Position, reserve: Reserve
    ) -> AsyncIterator[AsyncIterator[Batch | End]]:
        """Subscribe to a shard for five minutes; leaving the context closes the connection."""
        subscribing = self._client.subscribe(
            self._registration.arn, split.id, starting_position(position)
        )
        async with (
            subscribing as chunks,
            aclosing(
                read_events(
                    chunks,
                    split,
                    position,
                    stream=self._stream.name,
                    max_event_bytes=self._max_event_bytes,
                    deaggregator=self._deaggregator,
                    reserve=reserve,
                    droppable=self._damaged_frames.droppable(split.id, position),
                )
            ) as events,
        ):
            yield events


async def read_events(
    chunks: AsyncIterator[bytes],
    split: Split,
    position: Position,
    *,
    stream: str,
    max_event_bytes: int,
    deaggregator: Deaggregator,
    reserve: Reserve,
    droppable: int = 0,
) -> AsyncGenerator[Batch | End, None]:
    """Yield the batches of a response body until the shard ends or the body does.

    Memory for an event is reserved as soon as its length is known, before it is assembled. Up to
    `droppable` consecutive frames, from the first one on, are dropped if they cannot be decoded.
    Their records are lost, and the next batch has a gap for them; another such frame is a
    DamagedFrameError. One of the two signs of the shard's end alone is an UnconfirmedEndError, and
    an exception of the service in the body a RemoteError.
    """
    frames = FrameDecoder(max_event_bytes)
    reader = ShardReader(split, position, deaggregator, droppable=droppable)
    reserved = 0
    async for chunk in chunks:
        frames.feed(chunk)
        while True:
            frame = _next_frame(frames, reader)
            size = frames.announced if frame is None else _size_of_event(frame)
            if size > reserved:
                await reserve(size - reserved)
                reserved = size
            if frame is None:
                break
            event = _decode(frame, stream, split, reader)
            if event is None:
                continue  # its reservation is used for the next event
            reserved = 0
            batches = reader.read(event)
            del frame, event  # no name here keeps an event alive while the next one is awaited
            while batches:
                yield batches.popleft()
            if reader.at_end():
                return
    frames.close()
    reader.close()


def _size_of_event(frame: EventStreamFrame) -> int:
    """Return the bytes of an event; 0 for an error, which must not wait for memory."""
    return len(frame.payload) if frame.message_type == "event" else 0


def _next_frame(frames: FrameDecoder, reader: ShardReader) -> EventStreamFrame | None:
    """Return the next complete frame that is not dropped; None if more bytes are needed."""
    while True:
        try:
            return frames.next_frame()
        except DamagedFrameError as error:
            reader.drop(error)


def _decode(
    frame: EventStreamFrame, stream: str, split: Split, reader: ShardReader
) -> ShardEvent | None:
    """Decode a frame; return None for the initial response and for a frame that is dropped."""
    try:
        payload = _event_payload(frame)
        return None if payload is None else decode_event(payload, stream=stream, shard_id=split.id)
    except MalformedEventError as error:
        damaged = DamagedFrameError(str(error))
        damaged.__cause__ = error
        reader.drop(damaged)
        return None


def _event_payload(frame: EventStreamFrame) -> memoryview | None:
    """Return the payload of a SubscribeToShardEvent; None for the initial response."""
    match frame.message_type, frame.event_type:
        case "event", "SubscribeToShardEvent":
            return frame.payload
        case "event", "initial-response":
            return None
        case "exception", _:
            raise RemoteError(frame.exception_type or "unnamed exception", _message(frame))
        case "error", _:
            raise RemoteError(frame.error_code or "unnamed error", frame.error_message or "")
        case message_type, event_type:
            raise MalformedEventError(
                f"a frame of message type {message_type!r} and event type {event_type!r} does not "
                f"belong into a subscription"
            )


class _ExceptionBody(msgspec.Struct):
    message: str = ""


def _message(frame: EventStreamFrame) -> str:
    try:
        return msgspec.json.decode(frame.payload, type=_ExceptionBody).message
    except MALFORMED_JSON:
        return ""


@final
class DamagedFrames:
    """Count the damaged frames of each shard at its current position."""

    def __init__(self, on_bad_frame: Literal["fail", "gap"]) -> None:
        self._may_drop = on_bad_frame == "gap"
        self._damaged: dict[str, tuple[Position, int]] = {}

    def droppable(self, shard_id: str, position: Position) -> int:
        """Return how many consecutive frames, from its first on, a new subscription may drop."""
        # Each of them was damaged in two answers before: once the first frame has used up its
        # attempts it is dropped each time, and the next one begins to use up its own.
        return self._count(shard_id, position) // (_ATTEMPTS - 1) if self._may_drop else 0

    def found(self, shard_id: str, position: Position) -> Retry:
        """Count a subscription that ended at a damaged frame; return what to do about it."""
        self._damaged[shard_id] = position, self._count(shard_id, position) + 1
        return Retry() if self._may_drop else Retry(limit=_ATTEMPTS)

    def _count(self, shard_id: str, position: Position) -> int:
        at, count = self._damaged.get(shard_id, (position, 0))
        return count if at == position else 0
