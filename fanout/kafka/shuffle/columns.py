"""Records as frames and back, whole columns at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fanout.errors import BadFrameError, OptionError
from fanout.kafka.decoding.columns import SCHEMA as KAFKA_SCHEMA
from fanout.kafka.shuffle.frames import (
    LONGEST_CONTROL,
    MAX_MILLIS,
    MIN_MILLIS,
    PREFIX,
    VERSION,
    Tag,
)

__all__ = ("CONTROL", "SCHEMA", "Decoded", "decode", "encode", "newest", "unframe")

_Bytes: TypeAlias = np.ndarray[tuple[int], np.dtype[np.uint8]]
_Mask: TypeAlias = np.ndarray[tuple[int], np.dtype[np.bool_]]
_Numbers: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]

_TIMED: Final = PREFIX + 8
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
# As far as a column of Arrow can reach; a larger number overflows within Arrow.
_REST: Final = 2**31 - 1
_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}

_key, _value, *_others = KAFKA_SCHEMA
SCHEMA: Final = pa.schema([_key, _value, pa.field("eventTime", _TIMESTAMP), *_others])
"""The columns of a record: those of Kafka, its value as it was before it was framed, and when it
happened, null where its writer had no time for it."""

CONTROL: Final = "frame"
"""The name of one column more, of what is no record: see `Decoded.control`."""

_UNFRAMED: Final = SCHEMA.append(pa.field(CONTROL, pa.binary()))


@final
@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """Columns with a row for each frame.

    Args:
        values: The users' values; of no use where a frame is no record.
        times: Event times; null where a record has none.
        control: Null for a record; else how the frame begins, for `decode_control`.
    """

    values: pa.BinaryArray
    times: pa.TimestampArray
    control: pa.BinaryArray


def encode(keys: pa.Array, values: pa.Array, timestamps: pa.Array | None) -> pa.BinaryArray:
    """Return the values of the records that carry rows; their keys are the rows' own.

    Args:
        keys: The keys, of binary or string.
        values: The values, of binary or string.
        timestamps: When the rows happened, as timestamps with a time zone, cut to milliseconds;
            null where that is not known, None where it is of no row.

    Raises:
        BadFrameError: If a key or a value is null, or a time lies outside of the years 1 to 9999.
        OptionError: If a column is of another type, or they differ in length.
    """
    rows = len(values)
    for name, column in (("keys", keys), ("values", values)):
        if not _is_binary(column.type):
            raise OptionError(f"{name}: {column.type} is neither binary nor string")
        if column.null_count:
            raise BadFrameError(f"{name}: {column.null_count} of {rows} are null; leave them out")
    if len(keys) != rows or (timestamps is not None and len(timestamps) != rows):
        raise OptionError("keys, values and timestamps must have the same length")
    if timestamps is None:
        timestamps = pa.nulls(rows, _TIMESTAMP)
    timed, millis = _millis(timestamps)
    whole = np.empty((rows, _TIMED), np.uint8)
    whole[:, 0] = VERSION
    whole[:, 1] = np.where(timed, Tag.TIMED, Tag.UNTIMED)
    whole[:, PREFIX:] = millis.astype(">i8").view(np.uint8).reshape(rows, 8)
    used = np.ones((rows, _TIMED), np.bool_)
    used[:, PREFIX:] = timed[:, np.newaxis]
    heads = _binary(np.where(timed, _TIMED, PREFIX), whole[used])
    return pc.binary_join_element_wise(heads, values.cast(pa.binary()), b"")


def newest(timestamps: pa.Array | None) -> int | None:
    """Return the latest of the times of rows, in milliseconds as in their frames; None for none."""
    if timestamps is None or timestamps.null_count == len(timestamps):
        return None
    latest = pa.array([pc.max(timestamps)], timestamps.type)
    return int(_millis(latest)[1][0])


def decode(values: pa.BinaryArray) -> Decoded:
    """Take the values of records apart.

    Whatever is not without doubt a record is left to `decode_control`, which says what it is, or
    what is wrong with it.
    """
    lengths, tags = _tags(values)
    timed = (tags == Tag.TIMED) & (lengths >= _TIMED)
    millis = _times(values, timed)
    timed &= (millis >= MIN_MILLIS) & (millis <= MAX_MILLIS)
    records = timed | (tags == Tag.UNTIMED)
    times = pa.array(np.where(timed, millis, 0) * 1000, pa.int64(), mask=~timed).view(_TIMESTAMP)
    return Decoded(_payloads(values, timed, records), times, _control(values, records))


def unframe(records: pa.RecordBatch) -> pa.RecordBatch:
    """Return the records of a shuffle's topic with SCHEMA and CONTROL, a row for each."""
    decoded = decode(records.column("value"))
    columns = dict(zip(records.schema.names, records.columns, strict=True))
    columns |= {"value": decoded.values, "eventTime": decoded.times, CONTROL: decoded.control}
    return pa.RecordBatch.from_arrays([columns[name] for name in _UNFRAMED.names], schema=_UNFRAMED)


