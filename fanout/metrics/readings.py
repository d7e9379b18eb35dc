"""What one collection reads of a stream."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from fanout.core.statistics import SplitState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.core.statistics import SplitStatistics, Statistics

# Splits in these states deliver nothing.
_UNREAD: Final = frozenset({SplitState.SUBSCRIBING, SplitState.BACKING_OFF, SplitState.FAILED})
# Such splits do not count as lagging.
_OVER: Final = frozenset({SplitState.WAITING, SplitState.ENDED})


@final
@dataclass(frozen=True, slots=True)
class StreamReading:
    """The statistics of a stream at one moment."""

    statistics: Statistics
    now: int  # in milliseconds since the Unix epoch
    worst: Mapping[str, SplitStatistics]  # the splits that lag most, by id

    @classmethod
    def take(cls, statistics: Statistics, now: int, worst_splits: int) -> StreamReading:
        """Choose the splits that lag most."""
        # A split that is not subscribed to has no lag: there the age of its last record counts. One
        # that could never be read comes first.

        def height(item: tuple[str, SplitStatistics]) -> tuple[float, int, int]:
            split = item[1]
            known = (split.lag, age(split, now), math.inf if split.state in _UNREAD else -1.0)
            seconds = next(each for each in known if each is not None)
            return seconds, split.behind or 0, split.resubscriptions

        read = (item for item in statistics.splits.items() if item[1].state not in _OVER)
        return cls(statistics, now, dict(heapq.nlargest(worst_splits, read, key=height)))

    @property
    def lag(self) -> float | None:
        """Seconds that the slowest split is behind, or that records wait here for a batch."""
        lags = (lag(split, self.now) for split in self.statistics.splits.values())
        return max(
            (each for each in (self.statistics.lag, *lags) if each is not None), default=None
        )

    @property
    def age(self) -> float | None:
        """Seconds since the newest record of all splits arrived at the service; None before one."""
        ages = (age(split, self.now) for split in self.statistics.splits.values())
        return min((each for each in ages if each is not None), default=None)


def age(split: SplitStatistics, now: int) -> float | None:
    """Return the seconds since the last record of a split arrived at the service."""
    return None if split.newest is None else max(0, now - split.newest) / 1000


def lag(split: SplitStatistics, now: int) -> float | None:
    """Return the seconds that a split is behind; None where they are not known."""
    # A broker of Kafka says how many records are left, and not how old they are: these are no older
    # than the time since the last record arrived.
    return age(split, now) if split.lag is None and split.behind else split.lag
