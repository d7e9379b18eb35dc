"""What a query says that it has done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ("QueryProgress",)


@final
@dataclass(frozen=True, slots=True)
class QueryProgress:
    """What a query has done.

    Args:
        batch_id: The latest batch that the handler has finished; None before the first.
        batches: Batches that the handler has finished in this run.
        rows: Records in the latest batch.
        bytes: Bytes of its segment.
        rows_per_second: Its records per second, from when they were there to the handler's return.
        total_rows: Records in all batches of this run.
        lag: Seconds behind the newest record, per split; None where the service has not said it.
        resubscriptions: Recoverable ends of subscriptions in this run.
    """

    batch_id: int | None
    batches: int
    rows: int
    bytes: int
    rows_per_second: float
    total_rows: int
    lag: Mapping[str, float | None]
    resubscriptions: int
