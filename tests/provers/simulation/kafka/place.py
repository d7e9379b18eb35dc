"""How far one run of a reader has come in one partition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

__all__ = ("PartitionProgress",)


@final
@dataclass(slots=True)
class PartitionProgress:
    """How far one run of the reader has come in one partition.

    Args:
        next: The offset that it has to get next, or a later one.
        era: In which era of the partition that is.
        begun: Whether it was begun at an offset; otherwise it begins with the oldest there is.
        acknowledged: The offset after the last that its job has acknowledged, as the latest.
        furthest: The highest of those, whatever has become of the partition since then.
        records: The records that it has got.
        nbytes: Their bytes in memory.
        gaps: How often it was told that records are lost.
        anew: Whether it has begun anew, with a log that has taken the place of another one.
    """

    next: int
    era: int
    begun: bool
    acknowledged: int
    furthest: int
    records: int = 0
    nbytes: int = 0
    gaps: int = 0
    anew: bool = False
