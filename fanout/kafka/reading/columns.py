"""The columns that a Kafka source delivers: names, order and types of Spark's own Kafka source."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from fanout.kafka.partitions import Partition
    from fanout.kafka.reading.unpacking import Bytes, Fields, Headers, Numbers, Spans

__all__ = ("KAFKA", "NO_RECORDS", "SCHEMA", "Layout", "Unpacked", "arrival", "columns", "taken")

_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")

# The value of a header may be null, its key may not, and may come twice.
_HEADER: Final = [pa.field("key", pa.string()), pa.field("value", pa.binary())]
_HEADERS: Final = pa.list_(pa.struct(_HEADER))
_NO_HEADERS: Final = pa.array([], _HEADERS.value_type)

# https://spark.apache.org/docs/latest/streaming/structured-streaming-kafka-integration.html
SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", _TIMESTAMP),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", _HEADERS),
    ]
)

NO_RECORDS: Final = pa.RecordBatch.from_pylist([], schema=SCHEMA)

# The last millisecond of the year 9999: neither Python nor Spark has a timestamp after it.
_LATEST: Final = 253_402_300_799_999

_MARKED: Final = "fanout.kafka.marked"


def arrival(records: pa.RecordBatch, row: int) -> int | None:
    """Return the timestamp of a row in milliseconds; None where there is none.

    A producer may have given none, and a user's `decode` may have left the column out, or have made
    one of another type.
    """
    number = records.schema.get_field_index("timestamp")
    if number < 0:
        return None
    column = records.column(number)
    if column.type != _TIMESTAMP:
        return None
    micros = column[row].value
    return None if micros is None else int(micros // 1000)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Unpacked:
    """Records of a partition whose fields were found.

    Args:
        fields: Their fields.
        data: The bytes that these are in, less than 2 GiB.
        partition: Where the records are from.
        offsets: Their offsets.
        timestamps: Their timestamps, in milliseconds since the Unix epoch.
        timestamp_types: Who set each timestamp: 0 for the producer, 1 for the broker.
    """

    fields: Fields
    data: Bytes
    partition: Partition
    offsets: Numbers
    timestamps: Numbers
    timestamp_types: NDArray[np.int32]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Which columns a source makes of records.

    Args:
        columns: Makes them; they share no memory with what they are made of.
        no_records: A batch of them without rows.
    """

    columns: Callable[[Unpacked], pa.RecordBatch]
    no_records: pa.RecordBatch


def columns(records: Unpacked) -> pa.RecordBatch:
    """Make the columns of SCHEMA; they share no memory with what they are made of.

    A timestamp that is missing (-1 in Kafka) or after the year 9999 is null: a producer may write
    microseconds there by mistake, and the record counts for more than its time.

    Args:
        records: The records.
    """
    fields, data, partition = records.fields, records.data, records.partition
    rows = len(fields)
    return pa.RecordBatch.from_arrays(
        [
            taken(data, fields.keys),
            taken(data, fields.values),
            pa.repeat(partition.topic, rows),
            pa.repeat(pa.scalar(partition.number, pa.int32()), rows),
            pa.array(records.offsets),
            _timestamps(records.timestamps),
            pa.array(records.timestamp_types),
            _headers(data, fields.headers, rows),
        ],
        schema=SCHEMA,
    )


KAFKA: Final = Layout(columns, NO_RECORDS)
"""The columns of any topic: those of SCHEMA."""


def taken(data: Bytes, spans: Spans) -> pa.BinaryArray:
    """Copy spans of bytes in one go, without an object for any.

    What lies in the bytes and between the spans is an array of which every other value is taken.

    Args:
        data: The bytes, less than 2 GiB.
        spans: Where the values are.
    """
    rows = len(spans.begins)
    ends = np.empty(2 * rows + 1, np.int32)
    ends[0:-1:2], ends[1::2] = spans.begins, spans.ends
    ends[-1] = ends[-2]
    everything = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * rows, [None, pa.py_buffer(ends), pa.py_buffer(data)]
    )
    return everything.take(pa.array(np.arange(0, 2 * rows, 2, dtype=np.int32), mask=spans.null))


def _timestamps(milliseconds: Numbers) -> pa.TimestampArray:
    null = (milliseconds < 0) | (milliseconds > _LATEST)
    return pa.array(milliseconds * 1000, mask=null if null.any() else None).view(_TIMESTAMP)


def _headers(data: Bytes, headers: Headers | None, rows: int) -> pa.ListArray:
    if headers is None:
        # Repeating an empty list would cost as much as all other columns together.
        return pa.ListArray.from_arrays(pa.array(np.zeros(rows + 1, np.int32)), _NO_HEADERS)
    keys, values = _texts(taken(data, headers.keys)), taken(data, headers.values)
    pairs = pa.StructArray.from_arrays([keys, values], fields=_HEADER)
    return pa.ListArray.from_arrays(pa.array(headers.ends.astype(np.int32)), pairs)


def _texts(keys: pa.BinaryArray) -> pa.StringArray:
    """Return the keys of headers with a question mark for each byte that is no UTF-8.

    Kafka's protocol says that they are UTF-8, and some producers write others all the same. Java's
    consumer puts replacement characters where such bytes were.
    """
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode(errors=_MARKED) for key in keys.to_pylist()], pa.string())


def _mark(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "?" * (error.end - error.start), error.end


codecs.register_error(_MARKED, _mark)
