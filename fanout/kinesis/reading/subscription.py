"""One SubscribeToShard response body, read as events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fanout.core.stored_json import MALFORMED_JSON
from fanout.errors import DamagedFrameError, MalformedEventError, RemoteError
from fanout.kinesis.reading.decode import decode_event
from fanout.kinesis.reading.event_stream import FrameDecoder
from fanout.kinesis.reading.shard_reader import ShardReader

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from fanout.core.events import Batch, End, Split
    from fanout.core.positions import Position
    from fanout.core.source import Reserve
    from fanout.kinesis.reading.deaggregation import Deaggregator
    from fanout.kinesis.reading.decode import ShardEvent
    from fanout.kinesis.reading.event_stream import EventStreamFrame

__all__ = ("read_events",)


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
    """Yield what a response body says, until the shard ends or the body does.

    Memory for an event is reserved as soon as its length is known, before it is assembled.

    Args:
        chunks: The body.
        split: The shard.
        position: Where the subscription starts.
        stream: The stream's name, for the `stream` column.
        max_event_bytes: The largest event that is accepted.
        deaggregator: What takes the stream's aggregated records apart.
        reserve: Waits until memory may be taken.
        droppable: How many frames in a row, from the first one on, may be dropped where they
            cannot be decoded; their records are lost, which the next batch tells as a gap.

    Raises:
        DamagedFrameError: If another frame cannot be decoded.
        UnconfirmedEndError: If it has one sign of the shard's end without the other.
        MalformedEventError: If the body breaks its format, or says what cannot be true.
        RemoteError: If it holds an exception of the service.
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
                continue  # what was reserved for it is left for the next one
            reserved = 0
            said = reader.read(event)
            del frame, event  # no name here holds on to an event while the next one is awaited
            while said:
                yield said.popleft()
            if reader.doubt is not None:
                raise reader.doubt
            if reader.ended:
                return
    frames.close()
    reader.close()


def _size_of_event(frame: EventStreamFrame) -> int:
    """Return the bytes of an event; none for what ends a subscription, which waits for nobody."""
    return len(frame.payload) if frame.message_type == "event" else 0


def _next_frame(frames: FrameDecoder, reader: ShardReader) -> EventStreamFrame | None:
    """Take the next whole frame that is not to be dropped; None if more bytes are needed."""
    while True:
        try:
            return frames.next_frame()
        except DamagedFrameError as error:
            reader.drop(error)


def _decode(
    frame: EventStreamFrame, stream: str, split: Split, reader: ShardReader
) -> ShardEvent | None:
    """Return what a frame says; None where it says nothing, or is to be dropped."""
    try:
        payload = _event_payload(frame)
        return None if payload is None else decode_event(payload, stream=stream, shard_id=split.id)
    except MalformedEventError as error:
        damaged = DamagedFrameError(str(error))
        damaged.__cause__ = error
        reader.drop(damaged)
        return None


def _event_payload(frame: EventStreamFrame) -> memoryview | None:
    """Return the payload of a SubscribeToShardEvent; None for a frame that says nothing."""
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
