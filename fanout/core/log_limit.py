"""Log the first lines of a kind in a minute, and then one line for all others of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from collections.abc import Callable

WINDOW: Final = 60.0
"""Seconds for which lines of a kind are counted, from its first line."""

MAX_LINES: Final = 10
"""So many lines of a kind are logged in that time."""


@final
@dataclass(slots=True)
class _Window:
    """The lines of one kind since its first one."""

    until: float  # when it ends, in the loop's time
    lines: int = 0  # lines that were logged
    # Those that were not, by what they were about.
    left_out: Counter[str] = field(default_factory=Counter)
    end: asyncio.TimerHandle | None = None  # ends it where lines were left out


@final
class LogLimit:
    """Bound the lines that a stream of thousands of splits logs.

    `summarize` logs one line for the lines of a kind that were left out; it gets the kind, and the
    number of lines by what they were about.
    """

    def __init__(self, summarize: Callable[[str, Counter[str]], None]) -> None:
        self._summarize = summarize
        self._windows: dict[str, _Window] = {}

    def admits(self, kind: str, about: str) -> bool:
        """Return whether a line is to be logged; one that is not is counted by what it is about."""
        loop = asyncio.get_running_loop()
        window = self._windows.get(kind)
        if window is None or (window.end is None and window.until <= loop.time()):
            window = self._windows[kind] = _Window(loop.time() + WINDOW)
        if window.lines < MAX_LINES:
            window.lines += 1
            return True
        if window.end is None:
            window.end = loop.call_at(window.until, self._end, kind)
        window.left_out[about] += 1
        return False

    def close(self) -> None:
        """Log what is still to be summarized; idempotent."""
        for kind in list(self._windows):
            self._end(kind)

    def _end(self, kind: str) -> None:
        window = self._windows.pop(kind)
        if window.end is not None:
            window.end.cancel()
            self._summarize(kind, window.left_out)
