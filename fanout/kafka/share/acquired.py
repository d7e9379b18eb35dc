"""What one poll brought, and what became of each of its records."""

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

    from fanout.kafka.share.poll_columns import PolledRecords
    from fanout.kafka.share.record_sets import Piece

    Rows = NDArray[np.int64]


__all__ = (
    "AcquiredRecords",
    "Expired",
    "describe",
)


_OPEN, _LAPSED, _CLOSED = 0, 1, 2

_NO_ROWS: Final = np.empty(0, np.int64)


@final
class AcquiredRecords:
    """The records of one poll: a member polls again when none of them is open any more.

    Rows are those of the poll. The ones that are delivered are numbered, from the first that the
    member has ever delivered; the positions of its split count them.

    Args:
        polled: What the poll brought.
        deadline: When the first lock may have expired, on the loop's clock.
    """

    def __init__(self, polled: PolledRecords, deadline: float) -> None:
        size = len(polled.offsets)
        self.records: pa.RecordBatch = polled.records
        self.deliveries = polled.deliveries
        self.unreadable = polled.unreadable
        self.deadline = deadline
        self.all_rows: Rows = np.arange(size)
        self.open = size
        self._topics = polled.topics
        self._places = polled.places
        self._offsets = polled.offsets
        self._states = np.full(size, _OPEN, np.int8)
        self._whole = self._pieces(self._places, self._offsets)
        # Those that are delivered, the first of them with the number after this; and the others.
        self._delivered, self._after = _NO_ROWS, 0
        self._others = self.all_rows

    @property
    def open_rows(self) -> Rows:
        """The rows that are not answered for, in whatever way; `open` is how many."""
        return self._with_state(self.all_rows, _OPEN)

    @property
    def unnumbered(self) -> Rows:
        """The open rows that are not delivered."""
        return self._with_state(self._others, _OPEN)

    def number(self, rows: Rows, after: int) -> None:
        """Say that these rows are delivered, in this order, after so many before them."""
        self._delivered, self._after = rows, after
        if len(rows) == len(self.all_rows):
            self._others = _NO_ROWS
        else:
            self._others = np.setdiff1d(self.all_rows, rows)

    def between(self, after: int, until: int) -> Rows:
        """Return the open rows whose numbers lie behind one and not behind the other."""
        return self._with_state(self._numbered(after, until), _OPEN)

    def numbered(self, numbers: Iterable[int], *, lapsed: bool = False) -> Rows:
        """Return the rows that have these numbers, and are open or have lapsed."""
        wanted = np.array([*numbers], np.int64) - self._after - 1
        wanted = wanted[(wanted >= 0) & (wanted < len(self._delivered))]
        return self._with_state(self._delivered[wanted], _LAPSED if lapsed else _OPEN)

    def lapsed(self, until: int) -> Rows:
        """Return the rows that have lapsed, up to a number."""
        return self._with_state(self._numbered(0, until), _LAPSED)

    def close(self, rows: Rows) -> None:
        """Say that these rows are answered for; those that have lapsed stay so."""
        rows = self._with_state(rows, _OPEN)
        self._states[rows] = _CLOSED
        self.open -= len(rows)

    def lapse(self, rows: Rows) -> None:
        """Say that these open rows were delivered, and cannot be acknowledged any more."""
        self._states[rows] = _LAPSED
        self.open -= len(rows)

    def tell(self, rows: Rows) -> list[Piece]:
        """Return rows that have lapsed, and count them as told."""
        self._states[rows] = _CLOSED
        return self.pieces(rows)

    def _numbered(self, after: int, until: int) -> Rows:
        begin, end = max(after - self._after, 0), max(until - self._after, 0)
        return self._delivered[begin:end]

    def _with_state(self, rows: Rows, state: int) -> Rows:
        return rows[self._states[rows] == state] if len(rows) else rows

    def forget_records(self) -> None:
        """Let go of everything but where the records are."""
        self.records = NO_RECORDS

    def of_partition(self, rows: Rows) -> list[tuple[Partition, Rows]]:
        """Return each partition with its rows among some, in their order."""
        places = self._places[rows]
        return [
            (self._partition(place), rows[places == place]) for place in np.unique(places).tolist()
        ]

    def pieces(self, rows: Rows) -> list[Piece]:
        """Return some rows as ranges of offsets."""
        # Mostly it is all of them, several times from their delivery to their acknowledgement.
        if len(rows) == len(self.all_rows):
            return self._whole
        return self._pieces(self._places[rows], self._offsets[rows])

    def _pieces(self, places: NDArray[np.int64], offsets: NDArray[np.int64]) -> list[Piece]:
        follows = (offsets[1:] == offsets[:-1] + 1) & (places[1:] == places[:-1])
        ends = [*(np.flatnonzero(~follows) + 1).tolist(), len(offsets)] if len(offsets) else []
        return [
            (self._partition(int(places[begin])), int(offsets[begin]), int(offsets[end - 1]) + 1)
            for begin, end in pairwise([0, *ends])
        ]

    def _partition(self, place: int) -> Partition:
        return Partition(self._topics[place >> 32], place & 0xFFFFFFFF)

    def at(self, partition: Partition, begin: int, end: int) -> Rows:
        """Return the rows of a piece."""
        place = (self._topics.index(partition.topic) << 32) + partition.number
        chosen = (self._offsets >= begin) & (self._offsets < end) & (self._places == place)
        return np.flatnonzero(chosen)


def describe(pieces: Sequence[Piece]) -> tuple[str, ...]:
    """Name records for people."""
    return tuple(
        f"{partition} offset {begin}"
        if end == begin + 1
        else f"{partition} offsets {begin} to {end - 1}"
        for partition, begin, end in pieces
    )


# Polls. Whoever acknowledges some records at all needs few; for the others none are kept for ever.
_MOST: Final = 1000


@final
class Expired:
    """Remember which they are, for whoever acknowledges them nevertheless."""

    def __init__(self) -> None:
        self._loans: deque[AcquiredRecords] = deque(maxlen=_MOST)

    def add(self, loan: AcquiredRecords) -> None:
        """Note a poll with such records."""
        loan.forget_records()
        self._loans.append(loan)

    def look(self, until: int) -> list[Piece]:
        """Return the records up to a number."""
        return [piece for loan in self._loans for piece in loan.pieces(loan.lapsed(until))]

    def take(self, until: int) -> list[Piece]:
        """Return the records up to a number, and forget them."""
        pieces = [piece for loan in self._loans for piece in loan.tell(loan.lapsed(until))]
        while self._loans and not len(self._loans[0].lapsed(2**62)):
            self._loans.popleft()
        return pieces

    def find(self, numbers: Sequence[int]) -> list[Piece]:
        """Return the records with these numbers, and forget them."""
        return [
            piece
            for loan in self._loans
            for piece in loan.tell(loan.numbered(numbers, lapsed=True))
        ]
