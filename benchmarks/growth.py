"""Whether a series of figures, such as the memory of a process, grows without an end.

A figure that is stable goes up and down. The time is divided into blocks of the same length, and
the median of each block is compared with those of all later blocks, which is the test of Mann and
Kendall; the slope is that of Theil and Sen, the median of all slopes between two blocks. Both hold
for figures that are distributed in any way, and a few outliers change nothing. What grows steadily,
and by more than a figure may gain in an hour, is a leak.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations, pairwise
from statistics import median
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ("BLOCKS", "Growth", "growth")

BLOCKS: Final = 12
# By chance, one of so many stable figures seems to grow.
_CHANCE: Final = 0.01


@dataclass(frozen=True, slots=True)
class Growth:
    """How a figure has grown.

    Args:
        level: Its median.
        per_hour: What it gains in an hour.
        chance: How likely a stable figure seems to grow as steadily.
        limit: What it may gain in an hour.
    """

    level: float
    per_hour: float
    chance: float
    limit: float = 0.0

    @property
    def flat(self) -> bool:
        """Whether the slope cannot be distinguished from zero, or is within its limit."""
        return self.chance > _CHANCE or self.per_hour <= self.limit


def growth(seconds: Sequence[float], figures: Sequence[float], limit: float = 0.0) -> Growth:
    """Return how a figure has grown.

    Args:
        seconds: When each was taken, in order.
        figures: The figures.
        limit: What the figure may gain in an hour.

    Raises:
        ValueError: If there are fewer than `BLOCKS`.
    """
    if len(figures) < BLOCKS:
        raise ValueError(f"{len(figures)} samples are too few; {BLOCKS} are needed")
    bounds = [len(figures) * number // BLOCKS for number in range(BLOCKS + 1)]
    spans = [slice(*pair) for pair in pairwise(bounds)]
    times = [median(seconds[span]) for span in spans]
    values = [median(figures[span]) for span in spans]
    pairs = list(combinations(zip(times, values, strict=True), 2))
    slope = median((after[1] - before[1]) / (after[0] - before[0]) for before, after in pairs)
    rises = sum((after[1] > before[1]) - (after[1] < before[1]) for before, after in pairs)
    return Growth(median(values), slope * 3600, _chance(rises, values), limit)


def _chance(rises: int, values: Sequence[float]) -> float:
    """Return how likely a stable figure rises in so many pairs more than it falls."""
    count = len(values)
    ties = [values.count(value) for value in set(values)]
    variance = (
        count * (count - 1) * (2 * count + 5) - sum(t * (t - 1) * (2 * t + 5) for t in ties)
    ) / 18
    if rises <= 0 or not variance:
        return 1.0
    return math.erfc((rises - 1) / math.sqrt(2 * variance)) / 2
