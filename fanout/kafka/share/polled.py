"""What a poll of a share consumer brought, as Arrow columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np
import pyarrow as pa
from confluent_kafka import Message

from fanout.kafka.decoding.columns import SCHEMA as KAFKA_SCHEMA
from fanout.kafka.partitions import Partition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ("NO_RECORDS", "SCHEMA", "Polled", "gather")

SCHEMA: Final = KAFKA_SCHEMA.append(pa.field("deliveryCount", pa.int32()))

NO_RECORDS: Final = pa.RecordBatch.from_pylist([], schema=SCHEMA)

_HEADERS: Final = SCHEMA.field("headers").type
_TIMESTAMP: Final = SCHEMA.field("timestamp").type
# The last millisecond of the year 9999: neither Python nor Spark has a timestamp after it.
_LATEST: Final = 253_402_300_799_999


@final
@dataclass(frozen=True, slots=True, eq=False)
class Polled:
    """Records that a member has acquired, and where each is.

    Args:
        records: The records, with the columns of SCHEMA.
        partitions: The partitions that they are of.
        places: Which of these each record is of.
        unreadable: The rows whose headers the client cannot read.
        since: A moment at which the member had none of them yet, on the loop's clock: their locks
            are no older.
    """

    records: pa.RecordBatch
    partitions: tuple[Partition, ...]
    places: NDArray[np.int64]
    unreadable: NDArray[np.int64]
    since: float


def gather(messages: Sequence[Message], since: float) -> Polled:
    """Make columns of messages; the method of each column is called without a line of Python.

    Args:
        messages: The messages, at least one and none with an error.
        since: See Polled.
    """
    numbers = {place: at for at, place in enumerate(dict.fromkeys(_places(messages)))}
    places = np.fromiter(map(numbers.__getitem__, _places(messages)), np.int64, len(messages))
    # A timestamp comes with its kind: 1 is the producer's, 2 the broker's, and 0 is none.
    kinds, stamps = zip(*map(Message.timestamp, messages), strict=True)
    topics = pa.array([topic for topic, _ in numbers], pa.string())
    partitions = pa.array([number for _, number in numbers], pa.int32())
    rows = pa.array(places)
    headers, unreadable = _headers(messages)
    records = pa.RecordBatch.from_arrays(
        [
            pa.array(list(map(Message.key, messages)), pa.binary()),
            pa.array(list(map(Message.value, messages)), pa.binary()),
            topics.take(rows),
            partitions.take(rows),
            pa.array(list(map(Message.offset, messages)), pa.int64()),
            _timestamps(np.array(stamps, np.int64)),
            pa.array(np.maximum(np.array(kinds, np.int32) - 1, 0)),
            headers,
            pa.array(list(map(Message.delivery_count, messages)), pa.int32()),
        ],
        schema=SCHEMA,
    )
    partitions_of = tuple(Partition(*place) for place in numbers)
    return Polled(records, partitions_of, places, unreadable, since)


def _places(messages: Sequence[Message]) -> Any:
    return zip(map(Message.topic, messages), map(Message.partition, messages), strict=True)


def _timestamps(milliseconds: NDArray[np.int64]) -> pa.TimestampArray:
    null = (milliseconds < 0) | (milliseconds > _LATEST)
    return pa.array(milliseconds * 1000, mask=null if null.any() else None).view(_TIMESTAMP)


def _headers(messages: Sequence[Message]) -> tuple[pa.ListArray, NDArray[np.int64]]:
    """Return the headers, and the rows in which they cannot be read."""
    headers: list[Any] = []
    unreadable: list[int] = []
    # Where a key is no UTF-8 the client returns null pointers, and an error with them. `map` finds
    # the error, which a call in Python does not once Python has adapted itself to the method.
    answers = map(Message.headers, messages)
    for row in range(len(messages)):
        try:
            headers.append(next(answers))
        except (SystemError, UnicodeError):
            headers.append(None)
            unreadable.append(row)
    return _column(headers), np.array(unreadable, np.int64)


def _column(headers: list[Any]) -> pa.ListArray:
    if not any(headers):
        none = pa.array([], _HEADERS.value_type)
        return pa.ListArray.from_arrays(pa.array(np.zeros(len(headers) + 1, np.int32)), none)
    pairs = [pair for some in headers for pair in some or ()]
    ends = np.cumsum([0, *(len(some or ()) for some in headers)], dtype=np.int32)
    keys = pa.array([key for key, _ in pairs], pa.string())
    values = pa.array([value for _, value in pairs], pa.binary())
    fields = [_HEADERS.value_type.field(0), _HEADERS.value_type.field(1)]
    return pa.ListArray.from_arrays(
        pa.array(ends), pa.StructArray.from_arrays([keys, values], fields=fields)
    )
