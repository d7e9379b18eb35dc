"""The locks on acquired records: when they expire, and the delivered records that lost theirs."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanout.kafka.share.acquired import AcquiredRecords
    from fanout.kafka.share.offset_ranges import OffsetRange

# The part of a lock that may pass before its record is delivered. The rest is left for the
# acknowledgement.
_UNTIL_DELIVERY: Final = 0.5
# Polls. A user who acknowledges needs few of them; the limit bounds memory for one who does not.
_MAX_POLLS: Final = 1000
_ALL: Final = 2**62


def acknowledge_within(lock_seconds: float) -> float:
    """Return the seconds that a delivered record has for its acknowledgement, at the least."""
    return (1 - _UNTIL_DELIVERY) * lock_seconds


def lock_deadline(acquired_after: float, lock_seconds: float) -> float:
    """Return when the locks of a poll may begin to expire, if none was taken before this time."""
    return acquired_after + lock_seconds


def is_stale(acquired_after: float, lock_seconds: float, now: float) -> bool:
    """Return whether a poll is too old to be delivered: too little may be left of its locks."""
    return now > acquired_after + _UNTIL_DELIVERY * lock_seconds


@final
class ExpiredRecords:
    """Delivered records of one member that lost their locks; a late acknowledgement names them."""

    def __init__(self) -> None:
        self._polls: deque[AcquiredRecords] = deque(maxlen=_MAX_POLLS)

    def add(self, acquired: AcquiredRecords) -> None:
        """Remember the expired records of a poll, without their columns."""
        acquired.drop_records()
        self._polls.append(acquired)

    def up_to(self, until: int) -> list[OffsetRange]:
        """Return the records up to a delivery number."""
        return [
            range_
            for acquired in self._polls
            for range_ in acquired.ranges(acquired.expired(until))
        ]

    def take_up_to(self, until: int) -> list[OffsetRange]:
        """Return the records up to a delivery number, and forget them."""
        ranges = [
            range_
            for acquired in self._polls
            for range_ in acquired.take_expired(acquired.expired(until))
        ]
        while self._polls and not len(self._polls[0].expired(_ALL)):
            self._polls.popleft()
        return ranges

    def take(self, numbers: Sequence[int]) -> list[OffsetRange]:
        """Return the records with these delivery numbers, and forget them."""
        return [
            range_
            for acquired in self._polls
            for range_ in acquired.take_expired(acquired.delivered_as(numbers, expired=True))
        ]