def _is_binary(type_: pa.DataType) -> bool:
    return type_ in {pa.binary(), pa.string(), pa.large_binary(), pa.large_string()}


def _millis(timestamps: pa.Array) -> tuple[_Mask, _Numbers]:
    """Return which rows have a time, and the times in milliseconds."""
    type_ = timestamps.type
    if not pa.types.is_timestamp(type_) or type_.tz is None:
        raise OptionError(f"timestamps: {type_} is no timestamp with a time zone")
    numbers: _Numbers = timestamps.view(pa.int64()).fill_null(0).to_numpy()
    per_second = _PER_SECOND[type_.unit]
    seconds = numbers // per_second
    timed = timestamps.is_valid().to_numpy(zero_copy_only=False)
    if ((seconds < MIN_MILLIS // 1000) | (seconds > MAX_MILLIS // 1000)).any():
        raise BadFrameError("timestamps: there is one outside of the years 1 to 9999")
    return timed, seconds * 1000 + numbers % per_second * 1000 // per_second


def _bytes(values: pa.BinaryArray) -> tuple[_Numbers, _Bytes]:
    """Return where each value begins, and the last one ends, in the bytes of all."""
    _, places, data = values.buffers()
    starts = np.frombuffer(places, np.int32)[values.offset : values.offset + len(values) + 1]
    return starts.astype(np.int64), np.frombuffer(data if data is not None else b"", np.uint8)


def _tags(values: pa.BinaryArray) -> tuple[_Numbers, _Numbers]:
    """Return the length and the tag of each value; -1 where it has none that is understood."""
    if not len(values):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    starts, data = _bytes(values)
    lengths = np.diff(starts)
    tags = np.full(len(values), -1, np.int64)
    begun = np.flatnonzero(lengths >= PREFIX)
    versions, known = data[starts[begun]], data[starts[begun] + 1]
    tags[begun] = np.where(versions == VERSION, known, -1)
    if values.null_count:
        tags[values.is_null().to_numpy(zero_copy_only=False)] = -1
    return lengths, tags


def _times(values: pa.BinaryArray, timed: _Mask) -> _Numbers:
    """Return the milliseconds in the frames that have some, and 0 for others."""
    millis = np.zeros(len(values), np.int64)
    if not timed.any():
        return millis
    of_all = pc.binary_slice(values, PREFIX, _TIMED)
    starts, data = _bytes(of_all)
    if starts[-1] - starts[0] != 8 * len(values):
        # Some are too short to have any; mostly none is, and selecting takes a while.
        starts, data = _bytes(of_all.filter(pa.array(timed)))
        millis[timed] = data[starts[0] : starts[-1]].view(">i8")
        return millis
    np.copyto(millis, data[starts[0] : starts[-1]].view(">i8"), where=timed)
    return millis


def _payloads(values: pa.BinaryArray, timed: _Mask, records: _Mask) -> pa.BinaryArray:
    """Return what follows on version, tag and time."""
    if not (records & ~timed).any():
        return pc.binary_slice(values, _TIMED, _REST)
    if not timed.any():
        return pc.binary_slice(values, PREFIX, _REST)
    after_time = pc.binary_slice(values, _TIMED, _REST)
    return pc.if_else(pa.array(timed), after_time, pc.binary_slice(values, PREFIX, _REST))


def _control(values: pa.BinaryArray, records: _Mask) -> pa.BinaryArray:
    """Return the beginnings of what is no record, and null for records."""
    if records.all():
        return pa.nulls(len(values), pa.binary())
    beginnings = pc.binary_slice(values.filter(pa.array(~records)), 0, LONGEST_CONTROL + 1)
    places = np.cumsum(~records) - 1
    return beginnings.fill_null(b"").take(pa.array(places, mask=records))


def _binary(lengths: _Numbers, data: _Bytes) -> pa.BinaryArray:
    starts = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=starts[1:])
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(lengths), [None, pa.py_buffer(starts), pa.py_buffer(data)]
    )
