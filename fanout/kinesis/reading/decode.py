"""Decode a SubscribeToShardEvent, or an answer of GetRecords, into Arrow columns.

Shapes and required fields are those of
https://docs.aws.amazon.com/kinesis/latest/APIReference/API_SubscribeToShardEvent.html and
https://docs.aws.amazon.com/kinesis/latest/APIReference/API_GetRecords.html.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from fanout.core.positions import Cursor
from fanout.core.stored_json import MALFORMED_JSON
from fanout.core.user_decode import PlaceColumns, no_records
from fanout.errors import MalformedEventError
from fanout.kinesis.aws.api import HashRange

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanout.core.events import Batch

ARRIVAL: Final = pa.timestamp("us", tz="UTC")
"""The type of the arrival time."""

FEW_ROWS: Final = 32
"""Up to so many rows, a loop in Python is faster than a call of Arrow for each column."""

# Arrow's own allocator keeps much of the memory that it has freed: with 256 shards that hold an
# event of 512 KiB each in their slots, resident memory is a third larger.
_POOL = pa.system_memory_pool()

# Names and order are those of the Databricks Kinesis connector; subSequenceNumber is 0 except in an
# aggregated record, whose sub-records are counted from 0.
SCHEMA: Final = pa.schema(
    [
        pa.field("partitionKey", pa.string()),
        pa.field("data", pa.binary()),
        pa.field("stream", pa.string()),
        pa.field("shardId", pa.string()),
        pa.field("sequenceNumber", pa.string()),
        pa.field("approximateArrivalTimestamp", ARRIVAL),
        pa.field("subSequenceNumber", pa.int64()),
    ]
)

PLACES: Final = PlaceColumns(
    names=("shardId", "sequenceNumber", "subSequenceNumber"),
    numbers=("sequenceNumber", "subSequenceNumber"),
    word="sequence number",
)
"""The columns that `decode` has to keep."""

_ROW = pa.struct(list(SCHEMA))

NO_RECORDS: Final = no_records(SCHEMA)
"""The records of every heartbeat."""

# The last second of the year 9999: rounded to a millisecond, a later time may be in the year 10000,
# of which neither Python nor Spark has a timestamp.
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=253_402_300_799)]

# https://docs.aws.amazon.com/kinesis/latest/APIReference/API_SubscribeToShardEvent.html
_Millis = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]

# https://docs.aws.amazon.com/kinesis/latest/APIReference/API_ChildShard.html
_ShardId = Annotated[str, msgspec.Meta(pattern=r"^[a-zA-Z0-9_.-]{1,128}\Z")]

# 128 bits in decimal.
_HashKey = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,39}\Z")]


def cursor_after(batch: Batch, row: int) -> Cursor:
    """Return the position after a row: inside its record if the next row belongs to it too."""
    # The batch has all its rows, so that a record's last row is its last sub-record.
    number, *following = batch.records.column("sequenceNumber").slice(row, 2).to_pylist()
    if following == [number]:
        return Cursor(int(number), batch.records.column("subSequenceNumber")[row].as_py())
    return Cursor(int(number))


def arrival(records: pa.RecordBatch, row: int) -> int | None:
    """Return when a row arrived, in milliseconds since the Unix epoch; None without a time."""
    # The service may have sent none, and a user's `decode` may drop the column or change its type.
    number = records.schema.get_field_index("approximateArrivalTimestamp")
    if number < 0 or records.column(number).type != ARRIVAL:
        return None
    micros = records.column(number)[row].value
    return None if micros is None else int(micros // 1000)


@dataclass(frozen=True, slots=True)
class ChildShard:
    """A shard that continues one that ended, with all the shards that it continues."""

    shard_id: str
    parents: tuple[str, ...]
    hash_range: HashRange


@dataclass(frozen=True, slots=True)
class ShardEvent:
    """One event of a subscription, or one answer of GetRecords."""

    records: pa.RecordBatch  # in shard order, with the columns of SCHEMA; no rows in a heartbeat
    ended: bool  # the service sent no way to continue, one of the two signs of the end
    # The sequence number to resume after, records or not; None if there is none, as at the end and
    # in every answer of GetRecords.
    continuation: str | None
    # From the last record to the tip of the shard; None if the service does not send it.
    millis_behind: int | None
    children: tuple[ChildShard, ...]  # the shards that continue this one, the other sign of its end


# The structs below live for one call and cannot form cycles, so the collector need not track them.
class _Record(msgspec.Struct, gc=False):
    Data: bytes
    SequenceNumber: str
    # A producer may leave it out where the service distributes the records:
    # https://docs.aws.amazon.com/streams/latest/dev/service-managed-pk-considerations.html
    PartitionKey: str | None = None
    ApproximateArrivalTimestamp: _Seconds | None = None


class _HashKeyRange(msgspec.Struct, gc=False):
    StartingHashKey: _HashKey
    EndingHashKey: _HashKey


class _ChildShard(msgspec.Struct, gc=False):
    ShardId: _ShardId
    ParentShards: list[_ShardId]
    HashKeyRange: _HashKeyRange


class _Event(msgspec.Struct, gc=False):
    Records: list[_Record]
    MillisBehindLatest: _Millis
    ContinuationSequenceNumber: str | None = None
    ChildShards: list[_ChildShard] | None = None


class _Answer(msgspec.Struct, gc=False):
    Records: list[_Record]
    NextShardIterator: str | None = None
    MillisBehindLatest: _Millis | None = None
    ChildShards: list[_ChildShard] | None = None


_T = TypeVar("_T", _Event, _Answer)

_event_decoder = msgspec.json.Decoder(_Event)
_answer_decoder = msgspec.json.Decoder(_Answer)


def decode_event(payload: bytes | memoryview, *, stream: str, shard_id: str) -> ShardEvent:
    """Decode one SubscribeToShardEvent, in JSON.

    A MalformedEventError has the path of the field that is wrong, and never its value.
    """
    event = _decode(_event_decoder, payload, "a SubscribeToShardEvent")
    return ShardEvent(
        records=_columns(event.Records, stream, shard_id),
        ended=event.ContinuationSequenceNumber is None,
        continuation=event.ContinuationSequenceNumber,
        millis_behind=event.MillisBehindLatest,
        children=_children(event),
    )


def decode_records(
    body: bytes | memoryview, *, stream: str, shard_id: str
) -> tuple[ShardEvent, str | None]:
    """Decode one answer of GetRecords; return it and the iterator for the next call."""
    answer = _decode(_answer_decoder, body, "an answer of GetRecords")
    event = ShardEvent(
        records=_columns(answer.Records, stream, shard_id),
        ended=answer.NextShardIterator is None,
        continuation=None,
        millis_behind=answer.MillisBehindLatest,
        children=_children(answer),
    )
    return event, answer.NextShardIterator


def _decode(decoder: msgspec.json.Decoder[_T], payload: bytes | memoryview, what: str) -> _T:
    try:
        return decoder.decode(payload)
    except UnicodeDecodeError:
        # The text and attributes of this error quote the payload, so it is not chained.
        raise MalformedEventError(f"{what} holds text that is not UTF-8") from None
    except MALFORMED_JSON as error:
        raise MalformedEventError(f"{what} cannot be decoded: {error}") from error


def _children(event: _Event | _Answer) -> tuple[ChildShard, ...]:
    return tuple(
        ChildShard(
            child.ShardId,
            tuple(child.ParentShards),
            HashRange(
                int(child.HashKeyRange.StartingHashKey), int(child.HashKeyRange.EndingHashKey)
            ),
        )
        for child in event.ChildShards or ()
    )


def _columns(records: Sequence[_Record], stream: str, shard_id: str) -> pa.RecordBatch:
    if not records:
        return NO_RECORDS
    if len(records) <= FEW_ROWS:
        rows = [
            (
                record.PartitionKey,
                record.Data,
                stream,
                shard_id,
                record.SequenceNumber,
                microseconds(record.ApproximateArrivalTimestamp),
                0,
            )
            for record in records
        ]
        return pa.RecordBatch.from_struct_array(pa.array(rows, _ROW, memory_pool=_POOL))
    return pa.RecordBatch.from_arrays(
        [
            pa.array([record.PartitionKey for record in records], pa.string()),
            pa.array([record.Data for record in records], pa.binary(), memory_pool=_POOL),
            pa.repeat(stream, len(records)),
            pa.repeat(shard_id, len(records)),
            pa.array([record.SequenceNumber for record in records], pa.string()),
            timestamps([record.ApproximateArrivalTimestamp for record in records]),
            pa.repeat(0, len(records)),
        ],
        schema=SCHEMA,
    )


def microseconds(seconds: float | None) -> int | None:
    """Turn seconds into microseconds, exact to the millisecond that the service sends."""
    return None if seconds is None else round(seconds * 1000) * 1000


def timestamps(seconds: Sequence[float | None]) -> pa.TimestampArray:
    """Turn seconds into timestamps, each as `microseconds` does."""
    milliseconds = pc.round(pc.multiply(pa.array(seconds, pa.float64()), 1000.0))
    return pc.multiply(milliseconds.cast(pa.int64()), 1000).view(ARRIVAL)
