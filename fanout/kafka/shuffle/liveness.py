"""For how long the producers of a partition have said nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ("Liveness",)


@final
class Liveness:
    """Measure how long each producer has said nothing, in the reader's waits alone.

    Only the time counts in which the reader waits at the end of its partition: a reader that lags
    behind, or whose consumer is busy, would blame producers for what is its own.

    Args:
        timeout: How many seconds are too many; None for none.
    """

    def __init__(self, timeout: float | None) -> None:
        self.timeout = timeout
        self._clock = 0.0
        self._generation: int | None = None
        self._begun = 0.0
        self._heard: dict[int, float] = {}

    def hear(self, generation: int, producer: int) -> None:
        """Note that a producer of a generation said something."""
        if generation != self._generation:
            self._generation, self._begun = generation, self._clock
            self._heard = {}
        self._heard[producer] = self._clock

    def waited(self, seconds: float) -> None:
        """Note that the reader waited at the end of the partition, and how long."""
        self._clock += seconds

    def too_long(self, awaited: Iterable[int]) -> list[int]:
        """Return which of some producers have said nothing for too long."""
        if self.timeout is None:
            return []
        since = self._clock - self.timeout
        return [number for number in awaited if self._heard.get(number, self._begun) <= since]
