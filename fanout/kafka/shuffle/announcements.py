"""The control frames that a producer of a shuffle announces itself with, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import pyarrow as pa

from fanout.kafka.shuffle.frames import (
    EndFrame,
    HelloFrame,
    IdleFrame,
    WatermarkFrame,
    encode_control,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fanout.kafka.shuffle.frames import ControlFrame

# Seconds between two hellos. A reader that begins in the middle of the topic has no watermark
# before it has read a hello of every producer.
_HELLO_INTERVAL: Final = 60.0


@final
class Announcements:
    """Decide which control frames one producer has to write next.

    Times are in seconds, of any clock that never goes back.
    """

    def __init__(self, hello: HelloFrame) -> None:
        self._hello = hello
        self._hello_at: float | None = None
        # A producer can go on after its end frame where the commit of the end was cancelled.
        self._inactive = False
        self.watermark: int | None = None

    def before_records(self, now: float) -> list[ControlFrame]:
        """Return the frames to write before the next records; mostly none."""
        if not self._inactive:
            return self._hello_if_due(now)
        # Readers have to wait for this producer again before they read its records.
        if self.watermark is None:
            return [self._hello]
        return [*self._hello_if_due(now), self._frame(WatermarkFrame, self.watermark)]

    def advance(self, millis: int, now: float) -> list[ControlFrame]:
        """Return the frames for a watermark; none if it is not above the last one."""
        if self.watermark is not None and millis <= self.watermark:
            return []
        return [*self._hello_if_due(now), self._frame(WatermarkFrame, millis)]

    def idle(self, now: float) -> list[ControlFrame]:
        """Return the frames of a producer that pauses."""
        return [*self._hello_if_due(now), self._frame(IdleFrame)]

    def end(self, now: float) -> list[ControlFrame]:
        """Return the frames of a producer that writes nothing any more."""
        return [*self._hello_if_due(now), self._frame(EndFrame)]

    def written(self, frames: Sequence[ControlFrame], now: float) -> None:
        """Note that frames were written."""
        for frame in frames:
            self._inactive = isinstance(frame, IdleFrame | EndFrame)
            match frame:
                case HelloFrame():
                    self._hello_at = now
                case WatermarkFrame(millis=millis):
                    self.watermark = millis
                case _:
                    pass

    def _hello_if_due(self, now: float) -> list[ControlFrame]:
        if self._hello_at is not None and now - self._hello_at < _HELLO_INTERVAL:
            return []
        return [self._hello]

    def _frame(
        self, kind: type[WatermarkFrame | IdleFrame | EndFrame], *numbers: int
    ) -> ControlFrame:
        return kind(self._hello.producer, self._hello.generation, *numbers)


def announcement_rows(
    topic: str, partitions: Iterable[int], frames: Sequence[ControlFrame]
) -> pa.RecordBatch:
    """Return rows that carry control frames, in their order, to each of some partitions."""
    values = [encode_control(frame) for frame in frames]
    numbers = [number for number in partitions for _ in values]
    columns = {
        "topic": pa.repeat(topic, len(numbers)),
        "partition": pa.array(numbers, pa.int32()),
        "key": pa.nulls(len(numbers), pa.binary()),
        "value": pa.array(values * (len(numbers) // max(1, len(values))), pa.binary()),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
