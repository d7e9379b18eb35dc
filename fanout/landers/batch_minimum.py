"""Decide when landers have landed enough for a batch, and when they are asked for more."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from fanout.landers.session import LanderSession
    from fanout.landing.segments.segment_file import SegmentFile


@final
class BatchMinimum:
    """Let a batch wait for so many records, as long as no lander ends the wait.

    Landers tell how many records they hold in open segments. They are asked for these when all
    together have enough. A segment that comes unasked ends the wait: its first record has waited
    for `max_wait`, or it is full, or one of its splits has ended or moves. The others are asked for
    what they hold then, so that a wait ends in one batch.
    """

    def __init__(self, records: int) -> None:
        self._records = records
        self._asked: set[LanderSession] = set()

    def to_ask(
        self,
        sessions: Iterable[LanderSession],
        landed: Collection[tuple[LanderSession, SegmentFile]],
    ) -> frozenset[LanderSession]:
        """Return the landers that are to land now what they hold.

        `landed` are the segments that no batch has taken: their landers cannot land another.
        """
        if self._asked or self._enough(landed):
            return frozenset()
        waiting = {session.lander for session, _ in landed}
        holding = [one for one in sessions if one.held and one.lander not in waiting]
        if landed or sum(session.held for session in holding) >= self._records:
            self._asked.update(holding)
        return frozenset(self._asked)

    def is_met(self, landed: Collection[tuple[LanderSession, SegmentFile]]) -> bool:
        """Return whether a batch takes what has landed, after `to_ask`."""
        return bool(landed) and (not self._asked or self._enough(landed))

    def answered(self, session: LanderSession) -> None:
        """Take in that a lander has landed, or has gone."""
        self._asked.discard(session)

    def taken(self) -> None:
        """Begin anew: a batch has taken what had landed."""
        self._asked.clear()

    def _enough(self, landed: Iterable[tuple[LanderSession, SegmentFile]]) -> bool:
        return sum(file.rows for _, file in landed) >= self._records
