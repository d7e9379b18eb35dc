"""The frames in the values of a shuffle's topic, byte by byte, and their codec.

A value is a version, a tag and a payload; numbers are big endian. docs/shuffle.md has the layout as
a table with test vectors, for writers in other languages. A control frame reports the state of a
producer. The frames that carry records are encoded and decoded as columns.
"""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Final, TypeAlias, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fanout.core.user_decode import no_records
from fanout.errors import BadFrameError, OptionError
from fanout.kafka.reading.columns import SCHEMA as KAFKA_SCHEMA
from fanout.kafka.reading.columns import Layout, kafka_columns, take_spans
from fanout.kafka.reading.record_fields import Spans
from fanout.kafka.writing.partitioner import partitions_of

if TYPE_CHECKING:
    from fanout.kafka.reading.columns import LocatedRecords
    from fanout.kafka.reading.record_fields import Bytes, Numbers

_Mask: TypeAlias = NDArray[np.bool_]

VERSION: Final = 1
PREFIX: Final = 2
"""The bytes of version and tag, which begin every frame."""

MAX_PRODUCERS: Final = 1000
"""The limit bounds a position: it stores the state of each producer."""
MAX_GENERATION: Final = 2**63 - 1

# The first and the last millisecond of the years 1 to 9999, the limits of Python and Spark.
MIN_MILLIS: Final = -62_135_596_800_000
MAX_MILLIS: Final = 253_402_300_799_999


@final
class FrameTag(IntEnum):
    """The kind of a frame."""

    TIMED = 0
    """A record with its event time."""
    UNTIMED = 1
    """A record without an event time."""
    WATERMARK = 2
    HELLO = 3
    IDLE = 4
    END = 5


@final
@dataclass(frozen=True, slots=True)
class WatermarkFrame:
    """A producer writes no more records with this time, in milliseconds, or an earlier one."""

    producer: int
    generation: int
    millis: int


@final
@dataclass(frozen=True, slots=True)
class HelloFrame:
    """A producer joins its generation; a higher one replaces all lower ones.

    Producers are numbered from 0 on. The frame has how many there are, and over how many partitions
    keys are distributed.
    """

    producer: int
    generation: int
    producers: int
    partitions: int


@final
@dataclass(frozen=True, slots=True)
class IdleFrame:
    """A producer pauses; watermarks advance without it."""

    producer: int
    generation: int


@final
@dataclass(frozen=True, slots=True)
class EndFrame:
    """A producer writes nothing any more."""

    producer: int
    generation: int


ControlFrame: TypeAlias = WatermarkFrame | HelloFrame | IdleFrame | EndFrame

# Each begins with the producer and its generation. A watermark needs them as well: its writer may
# have been replaced without noticing.
_LAYOUTS: Final = {
    FrameTag.WATERMARK: (struct.Struct(">BBIQq"), WatermarkFrame),
    FrameTag.HELLO: (struct.Struct(">BBIQII"), HelloFrame),
    FrameTag.IDLE: (struct.Struct(">BBIQ"), IdleFrame),
    FrameTag.END: (struct.Struct(">BBIQ"), EndFrame),
}
_TAGS: Final = {kind: tag for tag, (_, kind) in _LAYOUTS.items()}
_TIMED: Final = PREFIX + 8

LONGEST_CONTROL: Final = max(layout.size for layout, _ in _LAYOUTS.values())


def encode_control(frame: ControlFrame) -> bytes:
    """Return the record value of a control frame; the record has a null key."""
    tag = _TAGS[type(frame)]
    try:
        value = _LAYOUTS[tag][0].pack(VERSION, tag, *astuple(frame))
    except struct.error as error:
        raise OptionError(f"{frame} has a number that is out of range") from error
    if problem := _problem(frame):
        raise OptionError(f"{frame} cannot be written: it {problem}")
    return value


