"""The frames in the values of a shuffle's topic, byte by byte, and the codec of control frames.

A value is a version, a tag and a payload; numbers are big endian. docs/shuffle.md has the layout as
a table with test vectors, for writers in other languages. A control frame reports the state of a
producer. `frame_columns` encodes and decodes the frames that carry records.
"""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass
from enum import IntEnum
from typing import Final, TypeAlias, final

from fanout.errors import BadFrameError, OptionError

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
