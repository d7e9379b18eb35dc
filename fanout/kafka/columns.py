"""The columns that a Kafka source delivers: names, order and types of Spark's own Kafka source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiokafka.record.default_records import DefaultRecord

    from fanout.kafka.partitions import Partition

__all__ = ("AT_ONCE", "NO_RECORDS", "SCHEMA", "Columns")

AT_ONCE: Final = 300
"""How many records are objects of Python at a time: their memory is used over and over, and fresh
memory would cost more than the work. A record is two objects that Python's garbage collector knows
of, and at 700 new ones it looks through all of them. Fewer records take longer, each call of Arrow
having a price."""

_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")

# The value of a header may be null, its key may not, and may come twice.
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
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


@final
class Columns:
    """Collect records, and turn them into the columns of SCHEMA.

    A timestamp that is missing (-1 in Kafka) or after the year 9999 is null: a producer may write
    microseconds there by mistake, and the record counts for more than its time.

    Args:
        partition: Where the records are from.
    """

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._records: list[DefaultRecord] = []
        self._chunks: list[Sequence[pa.Array]] = []
        self._timestamp_types: list[tuple[int, int]] = []

    def add(self, records: Sequence[DefaultRecord], timestamp_type: int) -> None:
        """Take records, in the order of their offsets.

        Args:
            records: The records; they are kept for a while.
            timestamp_type: Who set their timestamps: 0 for the producer, 1 for the broker.
        """
        self._records += records
        self._timestamp_types.append((timestamp_type, len(records)))
        if len(self._records) >= AT_ONCE:
            self._convert()

    def taken(self) -> pa.RecordBatch:
        """Return all that was taken."""
        if self._records:
            self._convert()
        if not self._chunks:
            return NO_RECORDS
        key, value, offset, milliseconds, headers = map(_whole, zip(*self._chunks, strict=True))
        rows = len(offset)
        return pa.RecordBatch.from_arrays(
            [
                key,
                value,
                pa.repeat(self._partition.topic, rows),
                _repeated(self._partition.number, rows),
                offset,
                _timestamps(milliseconds),
                _runs(self._timestamp_types),
                headers,
            ],
            schema=SCHEMA,
        )

    def _convert(self) -> None:
        records = self._records
        self._chunks.append(
            (
                pa.array([record.key for record in records], pa.binary()),
                pa.array([record.value for record in records], pa.binary()),
                pa.array([record.offset for record in records], pa.int64()),
                pa.array([record.timestamp for record in records], pa.int64()),
                _headers([record.headers for record in records]),
            )
        )
        self._records = []


def _whole(chunks: Sequence[pa.Array]) -> pa.Array:
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)


def _repeated(number: int, rows: int) -> pa.Int32Array:
    return pa.repeat(pa.scalar(number, pa.int32()), rows)


def _timestamps(milliseconds: pa.Int64Array) -> pa.TimestampArray:
    least, most = pc.min_max(milliseconds).values()
    if least.as_py() < 0 or most.as_py() > _LATEST:
        valid = pc.and_(pc.greater_equal(milliseconds, 0), pc.less_equal(milliseconds, _LATEST))
        milliseconds = pc.if_else(valid, milliseconds, None)
    return pc.multiply(milliseconds, 1000).view(_TIMESTAMP)


def _runs(runs: Sequence[tuple[int, int]]) -> pa.Int32Array:
    if len({number for number, _ in runs}) == 1:
        return _repeated(runs[0][0], sum(rows for _, rows in runs))
    return pa.concat_arrays([_repeated(number, rows) for number, rows in runs])


def _headers(headers: Sequence[Sequence[tuple[str, bytes | None]]]) -> pa.ListArray:
    if any(headers):
        return pa.array(headers, _HEADERS)
    # Repeating an empty list would cost as much as all other columns together.
    return pa.ListArray.from_arrays(_repeated(0, len(headers) + 1), _NO_HEADERS)
