"""The records of a simulated stream that come in damaged frames each time."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from random import Random

    from tests.provers.simulation.kinesis.service.pages import ShardPage
    from tests.provers.simulation.kinesis.service.stream_log import SourceShard

__all__ = ("DamagedRecords",)


@final
class DamagedRecords:
    """Remember which records come in frames that are damaged each time they are sent.

    The frames are cut so that a damaged one holds such records only: what a reader may lose with
    it is known.
    """

    def __init__(self) -> None:
        self._ranges: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        self._dropped: defaultdict[str, set[int]] = defaultdict(set)

    def begin(self, shard: SourceShard, cursor: int, random: Random) -> None:
        """Damage the next records of a shard for good, one to three of them.

        Args:
            shard: The shard.
            cursor: The number after which they come; nothing is damaged where none do.
            random: Where chance comes from.
        """
        place = shard.after(cursor)
        numbers = shard.numbers[place : place + random.randint(1, 3)]
        if numbers:
            self._ranges[shard.shard_id].append((numbers[0], numbers[-1]))

    def covers(self, shard_id: str, number: int) -> bool:
        """Say whether a record can only be lost.

        Args:
            shard_id: Of which shard.
            number: Its sequence number.
        """
        if shard_id not in self._ranges:
            return False
        return any(first <= number <= last for first, last in self._ranges[shard_id])

    def drop(self, shard_id: str, page: ShardPage) -> None:
        """Record that a reader has dropped a damaged frame, and has asked for what follows.

        Args:
            shard_id: Of which shard.
            page: What was in the frame.
        """
        self._dropped[shard_id].update(record.sequence for record in page.records)

    def may_be_lost(self, shard_id: str, number: int) -> bool:
        """Say whether a reader may give up a record.

        Args:
            shard_id: Of which shard.
            number: Its sequence number.
        """
        return self.covers(shard_id, number) or number in self._dropped.get(shard_id, ())

    def clip(self, shard_id: str, page: ShardPage) -> ShardPage:
        """Return the beginning of a page that is damaged as a whole, or not at all.

        A page that is damaged does not end its shard.

        Args:
            shard_id: Of which shard.
            page: The page.
        """
        if shard_id not in self._ranges or not page.records:
            return page
        damaged = [self.covers(shard_id, record.sequence) for record in page.records]
        if not any(damaged):
            return page
        stop = damaged.index(not damaged[0]) if not all(damaged) else len(damaged)
        records = page.records[:stop]
        return replace(page, records=records, continuation=records[-1].sequence, millis_behind=1)
