"""What a reader must get, held against what it gets."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, final

from fanout.core.checkpoint import Checkpoint
from fanout.core.positions import Cursor, Horizon, Timestamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fanout.core.checkpoint import SplitPosition
    from fanout.core.events import Batch, Gap
    from fanout.core.positions import Position
    from fanout.testing.simulation.log import Row, SourceLog
    from fanout.testing.simulation.service import SimService

__all__ = ("Oracle", "OracleError")


class OracleError(AssertionError):
    """A promise is broken; the text begins with the kind: lost, duplicated, out of order, ..."""


@dataclass(slots=True)
class _Standing:
    """How far one shard has come.

    Args:
        rows: All rows of the shard, in order.
        cursors: Sequence and sub-sequence number of each.
        next: The row that this run of the reader has to get next.
        reached: The row after the last that any run got, or that was lost with notice.
        start: The row with which the very first run had to begin.
        begun: Whether this run of the reader may read the shard, whatever its parents.
        lost: The rows that were lost with notice.
    """

    rows: list[Row]
    cursors: list[tuple[int, int]]
    next: int = 0
    reached: int = 0
    start: int = 0
    begun: bool = False
    lost: set[int] = field(default_factory=set)


@final
class Oracle:
    """Compare each delivery with the slice of the source log after the last stored position.

    Rows are compared by position, key, arrival and bytes; nothing is only counted.

    Args:
        log: What the stream holds.
        service: Which of it has expired.
    """

    def __init__(self, log: SourceLog, service: SimService) -> None:
        self.checked = 0
        self.replayed = 0
        self._log = log
        self._service = service
        self._shards = {
            id_: _Standing(shard.rows, [(row.sequence, row.sub) for row in shard.rows])
            for id_, shard in log.shards.items()
        }
        self._started = False

    def missing(self, broken: str | None) -> dict[str, int]:
        """Return how many rows of each shard are still to come.

        Args:
            broken: A shard that stays broken: nothing is missed of it and of its descendants.
        """
        excused = {broken}
        for shard in self._log.shards.values():
            if excused.intersection(shard.parents):
                excused.add(shard.shard_id)
        return {
            shard_id: missing
            for shard_id, standing in self._shards.items()
            if shard_id not in excused and (missing := self._missing(shard_id, standing))
        }

    def _missing(self, shard_id: str, standing: _Standing) -> int:
        # A shard may end behind records that have expired: no batch tells of them then.
        passed_over = self._expired(shard_id, self._service.passed_over)
        return len(standing.rows) - max(standing.next, passed_over)

    def begin(self, positions: str) -> None:
        """Take note from where a run of the reader goes on.

        Args:
            positions: What it was given, as JSON.

        Raises:
            OracleError: If records are behind it that no run has got.
        """
        stored = Checkpoint.from_json(positions).splits
        for shard_id, standing in self._shards.items():
            place = self._stored_place(shard_id, stored.get(shard_id))
            if not self._started:
                standing.start = standing.reached = place
            standing.next = max(place, standing.start)
            standing.begun = shard_id in stored and isinstance(stored[shard_id].position, Cursor)
            self.replayed += max(0, standing.reached - standing.next)
        self._started = True
        self.check_stored(positions)

    def check_stored(self, positions: str) -> None:
        """Check positions that are about to be stored: everything before them was handed on.

        Raises:
            OracleError: If it was not.
        """
        stored = Checkpoint.from_json(positions).splits
        for shard_id, standing in self._shards.items():
            place = self._stored_place(shard_id, stored.get(shard_id))
            if place > standing.reached:
                raise OracleError(
                    f"lost: the stored position of {shard_id} is after row {place}, but only "
                    f"{standing.reached} were handed on"
                )

    def _stored_place(self, shard_id: str, state: SplitPosition | None) -> int:
        if state is None:
            return 0
        if state.ended:
            return len(self._shards[shard_id].rows)
        return self._place(shard_id, state.position)

    def deliver(self, batch: Batch) -> None:
        """Check one batch.

        Raises:
            OracleError: If it is not exactly what comes next.
        """
        shard_id = batch.split.id
        standing = self._shards[shard_id]
        self._check_lineage(shard_id, standing)
        self._take_gaps(shard_id, standing, batch.gaps)
        if not standing.begun:
            # Whoever begins with the oldest record there is misses none that had expired before.
            standing.lost.update(
                range(standing.next, self._expired(shard_id, self._service.passed_over))
            )
        until = self._place(shard_id, batch.range.until)
        places = [i for i in range(standing.next, until) if i not in standing.lost]
        expected = [_tuple_of(standing.rows[place]) for place in places]
        got = list(_tuples_of(batch))
        if got != expected:
            raise OracleError(_difference(shard_id, got, expected, standing))
        self.checked += len(got)
        standing.next = max(standing.next, until)
        standing.reached = max(standing.reached, standing.next)
        standing.begun = True

    def _check_lineage(self, shard_id: str, standing: _Standing) -> None:
        if standing.begun:
            return
        for parent in self._log.shards[shard_id].parents:
            if missing := self._missing(parent, self._shards[parent]):
                raise OracleError(
                    f"out of order: {shard_id} came before the last {missing} rows of its parent "
                    f"{parent}"
                )

    def _take_gaps(self, shard_id: str, standing: _Standing, gaps: Iterable[Gap]) -> None:
        for gap in gaps:
            first = max(standing.next, self._place(shard_id, gap.after))
            trimmed = self._expired(shard_id, self._service.trimmed)
            match gap.until:
                case None:
                    end = len(standing.rows)
                case Horizon():
                    end = self._expired(shard_id, self._service.passed_over)
                case until:
                    end = self._place(shard_id, until)
            if end > max(first, trimmed):
                raise OracleError(
                    f"lost: row {trimmed} of {shard_id} was given up ({gap.reason}), although the "
                    f"service still had it"
                )
            standing.lost.update(range(first, end))

    def _expired(self, shard_id: str, numbers: Mapping[str, int]) -> int:
        """Return the place of the first row that has not expired."""
        number = numbers.get(shard_id)
        return 0 if number is None else self._place(shard_id, Cursor(number))

    def _place(self, shard_id: str, position: Position) -> int:
        """Return the place of the first row after a position."""
        standing = self._shards[shard_id]
        match position:
            case Horizon():
                return 0
            case Timestamp(millis):
                return bisect_left(standing.rows, millis, key=attrgetter("arrival"))
            case Cursor(sequence, sub):
                return bisect_right(standing.cursors, (sequence, sub))


def _tuple_of(row: Row) -> tuple[Any, ...]:
    return (str(row.sequence), row.sub, row.key, row.arrival, row.data)


def _tuples_of(batch: Batch) -> Iterable[tuple[Any, ...]]:
    columns = batch.records
    arrivals = columns.column("approximateArrivalTimestamp").cast("int64").to_pylist()
    return zip(
        columns.column("sequenceNumber").to_pylist(),
        columns.column("subSequenceNumber").to_pylist(),
        columns.column("partitionKey").to_pylist(),
        [micros // 1000 for micros in arrivals],
        columns.column("data").to_pylist(),
        strict=True,
    )


def _difference(
    shard_id: str,
    got: list[tuple[Any, ...]],
    expected: list[tuple[Any, ...]],
    standing: _Standing,
) -> str:
    """Name what is wrong, without quoting data."""
    numbers = [row[:2] for row in got]
    wanted = [row[:2] for row in expected]
    known = {(str(row.sequence), row.sub): i for i, row in enumerate(standing.rows)}
    places = [known.get((number, sub)) for number, sub in numbers]
    text = (
        f"{shard_id} from row {standing.next} on: rows {places}, not {[known[w] for w in wanted]}"
    )
    if None in places:
        return f"altered: {text}"
    found = [place for place in places if place is not None]
    if len(set(found)) < len(found) or any(place < standing.next for place in found):
        return f"duplicated: {text}"
    if found != sorted(found):
        return f"out of order: {text}"
    if numbers == wanted:
        return f"altered: {text}"
    return f"lost: {text}"
