"""Decode few records one after the other, where numpy's calls would cost more than the records.

The columns are those that `record_fields` and `columns` make of many records. What is not as it
should be is left to them: they find the first record that cannot be read, and say why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa

from fanout.kafka.reading.columns import HEADERS, LATEST, NO_RECORDS, SCHEMA, text_of_header
from fanout.kafka.reading.few_columns import few_columns
from fanout.kafka.reading.record_batches import RECORDS_AT
from fanout.kafka.reading.record_fields import read_varint

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fanout.kafka.partitions import Partition
    from fanout.kafka.reading.record_batches import RawBatch

FEW: Final = 32
"""Up to so many records are decoded here; of some 55 both ways take equally many instructions."""
FEW_BYTES: Final = 64 * 1024
"""The most bytes of such records, which are copied thrice here, and once by the other way."""


_HEADERS_AT: Final = SCHEMA.get_field_index("headers")

# Its offset, key, value, timestamp in milliseconds, who set that, and headers.
_DecodedRecord: TypeAlias = tuple[
    int, bytes | None, bytes | None, int, int, list[dict[str, str | bytes | None]]
]


def decode_few(
    batches: Sequence[tuple[RawBatch, bytes]], partition: Partition, first_offset: int
) -> tuple[pa.RecordBatch, int] | None:
    """Return the records from an offset on; None where one is not as it should be.

    Each batch comes with its data, decompressed. The number is `nbytes` of the records, which Arrow
    would count for as long as all else takes.
    """
    records: list[_DecodedRecord] = []
    behind = -1
    try:
        for batch, data in batches:
            for record in _records(batch, data):
                if record[0] <= behind:
                    return None
                behind = record[0]
                if behind >= first_offset:
                    records.append(record)
    except (IndexError, ValueError):
        return None
    if not records:
        return NO_RECORDS, 0
    offsets, keys, values, millis, by_broker, headers = zip(*records, strict=True)
    # A timestamp that is missing, or after 9999, is null.
    times = [each * 1000 if 0 <= each <= LATEST else _wrapped(each) for each in millis]
    decoded, nbytes = few_columns(
        partition, keys, values, offsets, timestamps=times, timestamp_types=by_broker
    )
    if any(headers):
        column = pa.array(headers, HEADERS)
        decoded = decoded.set_column(_HEADERS_AT, SCHEMA.field(_HEADERS_AT), column)
        nbytes = decoded.nbytes
    return decoded, nbytes


def _records(batch: RawBatch, data: bytes) -> Iterator[_DecodedRecord]:
    """Read the records of a batch: https://kafka.apache.org/documentation/#record.

    Raises:
        IndexError: If one ends too early.
        ValueError: If a number in it is impossible, or the records do not fill the batch.
    """
    at, base, by_broker = RECORDS_AT, batch.base_offset, batch.timestamp_type
    timestamp = batch.max_timestamp if by_broker else batch.first_timestamp
    for _ in range(batch.rows):
        length, at = read_varint(data, at)
        end = at + length
        delta, at = read_varint(data, at + 1)  # after the attributes, which have no meaning yet
        offset_delta, at = read_varint(data, at)
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
        if at != end or count < 0 or not base <= base + offset_delta < batch.next_offset:
            raise ValueError(
                "a record has other lengths than its fields, or another batch's offset"
            )
        millis = timestamp if by_broker else timestamp + delta
        yield base + offset_delta, key, value, millis, by_broker, headers
    if at != len(data):
        raise ValueError("the records do not fill their batch")


def _wrapped(millis: int) -> int | None:
    """Return the microseconds of a time that wraps at 64 bits, as in Java; None if it is null."""
    millis = (millis + 2**63) % 2**64 - 2**63
    return millis * 1000 if 0 <= millis <= LATEST else None


def _bytes(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    """Read bytes that follow their length; bytes of a negative length are null, as in Java."""
    length, at = read_varint(data, at)
    if length < 0:
        return None, at
    if at + length > end:
        raise ValueError("a field ends after its record")
    return data[at : at + length], at + length