def decode_control(value: bytes) -> ControlFrame:
    """Decode the value of a control frame, or its first `LONGEST_CONTROL` + 1 bytes.

    Raises:
        BadFrameError: If it is no control frame. The message begins with "it", and shows none of
            the bytes.
    """
    if len(value) < PREFIX:
        raise BadFrameError(f"it has {len(value)} bytes, and a frame has {PREFIX} at least")
    version, number = value[:PREFIX]
    if version != VERSION:
        raise BadFrameError(f"it has version {version}, and this library reads version {VERSION}")
    if number not in {*_LAYOUTS, FrameTag.TIMED}:
        raise BadFrameError(
            f"it has the tag {number}, and there are {min(FrameTag):d} to {max(FrameTag):d}"
        )
    tag = FrameTag(number)
    if tag is FrameTag.TIMED:
        if len(value) < _TIMED:
            raise BadFrameError("it is a record whose time is cut short")
        raise BadFrameError("it is a record whose time lies outside of the years 1 to 9999")
    layout, kind = _LAYOUTS[tag]
    name = tag.name.lower()
    if len(value) != layout.size:
        length = "is cut short" if len(value) < layout.size else "goes on behind its end"
        raise BadFrameError(f"it is of the kind {name!r}, and {length}")
    frame: ControlFrame = kind(*layout.unpack(value)[PREFIX:])
    if problem := _problem(frame):
        raise BadFrameError(f"it is of the kind {name!r}, and {problem}")
    return frame


def _problem(frame: ControlFrame) -> str:
    """Return what is wrong with a frame, as a clause that begins with a verb; empty if nothing."""
    if frame.producer >= MAX_PRODUCERS:
        return f"is of producer {frame.producer}; there are {MAX_PRODUCERS} at most"
    if frame.generation > MAX_GENERATION:
        return f"is of a generation above {MAX_GENERATION}"
    if isinstance(frame, HelloFrame):
        if frame.producers > MAX_PRODUCERS:
            return f"announces {frame.producers} producers; there are {MAX_PRODUCERS} at most"
        if frame.producer >= frame.producers:
            return f"announces {frame.producers} producers, but is of producer {frame.producer}"
        if not 0 < frame.partitions < 2**31:
            return f"announces {frame.partitions} partitions"
    return ""


# Version and tag, read as one number.
_KINDS: Final = {tag: VERSION << 8 | tag for tag in FrameTag}
_UNTIMED: Final = pa.scalar(bytes((VERSION, FrameTag.UNTIMED)), pa.binary())
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}

_key, _value, *_others = KAFKA_SCHEMA
SCHEMA: Final = pa.schema([_key, _value, pa.field("eventTime", _TIMESTAMP), *_others])
"""The columns of a record: those of Kafka, with the value out of its frame, and the event time,
which is null if the writer gave none."""

CONTROL: Final = "frame"
"""The name of an additional column: null for a record, else the beginning of the frame, for
`decode_control`."""

_UNFRAMED: Final = SCHEMA.append(pa.field(CONTROL, pa.binary()))


