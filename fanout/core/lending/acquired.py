"""The records that one poll of a member acquired, the state of each, and their locks."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Generic, final

import numpy as np
import pyarrow as pa

from fanout.core.lending.seam import P

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fanout.core.lending.seam import Polled, Rows

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
class AcquiredRecords(Generic[P]):
    """The records of one poll. A member polls again when none of them is pending.

    A row is the index of a record in the poll. Each delivered row has a delivery number, which
    counts all records that the member has delivered; positions of its split hold these numbers.
    The `last` rows come for the last time: they have had `most` deliveries.
    """

    def __init__(self, polled: Polled[P], lock_seconds: float, most: int | None) -> None:
        size = len(polled.delivery_counts)
        self.records: pa.RecordBatch = polled.records
        self.delivery_counts = polled.delivery_counts
        self.unreadable = polled.unreadable
        self.last = _NO_ROWS if most is None else np.flatnonzero(polled.delivery_counts >= most)
        self.all_rows: Rows = np.arange(size)
        self.pending = size
        self.groups = polled.lent.groups
        self._lent = polled.lent
        self._lock_seconds = lock_seconds
        self._states = np.full(size, _PENDING, np.int8)
        self._all_pieces = polled.lent.pieces(self.all_rows)
        # The delivered rows, of which the first has the delivery number after `_after`.
        self._delivered, self._after = _NO_ROWS, 0
        self._undelivered = self.all_rows

    @property
    def lock_deadline(self) -> float:
        """When the first lock may expire, by the loop's clock."""
        return self._lent.lock_deadline(self._lock_seconds)

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

    def take_expired(self, rows: Rows) -> list[P]:
        """Return expired rows as pieces, and forget that they expired."""
        self._states[rows] = _DONE
        return self.pieces(rows)

    def drop_records(self) -> None:
        """Free the columns; only states and names stay."""
        self.records = pa.RecordBatch.from_pylist([], schema=self.records.schema)

    def pieces(self, rows: Rows) -> list[P]:
        """Name rows."""
        # Mostly these are all rows, several times between delivery and acknowledgement.
        if len(rows) == len(self.all_rows):
            return self._all_pieces
        return self._lent.pieces(rows)

    def rows_of(self, piece: P) -> Rows:
        """Return the rows of a piece."""
        return self._lent.rows_of(piece)

    def _numbered(self, after: int, until: int) -> Rows:
        begin, end = max(after - self._after, 0), max(until - self._after, 0)
        return self._delivered[begin:end]

    def _with_state(self, rows: Rows, state: int) -> Rows:
        return rows[self._states[rows] == state] if len(rows) else rows


def acknowledge_within(lock_seconds: float) -> float:
    """Return the seconds that a delivered record has for its acknowledgement, at the least."""
    return (1 - _UNTIL_DELIVERY) * lock_seconds


@final
class ExpiredRecords(Generic[P]):
    """Delivered records of one member that lost their locks; a late acknowledgement names them."""

    def __init__(self) -> None:
        self._polls: deque[AcquiredRecords[P]] = deque(maxlen=_MAX_POLLS)

    def add(self, acquired: AcquiredRecords[P]) -> None:
        """Remember the expired records of a poll, without their columns."""
        acquired.drop_records()
        self._polls.append(acquired)

    def up_to(self, until: int) -> list[P]:
        """Return the records up to a delivery number."""
        return [
            piece for acquired in self._polls for piece in acquired.pieces(acquired.expired(until))
        ]

    def take_up_to(self, until: int) -> list[P]:
        """Return the records up to a delivery number, and forget them."""
        ranges = [
            piece
            for acquired in self._polls
            for piece in acquired.take_expired(acquired.expired(until))
        ]
        while self._polls and not len(self._polls[0].expired(_ALL)):
            self._polls.popleft()
        return ranges

    def take(self, numbers: Sequence[int], *, last: bool = True) -> list[P]:
        """Return the records with these delivery numbers, and forget them.

        Without `last`, those of polls with a last delivery are left.
        """
        return [
            piece
            for acquired in self._polls
            if last or not len(acquired.last)
            for piece in acquired.take_expired(acquired.delivered_as(numbers, expired=True))
        ]
