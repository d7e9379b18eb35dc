"""The records that one poll of a member acquired, the state of each, and their locks."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, Final, final

import numpy as np

from fanout.kafka.partitions import Partition
from fanout.kafka.share.poll_columns import NO_RECORDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from fanout.kafka.share.offset_ranges import OffsetRange
    from fanout.kafka.share.poll_columns import PolledRecords

    Rows = NDArray[np.int64]

# The part of a lock that may pass before its record is delivered. The rest is left for the
# acknowledgement.
_UNTIL_DELIVERY: Final = 0.5
# Polls. A user who acknowledges needs few of them; the limit bounds memory for one who does not.
_MAX_POLLS: Final = 1000
_ALL: Final = 2**62

# The states of a row. An expired row was delivered, and its lock expired before an acknowledgement.
_PENDING, _EXPIRED, _DONE = 0, 1, 2

_NO_ROWS: Final = np.empty(0, np.int64)


@final
class AcquiredRecords:
    """The records of one poll. A member polls again when none of them is pending.

    A row is the index of a record in the poll. Each delivered row has a delivery number, which
    counts all records that the member has delivered; positions of its split hold these numbers.
    The first lock may expire at `lock_deadline`, by the loop's clock.
    """

    def __init__(self, polled: PolledRecords, lock_deadline: float) -> None:
        size = len(polled.offsets)
        self.records: pa.RecordBatch = polled.records
        self.delivery_counts = polled.delivery_counts
        self.unreadable = polled.unreadable
        self.lock_deadline = lock_deadline
        self.all_rows: Rows = np.arange(size)
        self.pending = size
        self._topics = polled.topics
        self._partition_keys = polled.partition_keys
        self._offsets = polled.offsets
        self._states = np.full(size, _PENDING, np.int8)
        self._all_ranges = self._to_ranges(self._partition_keys, self._offsets)
        # The delivered rows, of which the first has the delivery number after `_after`.
        self._delivered, self._after = _NO_ROWS, 0
        self._undelivered = self.all_rows

    @property
    def pending_rows(self) -> Rows:
        """The rows that are neither acknowledged, released, rejected nor expired."""
        return self._with_state(self.all_rows, _PENDING)

    @property
    def undelivered(self) -> Rows:
        """The pending rows that are not delivered."""
        return self._with_state(self._undelivered, _PENDING)

    def mark_delivered(self, rows: Rows, after: int) -> None:
        """Number rows in their order, after the records that the member delivered before."""
        self._delivered, self._after = rows, after
        if len(rows) == len(self.all_rows):
            self._undelivered = _NO_ROWS
        else:
            self._undelivered = np.setdiff1d(self.all_rows, rows)

    def delivered_between(self, after: int, until: int) -> Rows:
        """Return the pending rows whose delivery numbers are above `after` and up to `until`."""
        return self._with_state(self._numbered(after, until), _PENDING)

    def delivered_as(self, numbers: Iterable[int], *, expired: bool = False) -> Rows:
        """Return the pending rows, or the expired ones, that have these delivery numbers."""
        wanted = np.array([*numbers], np.int64) - self._after - 1
        wanted = wanted[(wanted >= 0) & (wanted < len(self._delivered))]
        return self._with_state(self._delivered[wanted], _EXPIRED if expired else _PENDING)

    def expired(self, until: int) -> Rows:
        """Return the expired rows up to a delivery number."""
        return self._with_state(self._numbered(0, until), _EXPIRED)

    def mark_done(self, rows: Rows) -> None:
        """Note that pending rows are acknowledged, released or rejected; expired ones stay so."""
        rows = self._with_state(rows, _PENDING)
        self._states[rows] = _DONE
        self.pending -= len(rows)

    def mark_expired(self, rows: Rows) -> None:
        """Note that pending rows were delivered and cannot be acknowledged any more."""
        self._states[rows] = _EXPIRED
        self.pending -= len(rows)

    def take_expired(self, rows: Rows) -> list[OffsetRange]:
        """Return expired rows as ranges, and forget that they expired."""
        self._states[rows] = _DONE
        return self.ranges(rows)

    def drop_records(self) -> None:
        """Free the columns; only states and offsets stay."""
        self.records = NO_RECORDS

    def by_partition(self, rows: Rows) -> list[tuple[Partition, Rows]]:
        """Group rows by their partitions, in their order."""
        keys = self._partition_keys[rows]
        return [(self._partition(key), rows[keys == key]) for key in np.unique(keys).tolist()]

    def ranges(self, rows: Rows) -> list[OffsetRange]:
        """Return rows as ranges of offsets."""
        # Mostly these are all rows, several times between delivery and acknowledgement.
        if len(rows) == len(self.all_rows):
            return self._all_ranges
        return self._to_ranges(self._partition_keys[rows], self._offsets[rows])

    def rows_in(self, partition: Partition, begin: int, end: int) -> Rows:
        """Return the rows of a range of offsets."""
        key = (self._topics.index(partition.topic) << 32) + partition.number
        chosen = (self._offsets >= begin) & (self._offsets < end) & (self._partition_keys == key)
        return np.flatnonzero(chosen)

    def _numbered(self, after: int, until: int) -> Rows:
        begin, end = max(after - self._after, 0), max(until - self._after, 0)
        return self._delivered[begin:end]

    def _with_state(self, rows: Rows, state: int) -> Rows:
        return rows[self._states[rows] == state] if len(rows) else rows

    def _to_ranges(self, keys: NDArray[np.int64], offsets: NDArray[np.int64]) -> list[OffsetRange]:
        follows = (offsets[1:] == offsets[:-1] + 1) & (keys[1:] == keys[:-1])
        ends = [*(np.flatnonzero(~follows) + 1).tolist(), len(offsets)] if len(offsets) else []
        return [
            (self._partition(int(keys[begin])), int(offsets[begin]), int(offsets[end - 1]) + 1)
            for begin, end in pairwise([0, *ends])
        ]

    def _partition(self, key: int) -> Partition:
        return Partition(self._topics[key >> 32], key & 0xFFFFFFFF)


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
