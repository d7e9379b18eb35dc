"""Which records a stream has already, so that one that comes again is not delivered twice.

A share group delivers a record again when its lock has expired, when a broker has lost its memory
of the lock, or when an acknowledgement did not arrive. To whoever keeps records in segments, the
second delivery is an echo of the first:

- what is held was delivered, and nobody has said yet that it is safe;
- what is in doubt is safe, or is just being made safe, and the broker has not confirmed the
  acknowledgement;
- what is settled was confirmed a moment ago. A copy that another member received before that may
  still wait in its client, for as long as a lock lasts.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, final

from fanout.kafka.share.record_sets import RecordSet

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from fanout.kafka.partitions import Partition
    from fanout.kafka.share.record_sets import Piece

__all__ = ("Dedup", "RepeatedRecords")


@final
class RepeatedRecords(Enum):
    """What to do with a record that the stream has already."""

    ACCEPT = auto()
    """It is safe: acknowledge it once more."""
    WAIT = auto()
    """It is not safe yet: neither acknowledge it nor give it back."""


@final
class Dedup:
    """Remember records from their delivery on, all members of a stream together.

    Args:
        seconds: How long a lock lasts, for which settled records are remembered.
    """

    def __init__(self, seconds: float) -> None:
        self.deduplicates = False
        self.doubts = RecordSet()
        self._seconds = seconds
        self._held = RecordSet()
        self._named = RecordSet()
        self._settled = (RecordSet(), RecordSet())
        self._aged_at = 0.0

    def hold(self, pieces: Iterable[Piece]) -> None:
        """Note what is delivered."""
        for piece in pieces:
            self._held.add(*piece)

    def let_go(self, pieces: Iterable[Piece]) -> None:
        """Note what was given back or refused, or is not going to be safe."""
        for piece in pieces:
            self._held.remove(*piece)

    def doubt(self, pieces: Iterable[Piece]) -> None:
        """Note what is just being made safe, together with the doubts about it."""
        self.deduplicates = True
        for piece in pieces:
            self._held.remove(*piece)
            self._named.add(*piece)
            self.doubts.add(*piece)

    def secure(self, pieces: Iterable[Piece]) -> None:
        """Note what is safe: it may be acknowledged from now on, however often it comes."""
        for piece in pieces:
            self._named.remove(*piece)

    def settle(self, pieces: Iterable[Piece], now: float) -> None:
        """Note what the broker has confirmed.

        Args:
            pieces: The records.
            now: The time of the loop, in seconds.
        """
        self._age(now)
        for piece in pieces:
            self._held.remove(*piece)
            self._named.remove(*piece)
            self.doubts.remove(*piece)
            if self.deduplicates:
                self._settled[0].add(*piece)

    def forget_below(self, starts: Mapping[Partition, int]) -> None:
        """Give up doubts about records that cannot come again, because the group begins behind."""
        for partition, start in starts.items():
            self.doubts.remove(partition, 0, start)

    def forget_topics(self, topics: Container[str]) -> None:
        """Forget records of topics that others of the same name have replaced."""
        for records in (self.doubts, self._held, self._named, *self._settled):
            for piece in list(records):
                if piece[0].topic in topics:
                    records.remove(*piece)

    def echoes(self, piece: Piece) -> list[tuple[int, int, RepeatedRecords]]:
        """Return which parts of a piece the stream has already, and what to do with each.

        Of two that overlap the later one counts.
        """
        if not self.deduplicates:
            return []
        safe, unsafe = (self.doubts, *self._settled), (self._held, self._named)
        return [
            *((*part, RepeatedRecords.ACCEPT) for known in safe for part in known.overlaps(*piece)),
            *((*part, RepeatedRecords.WAIT) for known in unsafe for part in known.overlaps(*piece)),
        ]

    def _age(self, now: float) -> None:
        if now - self._aged_at > self._seconds:
            self._settled = (RecordSet(), self._settled[0])
            self._aged_at = now
