"""One SubscribeToShard response body, read as events."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from fanout.core.events import Batch, End
from fanout.core.lineage import Split
from fanout.core.positions import WHOLE_RECORD, Cursor, Horizon, Range, Timestamp, reaches
from fanout.errors import MalformedEventError, RemoteError
from fanout.kinesis.aggregation import disaggregate
from fanout.kinesis.decode import decode_event
from fanout.kinesis.eventstream import FrameDecoder

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from fanout.core.positions import Position
    from fanout.core.source import Reserve
    from fanout.kinesis.decode import ShardEvent
    from fanout.kinesis.eventstream import Frame

__all__ = ("read_events", "starting_position")

# As many as a stored position may have; the service uses 56 today.
_MAX_DIGITS: Final = 128


def starting_position(position: Position) -> dict[str, Any]:
    """Write a position as the StartingPosition of SubscribeToShard.

    A cursor is resumed AFTER its own record, which was handed on already; AT it where only a part
    of its sub-records was.
    """
    match position:
        case Horizon():
            return {"Type": "TRIM_HORIZON"}
        case Timestamp(millis):
            return {"Type": "AT_TIMESTAMP", "Timestamp": millis / 1000}
        case Cursor(sequence, sub):
            side = "AFTER" if sub == WHOLE_RECORD else "AT"
            return {"Type": f"{side}_SEQUENCE_NUMBER", "SequenceNumber": str(sequence)}


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
    reader = _Reader(split, position, stream)
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
            said = reader.read(frame)
            del frame  # no name here holds on to an event while the next one is awaited
            while said:
                yield said.popleft()
            if reader.ended:
                return
    frames.close()


class _Reader:
    """Turn frames into events, each after the one before."""

    def __init__(self, split: Split, position: Position, stream: str) -> None:
        self.ended = False
        self._split = split
        self._position = position
        self._stream = stream

    def read(self, frame: Frame) -> deque[Batch | End]:
        """Return what a frame says; nothing for one without an event."""
        said: deque[Batch | End] = deque()
        payload = _event_payload(frame)
        if payload is None:
            return said
        event = decode_event(payload, stream=self._stream, shard_id=self._split.id)
        _check_end(event, self._split)
        batch = _batch(event, self._split, self._position)
        self._position = batch.range.until
        self.ended = event.continuation is None
        if batch.num_records or not self.ended:
            said.append(batch)
        if self.ended:
            children = (Split(child.shard_id, child.parents) for child in event.children)
            said.append(End(self._split, tuple(children)))
        return said


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


def _check_end(event: ShardEvent, split: Split) -> None:
    # The service signs the end of a shard twice; one sign alone could be a damaged event, and
    # believing it would lose the rest of the shard.
    if event.continuation is None and not event.children:
        raise MalformedEventError(f"{split} sent no continuation, but no child shards either")
    if event.continuation is not None and event.children:
        raise MalformedEventError(f"{split} sent child shards, but a continuation as well")


def _batch(event: ShardEvent, split: Split, position: Position) -> Batch:
    numbers = event.records.column("sequenceNumber")
    _check_sequence_numbers(numbers)
    inside = _inside_record(position)
    if inside is not None and not len(numbers):
        return _nothing_yet(event, split, inside)
    first, last = position, position
    if len(numbers):
        first, last = (Cursor(int(numbers[row].as_py())) for row in (0, -1))
        if reaches(position, first):
            raise MalformedEventError(f"{split} sent a record that is not after its position")
    until = last
    if event.continuation is not None:
        _check_sequence_numbers(pa.array([event.continuation]))
        until = Cursor(int(event.continuation))
    if not (reaches(until, last) and reaches(until, position)):
        raise MalformedEventError(
            f"{split} sent a continuation that is before its position or its last record"
        )
    records = disaggregate(event.records)
    if inside is not None:
        records = _rest_of_record(records, split, inside)
    return Batch(split, records, Range(position, until), event.millis_behind / 1000)


def _inside_record(position: Position) -> Cursor | None:
    match position:
        case Cursor(_, sub) if sub != WHOLE_RECORD:
            return position
        case _:
            return None


def _nothing_yet(event: ShardEvent, split: Split, position: Cursor) -> Batch:
    """Stay inside a record, whatever the continuation: to follow it would skip the record's rest.

    The lag is left open, as a rest that is still to come is not caught up with.
    """
    if event.continuation is None:
        raise MalformedEventError(f"{split} ended before the rest of an aggregated record")
    return Batch(split, event.records, Range(position, position), lag=None)


def _rest_of_record(records: pa.RecordBatch, split: Split, position: Cursor) -> pa.RecordBatch:
    """Drop the sub-records that were handed on before, all of which must be there."""
    rest = records.slice(position.sub + 1)
    read = records.slice(0, position.sub + 1)
    numbers = pc.unique(read.column("sequenceNumber")).to_pylist()
    if read.num_rows <= position.sub or [int(number) for number in numbers] != [position.sequence]:
        raise MalformedEventError(
            f"{split} did not begin with sub-record {position.sub} and those before it of the "
            f"record {position.sequence}, where its reader stands"
        )
    return rest


def _check_sequence_numbers(numbers: pa.Array) -> None:
    """Check every number, as a batch may be cut behind any of them."""
    decimal = pc.all(pc.ascii_is_decimal(numbers)).as_py()
    if len(numbers) and not (decimal and pc.max(pc.binary_length(numbers)).as_py() <= _MAX_DIGITS):
        raise MalformedEventError("a sequence number is not a decimal number of up to 128 digits")
