"""The producers of one partition of a shuffle, their liveness, and the watermark they imply."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Annotated, Final, Literal, Self, final

import msgspec

from fanout.core.checkpoint import MAX_STATE
from fanout.core.stored_json import StoredFormat
from fanout.errors import BadFrameError, PositionError
from fanout.kafka.shuffle.frames import (
    MAX_GENERATION,
    MAX_PRODUCERS,
    EndFrame,
    HelloFrame,
    IdleFrame,
    WatermarkFrame,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fanout.kafka.shuffle.frames import ControlFrame

_VERSION: Final = 1


@final
class Activity(IntEnum):
    """The activity of a producer; the watermark waits for active ones alone."""

    ACTIVE = 0
    IDLE = 1
    """Its last frame is an idle frame."""
    ENDED = 2
    """Its last frame is an end frame."""
    LEFT_OUT = 3
    """It wrote no frame for `producer_timeout`, and the watermark advances without it."""


@final
@dataclass(slots=True)
class ProducerState:
    """The state of one producer.

    Args:
        watermark: Its highest watermark, in milliseconds since the Unix epoch; None before the
            first.
        activity: Its activity; the watermark of the partition waits for active producers.
    """

    watermark: int | None = None
    activity: Activity = Activity.ACTIVE


@final
@dataclass(slots=True)
class Producers:
    """The producers of one partition, and its watermark, which never decreases.

    Only the newest generation counts. The watermark is the lowest one of its active producers, as
    soon as a frame of every announced producer was read; if none is active, it stays. Every frame
    but an idle frame and an end frame makes its producer active.

    Args:
        generation: The newest generation; None before the first frame.
        announced: The number of its producers; None before its first hello frame.
        partitions: The number of partitions that they write to; None before its first hello frame.
        seen: The producers of which a frame was read, by their numbers.
        watermark: The watermark of the partition, in milliseconds since the Unix epoch.
        repeated: The number of watermark frames that were ignored because they were not above the
            last one of their producer.
        outdated: The number of frames that were ignored because of their older generation.
    """

    generation: int | None
    announced: int | None
    partitions: int | None
    seen: dict[int, ProducerState]
    watermark: int | None
    repeated: int = 0
    outdated: int = 0

    @classmethod
    def unknown(cls, watermark: int | None = None) -> Self:
        """Return the state before the first frame.

        Args:
            watermark: A watermark that the partition has already.
        """
        return cls(None, None, None, {}, watermark)

    @classmethod
    def from_state(cls, state: str) -> Self:
        """Restore the state that `to_state` returned; an empty one is that before the first frame.

        Raises:
            PositionError: If the state is damaged, or of another format version.
        """
        if not state:
            return cls.unknown()
        wire = _FORMAT.read(state, _WHAT)
        seen = {
            one.number: ProducerState(one.watermark, Activity(one.activity))
            for one in wire.producers
        }
        highest = max(seen, default=-1)
        if len(seen) < len(wire.producers) or highest >= (wire.announced or MAX_PRODUCERS):
            raise _FORMAT.damaged(_WHAT, "their numbers are wrong")
        return cls(
            wire.generation,
            wire.announced,
            wire.partitions,
            seen,
            wire.watermark,
            wire.repeated,
            wire.outdated,
        )

    def to_state(self) -> str:
        """Return the state as text for `from_state`; empty before the first frame."""
        if self.generation is None and self.watermark is None:
            return ""
        wire = _StateWire(
            _VERSION,
            self.generation,
            self.announced,
            self.partitions,
            self.watermark,
            self.repeated,
            self.outdated,
            [_ProducerWire(i, one.watermark, one.activity.value) for i, one in self.seen.items()],
        )
        return msgspec.json.encode(wire).decode()

    def apply(self, frame: ControlFrame) -> bool:
        """Apply a frame; return whether it is of the newest generation.

        Raises:
            BadFrameError: If it contradicts earlier frames of its generation. The state does not
                change then. The message begins with "it".
        """
        newest = -1 if self.generation is None else self.generation
        if frame.generation < newest:
            self.outdated += 1
            return False
        announced = self.announced if frame.generation == newest else None
        if isinstance(frame, HelloFrame):
            self._check_hello(frame, newest)
        elif announced is not None and frame.producer >= announced:
            raise BadFrameError(
                f"it is of producer {frame.producer}, but generation {frame.generation} has "
                f"{announced} producers"
            )
        if frame.generation > newest:
            self.generation, self.announced, self.partitions = frame.generation, None, None
            self.seen = {}
        self._update(frame, self.seen.setdefault(frame.producer, ProducerState()))
        self._advance()
        return True

    def leave_out(self, silent: Iterable[int]) -> None:
        """Advance the watermark without some producers, until a frame of theirs is read."""
        for number in silent:
            self.seen.setdefault(number, ProducerState()).activity = Activity.LEFT_OUT
        self._advance()

    @property
    def awaited(self) -> list[int]:
        """The announced producers that the watermark waits for."""
        return [
            number
            for number in range(self.announced or 0)
            if number not in self.seen or self.seen[number].activity is Activity.ACTIVE
        ]

    @property
    def ended(self) -> bool:
        """Whether all announced producers have ended."""
        return self._complete and all(
            producer.activity is Activity.ENDED for producer in self.seen.values()
        )

    @property
    def _complete(self) -> bool:
        return self.announced is not None and len(self.seen) == self.announced

    def _check_hello(self, hello: HelloFrame, newest: int) -> None:
        if hello.generation > newest:
            return
        if self.announced is None:
            if (highest := max(self.seen)) >= hello.producers:
                raise BadFrameError(
                    f"it announces {hello.producers} producers, but generation {newest} has a "
                    f"producer {highest}"
                )
        elif (hello.producers, hello.partitions) != (self.announced, self.partitions):
            raise BadFrameError(
                f"it announces {hello.producers} producers and {hello.partitions} partitions, but "
                f"generation {newest} has {self.announced} and {self.partitions}"
            )

    def _update(self, frame: ControlFrame, producer: ProducerState) -> None:
        match frame:
            case IdleFrame():
                producer.activity = Activity.IDLE
                return
            case EndFrame():
                producer.activity = Activity.ENDED
                return
            case HelloFrame(producers=announced, partitions=partitions):
                self.announced, self.partitions = announced, partitions
            case WatermarkFrame(millis=millis):
                if producer.watermark is not None and millis <= producer.watermark:
                    self.repeated += 1
                else:
                    producer.watermark = millis
        producer.activity = Activity.ACTIVE

    def _advance(self) -> None:
        if not self._complete:
            return
        least: int | None = None
        for producer in self.seen.values():
            if producer.activity is not Activity.ACTIVE:
                continue
            if producer.watermark is None:
                return
            if least is None or producer.watermark < least:
                least = producer.watermark
        if least is not None and (self.watermark is None or least > self.watermark):
            self.watermark = least


@final
class Liveness:
    """Measure how long each producer has been silent, in time that the reader waited.

    Only the time counts in which the reader waits at the end of its partition. A reader that lags,
    or whose consumer is busy, cannot tell whether producers are silent. Without a timeout none is.
    """

    def __init__(self, timeout: float | None) -> None:
        self.timeout = timeout
        self._clock = 0.0
        self._generation: int | None = None
        self._begun = 0.0
        self._last_frame: dict[int, float] = {}

    def note_frame(self, generation: int, producer: int) -> None:
        """Note a frame of a producer of a generation."""
        if generation != self._generation:
            self._generation, self._begun = generation, self._clock
            self._last_frame = {}
        self._last_frame[producer] = self._clock

    def waited(self, seconds: float) -> None:
        """Add seconds that the reader waited at the end of the partition."""
        self._clock += seconds

    def timed_out(self, awaited: Iterable[int]) -> list[int]:
        """Return which of the awaited producers are silent."""
        if self.timeout is None:
            return []
        since = self._clock - self.timeout
        return [number for number in awaited if self._last_frame.get(number, self._begun) <= since]


_Millis = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _ProducerWire(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    number: Annotated[int, msgspec.Meta(ge=0, lt=MAX_PRODUCERS)]
    watermark: _Millis | None
    activity: Literal[0, 1, 2, 3]


class _StateWire(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: Literal[1]
    generation: Annotated[int, msgspec.Meta(ge=0, le=MAX_GENERATION)] | None
    announced: Annotated[int, msgspec.Meta(ge=1, le=MAX_PRODUCERS)] | None
    partitions: Annotated[int, msgspec.Meta(ge=1, lt=2**31)] | None
    watermark: _Millis | None
    repeated: _Count
    outdated: _Count
    producers: Annotated[list[_ProducerWire], msgspec.Meta(max_length=MAX_PRODUCERS)]


_WHAT: Final = "the stored producers"
_FORMAT: Final = StoredFormat(
    wire=_StateWire, max_size=MAX_STATE, error=PositionError, version=_VERSION, plural=True
)
