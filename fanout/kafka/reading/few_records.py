"""Decode few records one after the other, where numpy's calls would cost more than the records.

The columns are those that `record_fields` and `columns` make of many records. What is not as it
should be is left to them: they find the first record that cannot be read, and say why.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import pyarrow as pa

from fanout.kafka.reading.columns import (
    HEADERS,
    LATEST,
    SCHEMA,
    TIMESTAMP,
    no_headers,
    text_of_header,
)
from fanout.kafka.reading.record_fields import read_varint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanout.kafka.partitions import Partition

FEW: Final = 32
"""Up to so many records are decoded here: there both ways take equally long."""
FEW_BYTES: Final = 64 * 1024
"""The most bytes of such records; of more bytes a second copy would count."""


class FewRecords(NamedTuple):
    """A record batch of which few records are decoded.

    Args:
        data: Its bytes, decompressed.
        begins: Where each record begins in them.
        base_offset: The offset that those of records are relative to.
        last_offset: The largest offset that one may have.
        timestamp: The base of their timestamps in milliseconds, or the timestamp of all of them.
        by_broker: 1 if the broker set their timestamps, and 0 if producers did.
    """

    data: memoryview
    begins: Sequence[int]
    base_offset: int
    last_offset: int
    timestamp: int
    by_broker: int


_BINARY: Final = pa.binary()
_OFFSET: Final = pa.int64()
# What Arrow counts for a record: the ends of its key, value, topic and headers, and its numbers.
_FIXED_BYTES: Final = 4 * 4 + 2 * 4 + 2 * 8


# Its key, value, offset, timestamp in milliseconds, who set that, and headers.
_DecodedRecord: TypeAlias = tuple[
    bytes | None, bytes | None, int, int, int, list[dict[str, str | bytes | None]]
]


def decode_few(
    batches: Sequence[FewRecords], partition: Partition, first_offset: int, stop: int | None
) -> tuple[pa.RecordBatch, int] | None:
    """Return the records from an offset on, up to a stop; None where one is not as it should be.

    The number is `nbytes` of the records, which Arrow would count for as long as all else takes.
    """
    try:
        found = [_record(batch, begin) for batch in batches for begin in batch.begins]
    except (IndexError, ValueError):
        return None
    records, behind = [], -1
    for record in found:
        offset = record[2]
        if offset <= behind:
            return None
        behind = offset
        if offset >= first_offset and (stop is None or offset < stop):
            records.append(record)
    rows = len(records)
    fields = zip(*records, strict=True) if records else ((),) * 6
    keys, values, offsets, millis, by_broker, headers = fields
    same = _same_of_all(partition)
    key_column, key_bytes = _binary(keys)
    value_column, value_bytes = _binary(values)
    # A timestamp that is missing, or after 9999, is null.
    times = [each * 1000 if 0 <= each <= LATEST else None for each in millis]
    time_column, no_times = _numbers(times, TIMESTAMP)
    decoded = pa.RecordBatch.from_arrays(
        [
            key_column,
            value_column,
            same.topics.slice(0, rows),
            same.numbers.slice(0, rows),
            _numbers(offsets, _OFFSET)[0],
            time_column,
            pa.array(by_broker, pa.int32())
            if any(by_broker)
            else same.producer_times.slice(0, rows),
            pa.array(headers, HEADERS) if any(headers) else same.no_headers.slice(0, rows),
        ],
        schema=SCHEMA,
    )
    if any(headers):
        return decoded, decoded.nbytes
    return decoded, key_bytes + value_bytes + no_times + rows * same.row_bytes


class _SameOfAll(NamedTuple):
    """The columns that are the same for most records of a partition, for FEW of them.

    `row_bytes` are what a record takes, but for its key, its value, and bitmaps of nulls.
    """

    topics: pa.Array
    numbers: pa.Array
    producer_times: pa.Array
    no_headers: pa.Array
    row_bytes: int


@lru_cache(maxsize=1024)
def _same_of_all(partition: Partition) -> _SameOfAll:
    return _SameOfAll(
        pa.repeat(partition.topic, FEW),
        pa.repeat(pa.scalar(partition.number, pa.int32()), FEW),
        pa.repeat(pa.scalar(0, pa.int32()), FEW),
        no_headers(FEW),
        _FIXED_BYTES + len(partition.topic.encode()),
    )


# An array from its buffers takes a tenth of the time that `pa.array` takes for few values.


def _binary(values: Sequence[bytes | None]) -> tuple[pa.Array, int]:
    """Return values as a column, and the bytes of the values and of their bitmap."""
    present, bitmap_bytes = _present(values)
    filled = [value or b"" for value in values]
    data = b"".join(filled)
    ends = array("i", accumulate(map(len, filled), initial=0))
    buffers = [present, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(_BINARY, len(values), buffers), len(data) + bitmap_bytes


def _numbers(values: Sequence[int | None], type_: pa.DataType) -> tuple[pa.Array, int]:
    """Return numbers as a column, and the bytes of its bitmap."""
    present, bitmap_bytes = _present(values)
    buffers = [present, pa.py_buffer(array("q", [value or 0 for value in values]))]
    return pa.Array.from_buffers(type_, len(values), buffers), bitmap_bytes


def _present(values: Sequence[object]) -> tuple[pa.Buffer | None, int]:
    """Return the bitmap that says which values are not null, and its bytes; None for no null."""
    if None not in values:
        return None, 0
    bits = sum(1 << row for row, value in enumerate(values) if value is not None)
    return pa.py_buffer(bits.to_bytes(FEW // 8, "little")), -(-len(values) // 8)


def _record(batch: FewRecords, begin: int) -> _DecodedRecord:
    """Read one record: https://kafka.apache.org/documentation/#record.

    Raises:
        IndexError: If it ends too early.
        ValueError: If a number in it is impossible.
    """
    data = batch.data
    length, at = read_varint(data, begin)
    end = at + length
    delta, at = read_varint(data, at + 1)  # after the attributes, which have no meaning yet
    offset_delta, at = read_varint(data, at)
    offset = batch.base_offset + offset_delta
    key, at = _bytes(data, at, end)
    value, at = _bytes(data, at, end)
    count, at = read_varint(data, at)
    headers: list[dict[str, str | bytes | None]] = []
    for _ in range(count):
        name, at = _bytes(data, at, end)
        if name is None:
            raise ValueError("the key of a header is null")
        header, at = _bytes(data, at, end)
        headers.append({"key": text_of_header(name), "value": header})
    if at != end or count < 0 or not batch.base_offset <= offset <= batch.last_offset:
        raise ValueError("a record has other lengths than its fields, or another batch's offset")
    millis = batch.timestamp if batch.by_broker else batch.timestamp + delta
    return key, value, offset, millis, batch.by_broker, headers


def _bytes(data: memoryview, at: int, end: int) -> tuple[bytes | None, int]:
    """Read bytes that follow their length; bytes of a negative length are null, as in Java."""
    length, at = read_varint(data, at)
    if length < 0:
        return None, at
    if at + length > end:
        raise ValueError("a field ends after its record")
    return bytes(data[at : at + length]), at + length
