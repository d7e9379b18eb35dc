"""Recognise records that a service lends again, so that a stream delivers each one once.

A service delivers a record again when its lock has expired, when it has lost its state,
or when an acknowledgement did not arrive. A stream that stores its records in segments must drop
the repetition. The stream has a record already if it is in one of these states:

- delivered: it is not known to be stored yet;
- unconfirmed: it is stored, or just being stored, and the service has not confirmed its
  acknowledgement. The list of these is kept as JSON beside the records themselves;
- confirmed: the service confirmed the acknowledgement a moment ago. A copy that another member
  received before that may wait in its client for as long as a lock lasts.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Generic, final

from fanout.core.lending.seam import P

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fanout.core.lending.seam import PieceSet


@final
class DuplicateAction(Enum):
    """What to do with a record that the stream has already."""

    ACCEPT = auto()
    """It is stored: acknowledge it once more."""
    WAIT = auto()
    """It is not stored yet: neither acknowledge nor release it."""


@final
class Dedup(Generic[P]):
    """Track which records a stream has, all members together.

    Duplicates are dropped once `enabled` is set, which `add_unconfirmed` does. Confirmed records
    are remembered for as long as a lock lasts.
    """

    def __init__(self, lock_seconds: float, new_set: Callable[[], PieceSet[P]]) -> None:
        self.enabled = False
        self.unconfirmed = new_set()
        self._lock_seconds = lock_seconds
        self._new_set = new_set
        self._delivered = new_set()
        self._storing = new_set()
        self._confirmed = (new_set(), new_set())
        self._rotated_at = 0.0

    def add_delivered(self, pieces: Iterable[P]) -> None:
        """Note records that are delivered."""
        for piece in pieces:
            self._delivered.add(piece)

    def forget_delivered(self, pieces: Iterable[P]) -> None:
        """Forget delivered records that were released or rejected, or that will not be stored."""
        for piece in pieces:
            self._delivered.remove(piece)

    def add_unconfirmed(self, pieces: Iterable[P]) -> None:
        """Note records that are being stored, together with the list of unconfirmed ones."""
        self.enabled = True
        for piece in pieces:
            self._delivered.remove(piece)
            self._storing.add(piece)
            self.unconfirmed.add(piece)

    def mark_stored(self, pieces: Iterable[P]) -> None:
        """Note records that are stored: each repetition may be acknowledged from now on."""
        for piece in pieces:
            self._storing.remove(piece)

    def mark_confirmed(self, pieces: Iterable[P], now: float) -> None:
        """Note, at a time of the loop, records whose acknowledgement the service has confirmed."""
        self._rotate_confirmed(now)
        for piece in pieces:
            self._delivered.remove(piece)
            self._storing.remove(piece)
            self.unconfirmed.remove(piece)
            if self.enabled:
                self._confirmed[0].add(piece)

    def lent_again(self, piece: P) -> None:
        """Note that a member received records, and may keep them for longer than one lock."""
        for have in self._confirmed:
            for part in have.overlaps(piece):
                self.unconfirmed.add(part)

    def forget(self, is_gone: Callable[[P], bool]) -> None:
        """Forget records whose names are now those of others."""
        for records in (self.unconfirmed, self._delivered, self._storing, *self._confirmed):
            for piece in list(records):
                if is_gone(piece):
                    records.remove(piece)

    def duplicates(self, piece: P) -> list[tuple[P, DuplicateAction]]:
        """Return the parts of a piece that the stream has already, and what to do with each.

        Where two parts overlap, the later one counts.
        """
        if not self.enabled:
            return []
        stored, unstored = (self.unconfirmed, *self._confirmed), (self._delivered, self._storing)
        return [
            *((part, DuplicateAction.ACCEPT) for have in stored for part in have.overlaps(piece)),
            *((part, DuplicateAction.WAIT) for have in unstored for part in have.overlaps(piece)),
        ]

    def _rotate_confirmed(self, now: float) -> None:
        if now - self._rotated_at > self._lock_seconds:
            self._confirmed = (self._new_set(), self._confirmed[0])
            self._rotated_at = now
