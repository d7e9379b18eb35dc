"""When an unassigned split may be assigned again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from fanout.core.backoff import Pacing

# A lander that has lost the coordinator may read for as long: its lease, and a bit.
_LEASE_SECONDS: Final = 5.5


@final
class Leases:
    """Keep two landers from reading one split, and to what the service allows about a split.

    Times are those of the loop's clock, in seconds.
    """

    def __init__(self, pacing: Pacing) -> None:
        self._pacing = pacing
        self._not_before: dict[str, float] = {}
        # The lost lander that may still read a split, and when it was subscribed to at the latest.
        self._leased: dict[str, tuple[int, float]] = {}

    def is_over(self, split_id: str, now: float) -> bool:
        """Return whether a split may be given to a lander."""
        return self._not_before.get(split_id, now) <= now

    def given(self, split_id: str) -> None:
        """Note that a lander has a split."""
        self._not_before.pop(split_id, None)
        self._leased.pop(split_id, None)

    def moved(self, split_id: str, now: float) -> None:
        """Note that a lander has stopped to read a split."""
        self._not_before[split_id] = now + max(self._pacing.spacing, self._pacing.handover)

    def lost(self, split_id: str, lander: int, subscribed: float, now: float) -> None:
        """Note that a lander which has a split is gone, and may read on until its lease is over.

        It has subscribed to the split at the time `subscribed` at the latest.
        """
        self._not_before[split_id] = now + _LEASE_SECONDS
        self._leased[split_id] = lander, subscribed

    def release(self, lander: int, now: float) -> None:
        """Free what a lander had: it connects again when it has closed its subscriptions.

        A new attempt of it means that Spark has ended the one before. Its splits are read on as
        soon as the service allows after the last calls that it may have made.
        """
        for split_id, (former, subscribed) in list(self._leased.items()):
            if former == lander:
                del self._leased[split_id]
                free_at = max(subscribed + self._pacing.spacing, now + self._pacing.handover)
                self._not_before[split_id] = min(self._not_before[split_id], free_at)
