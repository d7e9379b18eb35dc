"""What a landing is filled from: a stream, the segments of its records, and their limits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, Self, TypeAlias, final

if TYPE_CHECKING:
    from fanout.core.checkpoint import Checkpoint
    from fanout.core.opening import ResumePoint
    from fanout.core.statistics import OnResubscribe, Statistics
    from fanout.landing.segments.bad_records import BadRecordFiles
    from fanout.landing.segments.partitions import PartitionField
    from fanout.landing.segments.segment_filler import FillResult
    from fanout.landing.segments.segments import LandedBatch
    from fanout.landing.storage.storage import Storage


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
    """A landing that is open, and about to be filled."""

    storage: Storage
    run: int  # the number of this run
    resume: ResumePoint  # where it begins to read
    partitions: tuple[PartitionField, ...] = ()  # the directories into which files are put
    bad: BadRecordFiles | None = None  # where bad records are kept


@final
@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How large a batch may become, or a file of one, and how long its records may wait."""

    max_records: int
    max_bytes: int
    max_wait: float  # the most seconds for which the first record waits for others
    min_records: int = 1  # for which a batch waits until `max_wait` is over

    def shared_by(self, landers: int) -> Self:
        """Return the limits of one of some landers that fill a batch together."""
        return replace(
            self,
            max_records=max(1, self.max_records // landers),
            max_bytes=max(1, self.max_bytes // landers),
        )


@final
@dataclass(frozen=True, slots=True)
class ReadingOptions:
    """How a landing reads its source."""

    limits: BatchLimits
    compression: str  # of its files, as Parquet names it
    available_now: bool  # whether what is there at the start is read alone
    on_resubscribe: OnResubscribe | None
