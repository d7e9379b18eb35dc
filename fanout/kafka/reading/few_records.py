"""Decode few records one after the other, where numpy's calls would cost more than the records.

The columns are those that `record_fields` and `columns` make of many records. What is not as it
should be is left to them: they find the first record that cannot be read, and say why.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

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


class _DecodedRecord(NamedTuple):
    key: bytes | None
    value: bytes | None
    offset: int
    millis: int
    by_broker: int
    headers: list[dict[str, str | bytes | None]]


def decode_few(
    batches: Sequence[FewRecords], partition: Partition, first_offset: int, stop: int | None
) -> pa.RecordBatch | None:
    """Return the records from an offset on, up to a stop; None where one is not as it should be."""
    try:
        found = [_record(batch, begin) for batch in batches for begin in batch.begins]
    except (IndexError, ValueError):
        return None
    behind = -1
    for record in found:
        if record.offset <= behind:
            return None
        behind = record.offset
    records = [
        record
        for record in found
        if record.offset >= first_offset and (stop is None or record.offset < stop)
    ]
    topics, numbers, producer_times, no_headers = _same_of_all(partition)
    rows = len(records)
    return pa.RecordBatch.from_arrays(
        [
            _binary([record.key for record in records]),
            _binary([record.value for record in records]),
            topics.slice(0, rows),
            numbers.slice(0, rows),
            _numbers([record.offset for record in records], pa.int64()),
            _numbers([_micros(record.millis) for record in records], TIMESTAMP),
            pa.array([record.by_broker for record in records], pa.int32())
            if any(record.by_broker for record in records)
            else producer_times.slice(0, rows),
            pa.array([record.headers for record in records], HEADERS)
            if any(record.headers for record in records)
            else no_headers.slice(0, rows),
        ],
        schema=SCHEMA,
    )


@lru_cache(maxsize=1024)
def _same_of_all(partition: Partition) -> tuple[pa.Array, ...]:
    """Return the columns that are the same for most records of a partition, for FEW of them."""
    return (
        pa.repeat(partition.topic, FEW),
        pa.repeat(pa.scalar(partition.number, pa.int32()), FEW),
        pa.repeat(pa.scalar(0, pa.int32()), FEW),
        no_headers(FEW),
    )


# An array from its buffers takes a tenth of the time that `pa.array` takes for few values.


def _binary(values: Sequence[bytes | None]) -> pa.Array:
    filled = [value or b"" for value in values]
    ends = array("i", accumulate(map(len, filled), initial=0))
    buffers = [_present(values), pa.py_buffer(ends), pa.py_buffer(b"".join(filled))]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def _numbers(values: Sequence[int | None], type_: pa.DataType) -> pa.Array:
    buffers = [_present(values), pa.py_buffer(array("q", [value or 0 for value in values]))]
    return pa.Array.from_buffers(type_, len(values), buffers)


def _present(values: Sequence[object]) -> pa.Buffer | None:
    """Return the bitmap that says which values are not null; None where none is."""
    if None not in values:
        return None
    bits = sum(1 << row for row, value in enumerate(values) if value is not None)
    return pa.py_buffer(bits.to_bytes(FEW // 8, "little"))


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
    return _DecodedRecord(key, value, offset, millis, batch.by_broker, headers)


def _bytes(data: memoryview, at: int, end: int) -> tuple[bytes | None, int]:
    """Read bytes that follow their length; bytes of a negative length are null, as in Java."""
    length, at = read_varint(data, at)
    if length < 0:
        return None, at
    if at + length > end:
        raise ValueError("a field ends after its record")
    return bytes(data[at : at + length]), at + length


def _micros(millis: int) -> int | None:
    """Return a timestamp in microseconds; None if it is missing or after 9999."""
    return millis * 1000 if 0 <= millis <= LATEST else None
