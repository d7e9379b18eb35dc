"""What a landing is filled from: a stream, and the segments of its records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, final

if TYPE_CHECKING:
    from fanout.core.checkpoint import Checkpoint
    from fanout.core.statistics import Statistics
    from fanout.landing.segment_filler import FillResult
    from fanout.landing.segments import LandedBatch
    from fanout.landing.storage import Storage


class LandedStream(Protocol):
    """The part of a stream that a landing needs."""

    async def acknowledge(self, positions: Checkpoint, /) -> None:
        """Acknowledge to the service what is landed."""

    def stop(self) -> None:
        """End the stream, after what was read."""


class LandedSegments(Protocol):
    """Where the segments of a landing come from."""

    async def run(self) -> None:
        """Fill segments until cancelled."""

    async def next(self, idle: float, /) -> FillResult | LandedBatch:
        """Wait for a segment, or for some that are published already; at most `idle` seconds."""

    def statistics(self) -> Statistics:
        """Return the counters of the stream, with the age of what waits to be taken."""


Reading: TypeAlias = tuple[LandedStream, LandedSegments]
"""What is landed."""


@final
@dataclass(frozen=True, slots=True)
class LandingPlace:
    """A landing that is open, and about to be filled.

    Args:
        storage: Where it is.
        run: The number of this run.
        positions: Continue after these.
        first: Whether no run has landed here before.
    """

    storage: Storage
    run: int
    positions: Checkpoint
    first: bool = False
