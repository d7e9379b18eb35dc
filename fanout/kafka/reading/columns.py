"""Make Arrow columns of Kafka's records, named and typed as those of Spark's own Kafka source."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

import numpy as np
import pyarrow as pa

from fanout.core.user_decode import PlaceColumns, no_records
from fanout.kafka.reading.offsets import cursor_before, topic_id_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from fanout.core.events import Batch
    from fanout.core.positions import Cursor
    from fanout.kafka.partitions import Partition
    from fanout.kafka.reading.record_fields import Bytes, HeaderFields, Numbers, RecordFields, Spans

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
"""The type of a record's timestamp."""

# The value of a header may be null, its key may not, and may come twice.
_HEADER: Final = [pa.field("key", pa.string()), pa.field("value", pa.binary())]
HEADERS: Final = pa.list_(pa.struct(_HEADER))
"""The type of a record's headers."""
_NO_HEADERS: Final = pa.nulls(0, HEADERS.value_type)

# https://spark.apache.org/docs/latest/streaming/structured-streaming-kafka-integration.html
SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", TIMESTAMP),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", HEADERS),
    ]
)

NO_RECORDS: Final = no_records(SCHEMA)

LATEST: Final = 253_402_300_799_999
"""The last millisecond of the year 9999: neither Python nor Spark has a timestamp after it."""

_QUESTION_MARKS: Final = "fanout.kafka.question_marks"


PLACES: Final = PlaceColumns(
    names=("topic", "partition", "offset"), numbers=("offset",), word="offset"
)
"""The columns that `decode` has to keep."""


def cursor_after(batch: Batch, row: int) -> Cursor:
    """Return the position after one row of a batch."""
    offset = batch.records.column("offset")[row].as_py()
    return cursor_before(offset + 1, topic_id=topic_id_at(batch.range.until))


def arrival(records: pa.RecordBatch, row: int) -> int | None:
    """Return the timestamp of a row in milliseconds since the Unix epoch; None where it has none.

    The producer may have set none, and a user's `decode` may drop the column or change its type.
    """
    number = records.schema.get_field_index("timestamp")
    if number < 0:
        return None
    column = records.column(number)
    if column.type != TIMESTAMP:
        return None
    micros = column[row].value
    return None if micros is None else int(micros // 1000)


@final
@dataclass(frozen=True, slots=True, eq=False)
class LocatedRecords:
    """Records of a partition whose fields are found in less than 2 GiB of data, but not copied yet.

    Timestamps are in milliseconds since the Unix epoch; their type is 0 if the producer set it, 1
    if the broker did.
    """

    fields: RecordFields
    data: Bytes
    partition: Partition
    offsets: Numbers
    timestamps: Numbers
    timestamp_types: NDArray[np.int32]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """What makes the columns of records, without memory shared with them, and the empty batch."""

    columns: Callable[[LocatedRecords], pa.RecordBatch]
    no_records: pa.RecordBatch


def kafka_columns(records: LocatedRecords) -> pa.RecordBatch:
    """Make the columns of SCHEMA; they share no memory with the records.

    A timestamp that is missing (-1 in Kafka) or after the year 9999 becomes null: a producer may
    write microseconds there by mistake, and the record is worth more than its time.
    """
    fields, data, partition = records.fields, records.data, records.partition
    rows = len(fields)
    return pa.RecordBatch.from_arrays(
        [
            take_spans(data, fields.keys),
            take_spans(data, fields.values),
            pa.repeat(partition.topic, rows),
            pa.repeat(pa.scalar(partition.number, pa.int32()), rows),
            pa.array(records.offsets),
            timestamps_of(records.timestamps),
            pa.array(records.timestamp_types),
            _headers(data, fields.headers, rows),
        ],
        schema=SCHEMA,
    )


KAFKA_LAYOUT: Final = Layout(kafka_columns, NO_RECORDS)
"""The columns of SCHEMA, which fit any topic."""


def take_spans(data: Bytes, spans: Spans) -> pa.BinaryArray:
    """Copy spans of less than 2 GiB into an array at once, without a Python object per value.

    The spans and the bytes between them form an array, of which every other value is taken.
    """
    rows = len(spans.begins)
    ends = np.empty(2 * rows + 1, np.int32)
    ends[0:-1:2], ends[1::2] = spans.begins, spans.ends
    ends[-1] = ends[-2]
    everything = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * rows, [None, pa.py_buffer(ends), pa.py_buffer(data)]
    )
    return everything.take(pa.array(np.arange(0, 2 * rows, 2, dtype=np.int32), mask=spans.null))


def timestamps_of(milliseconds: Numbers) -> pa.TimestampArray:
    """Return timestamps since the Unix epoch; null for one that is missing or after 9999."""
    null = (milliseconds < 0) | (milliseconds > LATEST)
    return pa.array(milliseconds * 1000, mask=null if null.any() else None).view(TIMESTAMP)


def no_headers(rows: int) -> pa.ListArray:
    """Return the headers of records that have none."""
    # Repeating an empty list would take as long as all other columns together.
    return pa.ListArray.from_arrays(pa.array(np.zeros(rows + 1, np.int32)), _NO_HEADERS)


def _headers(data: Bytes, headers: HeaderFields | None, rows: int) -> pa.ListArray:
    if headers is None:
        return no_headers(rows)
    keys, values = _texts(take_spans(data, headers.keys)), take_spans(data, headers.values)
    pairs = pa.StructArray.from_arrays([keys, values], fields=_HEADER)
    return pa.ListArray.from_arrays(pa.array(headers.ends.astype(np.int32)), pairs)


def _texts(keys: pa.BinaryArray) -> pa.StringArray:
    """Return the keys of headers as text, with a question mark for each byte that is not UTF-8.

    Kafka's protocol prescribes UTF-8, but some producers write other bytes. Java's consumer puts
    replacement characters there.
    """
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([text_of_header(key) for key in keys.to_pylist()], pa.string())


def text_of_header(key: bytes) -> str:
    """Return the key of a header as text, with a question mark for a byte that is not UTF-8."""
    return key.decode(errors=_QUESTION_MARKS)


def _replace_with_question_marks(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "?" * (error.end - error.start), error.end


codecs.register_error(_QUESTION_MARKS, _replace_with_question_marks)
