"""What one poll brought, and what became of each of its records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import numpy as np

from fanout.kafka.share.polled import NO_RECORDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from fanout.kafka.partitions import Partition
    from fanout.kafka.share.client import Place
    from fanout.kafka.share.polled import Polled
    from fanout.kafka.share.record_sets import Piece

    Rows = NDArray[np.int64]

__all__ = ("Loan", "describe")

_NO_NUMBER: Final = 2**62
_OPEN, _LAPSED, _CLOSED = 0, 1, 2


@final
class Loan:
    """The records of one poll: a member polls again when none of them is open any more.

    Rows are those of the poll. The ones that are delivered are numbered, from the first that the
    member has ever delivered; the positions of its split count them.

    Args:
        polled: What the poll brought.
        deadline: When the first lock may have expired, on the loop's clock.
    """

    def __init__(self, polled: Polled, deadline: float) -> None:
        self.records: pa.RecordBatch = polled.records
        self.unreadable = polled.unreadable
        self.deadline = deadline
        self._whole: list[Piece] | None = None
        self._partitions = polled.partitions
        self._places = polled.places
        self._offsets: NDArray[np.int64] = polled.records.column("offset").to_numpy()
        self._states = np.full(len(polled.places), _OPEN, np.int8)
        self._numbers = np.full(len(polled.places), _NO_NUMBER, np.int64)

    @property
    def all_rows(self) -> Rows:
        """Every row."""
        return np.arange(len(self._states))

    @property
    def open_rows(self) -> Rows:
        """The rows that are not answered for, in whatever way."""
        return np.flatnonzero(self._states == _OPEN)

    @property
    def unnumbered(self) -> Rows:
        """The open rows that are not delivered."""
        return np.flatnonzero((self._states == _OPEN) & (self._numbers == _NO_NUMBER))

    def number(self, rows: Rows, after: int) -> None:
        """Say that these rows are delivered, in this order, after so many before them."""
        self._numbers[rows] = np.arange(after + 1, after + 1 + len(rows))

    def between(self, after: int, until: int) -> Rows:
        """Return the open rows whose numbers lie behind one and not behind the other."""
        chosen = (self._numbers > after) & (self._numbers <= until)
        return np.flatnonzero((self._states == _OPEN) & chosen)

    def numbered(self, numbers: Iterable[int], *, lapsed: bool = False) -> Rows:
        """Return the rows that have these numbers, and are open or have lapsed."""
        state = _LAPSED if lapsed else _OPEN
        return np.flatnonzero((self._states == state) & np.isin(self._numbers, [*numbers]))

    def lapsed(self, until: int) -> Rows:
        """Return the rows that have lapsed, up to a number."""
        return np.flatnonzero((self._states == _LAPSED) & (self._numbers <= until))

    def close(self, rows: Rows) -> None:
        """Say that these rows are answered for; those that have lapsed stay so."""
        self._states[rows[self._states[rows] == _OPEN]] = _CLOSED

    def lapse(self, rows: Rows) -> None:
        """Say that these rows were delivered, and cannot be acknowledged any more."""
        self._states[rows] = _LAPSED

    def tell(self, rows: Rows) -> list[Piece]:
        """Return rows that have lapsed, and count them as told."""
        self._states[rows] = _CLOSED
        return self.pieces(rows)

    def forget_records(self) -> None:
        """Let go of everything but where the records are."""
        self.records = NO_RECORDS

    def places(self, rows: Rows) -> list[Place]:
        """Return where some rows are, one by one."""
        topics = [(partition.topic, partition.number) for partition in self._partitions]
        offsets = self._offsets[rows].tolist()
        where = zip(self._places[rows].tolist(), offsets, strict=True)
        return [(*topics[place], offset) for place, offset in where]

    def of_partition(self, rows: Rows) -> list[tuple[Partition, Rows]]:
        """Return each partition with its rows among some, in their order."""
        places = self._places[rows]
        return [
            (partition, rows[places == place])
            for place, partition in enumerate(self._partitions)
            if (places == place).any()
        ]

    def pieces(self, rows: Rows) -> list[Piece]:
        """Return some rows as ranges of offsets."""
        if len(rows) < len(self._states):
            return self._pieces(rows)
        # Mostly it is all of them, several times from their delivery to their acknowledgement.
        if self._whole is None:
            self._whole = self._pieces(rows)
        return self._whole

    def _pieces(self, rows: Rows) -> list[Piece]:
        pieces: list[Piece] = []
        for partition, of_it in self.of_partition(rows):
            offsets = np.sort(self._offsets[of_it])
            edges = np.flatnonzero(np.diff(offsets) != 1) + 1
            pieces += [
                (partition, int(run[0]), int(run[-1]) + 1) for run in np.split(offsets, edges)
            ]
        return pieces

    def at(self, partition: Partition, begin: int, end: int) -> Rows:
        """Return the rows of a piece."""
        place = self._partitions.index(partition)
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
