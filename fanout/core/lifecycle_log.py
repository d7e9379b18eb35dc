"""Log the start of a stream, its new and ended splits, and its stop: one line each, at INFO."""

from __future__ import annotations

import asyncio
import logging
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar, final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from fanout.core.events import End, Split
    from fanout.core.progress import Progress, SplitProgress
    from fanout.core.source import Terms
    from fanout.errors import FanOutError

    _T = TypeVar("_T")

log = logging.getLogger(__name__)

# A stream may have thousands of splits, and a line names a few of them.
_NAMED: Final = 5


@final
class LifecycleLog:
    """Log the life of one stream, in the terms of its service.

    Args:
        progress: The splits of the stream.
        terms: What the service calls splits and positions.
    """

    def __init__(self, progress: Progress, terms: Terms) -> None:
        self._progress = progress
        self._terms = terms
        self._started = 0.0

    def started(self, *, stored: bool) -> None:
        """Log where reading begins.

        Args:
            stored: Whether the positions were stored, and do not come from the source's start.
        """
        self._started = asyncio.get_running_loop().time()
        states = [state for state in self._progress if not state.ended]
        ended = sum(1 for _ in self._progress) - len(states)
        log.info(
            "%s %s with %s%s%s",
            self._progress.source,
            "resumes from stored positions" if stored else "starts",
            self._count(states),
            _few(states, self._place),
            f"; {ended} more had been read to the end" if ended else "",
        )

    def found(self, splits: Collection[Split]) -> None:
        """Log splits that have appeared while the stream runs."""
        if splits:
            log.info("found %s%s", self._count(splits, "new "), _few(splits, _with_parents))

    def ended(self, end: End) -> None:
        """Log a split that was read to its end."""
        children = _few(end.children, str)
        log.info("%s was read to its end%s", end.split, children and f"; its children{children}")

    def stopped(self, failure: FanOutError | None) -> None:
        """Log the totals of the stream.

        Args:
            failure: The error that ended the stream, if there is one.
        """
        progress = self._progress
        log.info(
            "%s %s after %.1f s: %d records, %d bytes, %d batches",
            progress.source,
            "stopped" if failure is None else f"failed with {type(failure).__name__}",
            asyncio.get_running_loop().time() - self._started,
            progress.records,
            progress.bytes,
            progress.batches,
        )

    def _place(self, state: SplitProgress) -> str:
        return f"{state.split} {self._terms.position(state.delivered)}".rstrip()

    def _count(self, splits: Collection[object], kind: str = "") -> str:
        return f"{len(splits)} {kind}{self._terms.split}{'' if len(splits) == 1 else 's'}"


def _with_parents(split: Split) -> str:
    return f"{split} (after {' and '.join(split.parents)})" if split.parents else str(split)


def _few(items: Collection[_T], name: Callable[[_T], str]) -> str:
    """Return ": " and the names of the first few; nothing where there are none."""
    shown = ", ".join(name(item) for item in islice(items, _NAMED))
    more = len(items) - _NAMED
    return (shown and f": {shown}") + (f" and {more} more" if more > 0 else "")
