"""The rows of one shard, and which of them any reader has got."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from fanout.core.positions import Cursor, Horizon, Timestamp

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.core.checkpoint import SplitPosition
    from fanout.core.positions import Position
    from tests.provers.simulation.kinesis.service.stream_log import KinesisRow

__all__ = ("ShardRows",)


@dataclass(slots=True)
class ShardRows:
    """The rows that all runs of the reader have got of one shard.

    Args:
        rows: All rows of the shard, in order.
        cursors: Sequence and sub-sequence number of each.
        reached: The row after the last that any run got, or that was lost with notice.
    """

    rows: list[KinesisRow]
    cursors: list[tuple[int, int]]
    reached: int = 0

    def place(self, position: Position) -> int:
        """Return the place of the first row after a position."""
        match position:
            case Horizon():
                return 0
            case Timestamp(millis):
                return bisect_left(self.rows, millis, key=attrgetter("arrival"))
            case Cursor(sequence, sub):
                return bisect_right(self.cursors, (sequence, sub))

    def stored_place(self, state: SplitPosition | None) -> int:
        """Return the place of the first row after what is stored of the shard."""
        if state is None:
            return 0
        return len(self.rows) if state.ended else self.place(state.position)

    def expired(self, shard_id: str, numbers: Mapping[str, int]) -> int:
        """Return the place of the first row after the number of the shard.

        Args:
            shard_id: The shard.
            numbers: Of some shards, the newest number that has expired.
        """
        number = numbers.get(shard_id)
        return 0 if number is None else self.place(Cursor(number))