def encode(keys: pa.Array, values: pa.Array, timestamps: pa.Array | None) -> pa.BinaryArray:
    """Return the frames of records; the keys are checked, but the frames do not hold them.

    Keys and values are binary or string. Event times are timestamps with a time zone, which are cut
    to milliseconds; null for a record without one, None if no record has one.

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
    heads: pa.BinaryArray | pa.BinaryScalar = _UNTIMED
    if timed.any():
        heads = _heads(millis)
        if not timed.all():
            heads = pc.if_else(pa.array(timed), heads, _UNTIMED)
    return pc.binary_join_element_wise(heads, values.cast(pa.binary()), b"")


def keyed_rows(
    topic: str, count: int, keys: pa.Array, values: pa.Array, timestamps: pa.Array | None
) -> pa.RecordBatch:
    """Return rows that carry records, each for the partition that Kafka's producers choose.

    There are `count` partitions; see `encode` for the columns and for what is raised.
    """
    frames = encode(keys, values, timestamps)
    # Kafka's own timestamp stays the time of the write, because retention counts from it.
    columns = {
        "topic": pa.repeat(topic, len(keys)),
        "partition": partitions_of(keys.cast(pa.binary()), count),
        "key": keys.cast(pa.binary()),
        "value": frames,
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def latest_millis(timestamps: pa.Array | None) -> int | None:
    """Return the latest event time, in milliseconds as in the frames; None if there is none."""
    if timestamps is None or timestamps.null_count == len(timestamps):
        return None
    latest = pa.array([pc.max(timestamps)], timestamps.type)
    return int(_millis(latest)[1][0])


def _unframed(records: LocatedRecords) -> pa.RecordBatch:
    """Make the columns of SCHEMA and CONTROL, with a row for each frame.

    Every value that is not clearly a record is left to `decode_control`, which decodes it or finds
    what is wrong with it. Values are read in place, and copied without their heads.
    """
    data, values = records.data, records.fields.values
    lengths = values.ends - values.begins  # 0 for a null value
    kinds = _numbers(data, values.begins, ">u2")
    millis = _numbers(data, values.begins + PREFIX, ">i8")
    timed = (kinds == _KINDS[FrameTag.TIMED]) & (lengths >= _TIMED)
    timed &= (millis >= MIN_MILLIS) & (millis <= MAX_MILLIS)
    known = timed | (kinds == _KINDS[FrameTag.UNTIMED]) & (lengths >= PREFIX)
    heads = np.where(timed, _TIMED, PREFIX * known)
    fields = replace(records.fields, values=replace(values, begins=values.begins + heads))
    key, value, *others = kafka_columns(replace(records, fields=fields)).columns
    times = pa.array(millis * 1000, mask=None if timed.all() else ~timed).view(_TIMESTAMP)
    control = _control(data, values, known)
    return pa.RecordBatch.from_arrays([key, value, times, *others, control], schema=_UNFRAMED)


FRAMED: Final = Layout(_unframed, no_records(_UNFRAMED))
"""The columns of a shuffle's topic: those of SCHEMA, and CONTROL."""


def _is_binary(type_: pa.DataType) -> bool:
    return type_ in {pa.binary(), pa.string(), pa.large_binary(), pa.large_string()}


def _millis(timestamps: pa.Array) -> tuple[_Mask, Numbers]:
    """Return which rows have an event time, and the times in milliseconds."""
    type_ = timestamps.type
    if not pa.types.is_timestamp(type_) or type_.tz is None:
        raise OptionError(f"timestamps: {type_} is no timestamp with a time zone")
    numbers: Numbers = timestamps.view(pa.int64()).fill_null(0).to_numpy()
    per_second = _PER_SECOND[type_.unit]
    earliest, latest = (int(each(initial=0)) * 1000 for each in (numbers.min, numbers.max))
    if earliest < MIN_MILLIS * per_second or latest >= (MAX_MILLIS + 1) * per_second:
        raise BadFrameError("timestamps: there is one outside of the years 1 to 9999")
    timed = timestamps.is_valid().to_numpy(zero_copy_only=False)
    return timed, numbers * 1000 if per_second == 1 else numbers // (per_second // 1000)


def _numbers(data: Bytes, at: Numbers, type_: str) -> Numbers:
    """Read a number at each position; beyond the end of the data it has no meaning."""
    width = np.dtype(type_).itemsize
    everywhere = np.ndarray((len(data) - width + 1,), type_, data, strides=(1,))
    return everywhere[np.minimum(at, len(everywhere) - 1)].astype(np.int64)


def _control(data: Bytes, values: Spans, known: _Mask) -> pa.BinaryArray:
    """Return the beginnings of the values that are no records, and null for records."""
    if known.all():
        return pa.nulls(len(known), pa.binary())
    begins = values.begins[~known]
    ends = np.minimum(values.ends[~known], begins + LONGEST_CONTROL + 1)
    places = np.cumsum(~known) - 1
    return take_spans(data, Spans(begins, ends, None)).take(pa.array(places, mask=known))


def _heads(millis: Numbers) -> pa.BinaryArray:
    """Return the heads of records with event times."""
    heads = np.empty(len(millis), [("kind", ">u2"), ("millis", ">i8")])
    heads["kind"], heads["millis"] = _KINDS[FrameTag.TIMED], millis
    ends = np.arange(len(millis) + 1, dtype=np.int32) * _TIMED
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(heads.view(np.uint8))]
    return pa.BinaryArray.from_buffers(pa.binary(), len(millis), buffers)
