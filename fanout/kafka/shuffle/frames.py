"""The frames of a shuffle: what the values of the records in its topic hold, byte by byte.

A value is a version, a tag and a payload; numbers are big endian. docs/shuffle.md has the layout as
a table with examples, so that another language can write it. This module knows the frames that
speak of a producer; `columns` has those that carry records.
"""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass
from enum import IntEnum
from typing import Final, TypeAlias, final

from fanout.errors import BadFrameError, OptionError

__all__ = (
    "LONGEST_CONTROL",
    "MAX_GENERATION",
    "MAX_MILLIS",
    "MAX_PRODUCERS",
    "MIN_MILLIS",
    "PREFIX",
    "VERSION",
    "ControlFrame",
    "EndFrame",
    "FrameTag",
    "HelloFrame",
    "IdleFrame",
    "WatermarkFrame",
    "decode_control",
    "encode_control",
)

VERSION: Final = 1
PREFIX: Final = 2
"""Bytes of version and tag, with which every frame begins."""

MAX_PRODUCERS: Final = 1000
"""What a reader keeps of each producer is stored with the position of each partition."""
MAX_GENERATION: Final = 2**63 - 1

# The first and the last millisecond of the years 1 to 9999: neither Python nor Spark has others.
MIN_MILLIS: Final = -62_135_596_800_000
MAX_MILLIS: Final = 253_402_300_799_999


@final
class FrameTag(IntEnum):
    """What a frame is."""

    TIMED = 0
    """A record with its event time."""
    UNTIMED = 1
    """A record without one."""
    WATERMARK = 2
    HELLO = 3
    IDLE = 4
    END = 5


@final
@dataclass(frozen=True, slots=True)
class WatermarkFrame:
    """A producer will write no record any more whose event time is as old.

    Args:
        producer: Its number among those of its generation, from 0 on.
        generation: The generation.
        millis: The watermark, in milliseconds since the Unix epoch.
    """

    producer: int
    generation: int
    millis: int


@final
@dataclass(frozen=True, slots=True)
class HelloFrame:
    """A producer takes part.

    Args:
        producer: Its number among those of its generation, from 0 on.
        generation: The generation; a higher one takes the place of all lower ones.
        producers: How many there are in the generation.
        partitions: How many partitions keys are distributed over.
    """

    producer: int
    generation: int
    producers: int
    partitions: int


@final
@dataclass(frozen=True, slots=True)
class IdleFrame:
    """A producer has nothing to write for now: watermarks go on without it.

    Args:
        producer: Its number.
        generation: Its generation.
    """

    producer: int
    generation: int


@final
@dataclass(frozen=True, slots=True)
class EndFrame:
    """A producer will write nothing any more.

    Args:
        producer: Its number.
        generation: Its generation.
    """

    producer: int
    generation: int


ControlFrame: TypeAlias = WatermarkFrame | HelloFrame | IdleFrame | EndFrame

# Each begins with the producer and its generation: of a watermark, too, a reader has to know
# whether it comes from a writer that has been replaced and has not noticed.
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
    """Return the value of the record that carries a frame; its key is null.

    Raises:
        OptionError: If a number is out of range.
    """
    tag = _TAGS[type(frame)]
    try:
        value = _LAYOUTS[tag][0].pack(VERSION, tag, *astuple(frame))
    except struct.error as error:
        raise OptionError(f"{frame} has a number that is out of range") from error
    if problem := _problem(frame):
        raise OptionError(f"{frame} cannot be written: it {problem}")
    return value


def decode_control(value: bytes) -> ControlFrame:
    """Read the value of a record that carries a frame without a record.

    Args:
        value: The value; of a longer one its first `LONGEST_CONTROL` + 1 bytes will do.

    Raises:
        BadFrameError: If it is anything else. The sentence begins with "it", and says nothing of
            what the bytes hold.
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
    """Say what keeps a frame from being one, as a clause that begins with its verb."""
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
