"""One SubscribeToShard response body, read as events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from fanout.core.events import Batch, End
from fanout.core.lineage import Split
from fanout.core.positions import Cursor, Horizon, Range, Timestamp, reaches
from fanout.errors import MalformedEventError, RemoteError
from fanout.kinesis.decode import decode_event
from fanout.kinesis.eventstream import FrameDecoder

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from fanout.core.positions import Position
    from fanout.core.source import Reserve
    from fanout.kinesis.decode import ShardEvent
    from fanout.kinesis.eventstream import Frame

__all__ = ("read_events", "starting_position")


def starting_position(position: Position) -> dict[str, Any]:
    """Write a position as the StartingPosition of SubscribeToShard.

    A cursor is resumed AFTER, not AT: its own record was handed on already.
    """
    match position:
        case Horizon():
            return {"Type": "TRIM_HORIZON"}
        case Timestamp(millis):
            return {"Type": "AT_TIMESTAMP", "Timestamp": millis / 1000}
        case Cursor(sequence):
            return {"Type": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": str(sequence)}


async def read_events(
    chunks: AsyncIterator[bytes],
    split: Split,
    position: Position,
    *,
    stream: str,
    max_event_bytes: int,
    reserve: Reserve,
) -> AsyncGenerator[Batch | End, None]:
    """Yield what a response body says, until the shard ends or the body does.

    Memory for an event is reserved as soon as its length is known, before it is assembled.

    Args:
        chunks: The body.
        split: The shard.
        position: Where the subscription starts.
        stream: The stream's name, for the `stream` column.
        max_event_bytes: The largest event that is accepted.
        reserve: Waits until memory may be taken.

    Raises:
        MalformedEventError: If the body breaks its format, or says what cannot be true.
        RemoteError: If it holds an exception of the service.
    """
    frames = FrameDecoder(max_event_bytes)
    reserved = 0
    async for chunk in chunks:
        frames.feed(chunk)
        while True:
            frame = frames.next_frame()
            size = frames.announced if frame is None else len(frame.payload)
            if size > reserved:
                await reserve(size - reserved)
                reserved = size
            if frame is None:
                break
            reserved = 0
            payload = _event_payload(frame)
            if payload is None:
                continue
            event = decode_event(payload, stream=stream, shard_id=split.id)
            batch = _batch(event, split, position)
            position = batch.range.until
            if batch.num_records or event.continuation is not None:
                yield batch
            if event.continuation is None:
                yield _end(event, split)
                return
    frames.close()


def _event_payload(frame: Frame) -> memoryview | None:
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


def _message(frame: Frame) -> str:
    try:
        return msgspec.json.decode(frame.payload, type=_ExceptionBody).message
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


def _batch(event: ShardEvent, split: Split, position: Position) -> Batch:
    records = event.records
    if records.num_rows and reaches(position, _cursor(records.column("sequenceNumber")[0].as_py())):
        raise MalformedEventError(f"{split} sent a record that is not after its position")
    if event.continuation is not None:
        until: Position = _cursor(event.continuation)
    elif records.num_rows:
        until = _cursor(records.column("sequenceNumber")[-1].as_py())
    else:
        until = position
    if not reaches(until, position):
        raise MalformedEventError(f"{split} sent a continuation that is before its position")
    return Batch(split, records, Range(position, until), event.millis_behind / 1000)


def _end(event: ShardEvent, split: Split) -> End:
    if not event.children:
        # The service signs the end of a shard twice; one sign alone could be a damaged event, and
        # believing it would lose the rest of the shard.
        raise MalformedEventError(f"{split} sent no continuation, but no child shards either")
    return End(split, tuple(Split(child.shard_id, child.parents) for child in event.children))


def _cursor(sequence_number: str) -> Cursor:
    if not (sequence_number.isascii() and sequence_number.isdigit()):
        raise MalformedEventError("a sequence number is not a decimal number")
    return Cursor(int(sequence_number))
