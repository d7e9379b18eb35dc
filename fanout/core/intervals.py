"""A process-wide value that tests can override."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, TypeVar, final

if TYPE_CHECKING:
    from collections.abc import Iterator

_T = TypeVar("_T")


@final
class Intervals(Generic[_T]):
    """Hold the intervals that the library keeps towards one service.

    They are those of the process, not of a task: a query of Spark reads in a thread of its own.
    """

    def __init__(self, normal: _T) -> None:
        self._current = normal

    @property
    def current(self) -> _T:
        """Return the intervals that hold now."""
        return self._current

    @contextmanager
    def replaced(self, intervals: _T) -> Iterator[None]:
        """Let other intervals hold for the whole process until the block ends.

        Blocks may be nested. Blocks of two threads that overlap restore the wrong intervals.
        """
        before = self._current
        self._current = intervals
        try:
            yield
        finally:
            self._current = before
