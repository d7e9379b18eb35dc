"""An entry of a landing, as users see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, final

if TYPE_CHECKING:
    from fanout.core.checkpoint import Checkpoint
    from fanout.landing.log.entries import BatchEntry


@final
@dataclass(frozen=True, slots=True)
class LandedEntry:
    """One entry of a landing; it never changes.

    Args:
        number: Its number; it grows from one entry to the next.
        files: The paths or URIs of its Parquet files.
        rows: Its records.
        bytes: The bytes of its files.
        positions: Every split's position after its records.
        watermark: The stream's watermark after it, in milliseconds since the Unix epoch; None
            where there is none.
    """

    number: int
    files: tuple[str, ...]
    rows: int
    bytes: int
    positions: Checkpoint
    watermark: int | None

    @classmethod
    def of(cls, entry: BatchEntry, location: str) -> Self:
        """Describe an entry.

        Args:
            entry: The entry.
            location: Where its landing is.
        """
        return cls(
            entry.batch_id,
            tuple(f"{location}/{file.name}" for file in entry.segments),
            entry.rows,
            entry.size,
            entry.positions,
            entry.watermark,
        )
