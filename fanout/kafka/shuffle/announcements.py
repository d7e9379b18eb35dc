"""What a producer of a shuffle says, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from fanout.kafka.shuffle.frames import EndFrame, HelloFrame, IdleFrame, WatermarkFrame

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanout.kafka.shuffle.frames import ControlFrame

__all__ = ("Announcements",)

# A reader that begins in the middle of the topic has no watermark before it hears of all producers.
_AGAIN: Final = 60.0


@final
class Announcements:
    """Find the words of one producer. Times are in seconds, of any clock that does not go back.

    Args:
        hello: How it introduces itself.
    """

    def __init__(self, hello: HelloFrame) -> None:
        self._hello = hello
        self._greeted: float | None = None
        # An end is not the last word where it was never committed: its call was cancelled.
        self._away = False
        self.watermark: int | None = None

    def before_records(self, now: float) -> list[ControlFrame]:
        """Return what has to be said before the next records: mostly nothing."""
        if not self._away:
            return self._greet(now)
        # Readers have to wait for this producer again before they take its records in.
        if self.watermark is None:
            return [self._hello]
        return [*self._greet(now), self._of(WatermarkFrame, self.watermark)]

    def advance(self, millis: int, now: float) -> list[ControlFrame]:
        """Return what tells a watermark; nothing where it is no higher than the last one."""
        if self.watermark is not None and millis <= self.watermark:
            return []
        return [*self._greet(now), self._of(WatermarkFrame, millis)]

    def rest(self, now: float) -> list[ControlFrame]:
        """Return what tells that nothing comes for now."""
        return [*self._greet(now), self._of(IdleFrame)]

    def end(self, now: float) -> list[ControlFrame]:
        """Return what tells that nothing comes any more."""
        return [*self._greet(now), self._of(EndFrame)]

    def said(self, frames: Sequence[ControlFrame], now: float) -> None:
        """Note what was said indeed."""
        for frame in frames:
            self._away = isinstance(frame, IdleFrame | EndFrame)
            match frame:
                case HelloFrame():
                    self._greeted = now
                case WatermarkFrame(millis=millis):
                    self.watermark = millis
                case _:
                    pass

    def _greet(self, now: float) -> list[ControlFrame]:
        if self._greeted is not None and now - self._greeted < _AGAIN:
            return []
        return [self._hello]

    def _of(self, kind: type[WatermarkFrame | IdleFrame | EndFrame], *numbers: int) -> ControlFrame:
        return kind(self._hello.producer, self._hello.generation, *numbers)
