"""What has happened so far in a run of the demo."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import final

__all__ = ("Tally",)


@final
@dataclass(slots=True)
class Tally:
    """Count what the producer and the drivers report. One task at a time changes it.

    Args:
        sent: Records that the service has accepted.
        rows: Records in the output by batch id; a batch that is written again is counted once.
        splits: The splits that a query has known.
        resubscriptions: By the error that ended the subscription before.
        restarts: How often a driver was killed and started again.
        replayed: The batches that a new driver was given again.
    """

    sent: int = 0
    rows: dict[int, int] = field(default_factory=dict)
    splits: set[str] = field(default_factory=set)
    resubscriptions: Counter[str] = field(default_factory=Counter)
    restarts: int = 0
    replayed: list[int] = field(default_factory=list)

    @property
    def read(self) -> int:
        """Records in batches that are written."""
        return sum(self.rows.values())

    @property
    def lag(self) -> int:
        """Records that are sent and not yet written."""
        return max(0, self.sent - self.read)
