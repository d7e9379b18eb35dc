"""The columns that a Kafka source delivers: names, order and types of Spark's own Kafka source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiokafka.record.default_records import DefaultRecord

    from fanout.kafka.partitions import Partition

__all__ = ("NO_RECORDS", "SCHEMA", "columns")

# Arrow's own allocator keeps much of what it has freed, and many partitions hold a batch each.
_POOL = pa.system_memory_pool()

_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")

# A null header value is none; a key of a header is never null, and may come twice.
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

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


def columns(
    records: Sequence[DefaultRecord], timestamp_types: pa.Array, partition: Partition
) -> pa.RecordBatch:
    """Turn records into the columns of SCHEMA.

    A timestamp that is missing (-1 in Kafka) or after the year 9999 is null: a producer may
    write microseconds there by mistake, and the record counts for more than its time.

    Args:
        records: The records, in order.
        timestamp_types: The timestamp type of each: 0 if its producer set it, 1 if the broker did.
        partition: Where they are from.
    """
    rows = len(records)
    if not rows:
        return NO_RECORDS
    return pa.RecordBatch.from_arrays(
        [
            pa.array([record.key for record in records], pa.binary(), memory_pool=_POOL),
            pa.array([record.value for record in records], pa.binary(), memory_pool=_POOL),
            pa.repeat(partition.topic, rows),
            pa.repeat(pa.scalar(partition.number, pa.int32()), rows),
            pa.array([record.offset for record in records], pa.int64()),
            _timestamps(records),
            timestamp_types,
            _headers(records),
        ],
        schema=SCHEMA,
    )


def _timestamps(records: Sequence[DefaultRecord]) -> pa.TimestampArray:
    millis = pa.array([record.timestamp for record in records], pa.int64())
    least, most = pc.min_max(millis).values()
    if not 0 <= least.as_py() <= most.as_py() <= _LATEST:
        inside = pc.and_(pc.greater_equal(millis, 0), pc.less_equal(millis, _LATEST))
        millis = pc.if_else(inside, millis, None)
    return pc.multiply(millis, 1000).view(_TIMESTAMP)


def _headers(records: Sequence[DefaultRecord]) -> pa.ListArray:
    headers = [record.headers for record in records]
    if any(headers):
        return pa.array(headers, _HEADERS)
    return pa.repeat(pa.scalar([], _HEADERS), len(records))
