"""How far the simulated service may write ahead of a reader that takes its time."""

from __future__ import annotations

from collections import deque
from typing import final

__all__ = ("ConnectionWindow",)


@final
class ConnectionWindow:
    """Remember when a reader took what was written, and so when its connection had room again.

    Args:
        size: The bytes that the connection holds.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._written = 0
        self._taken: deque[tuple[int, float]] = deque()

    @property
    def free_at(self) -> float:
        """The virtual second at which there was room again; 0 where there always was."""
        freed = self._written - self._size
        while len(self._taken) > 1 and self._taken[1][0] <= freed:
            self._taken.popleft()
        if self._taken and self._taken[0][0] <= freed:
            return self._taken[0][1]
        return 0.0

    def take(self, nbytes: int, now: float) -> None:
        """Take note that the reader takes some more bytes.

        Args:
            nbytes: How many.
            now: The virtual seconds.
        """
        self._written += nbytes
        self._taken.append((self._written, now))
