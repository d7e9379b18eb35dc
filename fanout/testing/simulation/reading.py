"""What one run of a reader gets, held against what it must get."""

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
    from fanout.testing.simulation.life import Life
    from fanout.testing.simulation.log import Row
    from fanout.testing.simulation.oracle import Oracle

__all__ = ("OracleError", "Reading", "ShardRows", "Standing")


class OracleError(AssertionError):
    """A promise is broken; the text begins with the kind: lost, duplicated, out of order, ..."""


@dataclass(slots=True)
class ShardRows:
    """What all runs of the reader have got of one shard.

    Args:
        rows: All rows of the shard, in order.
        cursors: Sequence and sub-sequence number of each.
        start: The row with which the very first run had to begin.
        reached: The row after the last that any run got, or that was lost with notice.
    """

    rows: list[Row]
    cursors: list[tuple[int, int]]
    start: int = 0
    reached: int = 0

    def place(self, position: Position) -> int:
        """Return the place of the first row after a position."""
        match position:
            case Horizon():
                return 0
            case Timestamp(millis):
                return bisect_left(self.rows, millis, key=attrgetter("arrival"))
            case Cursor(sequence, sub):
                return bisect_right(self.cursors, (sequence, sub))

    def stored_place(self, state: SplitPosition | None) -> int:
        """Return the place of the first row after what is stored of the shard."""
        if state is None:
            return 0
        return len(self.rows) if state.ended else self.place(state.position)

    def expired(self, shard_id: str, numbers: Mapping[str, int]) -> int:
        """Return the place of the first row after the number of the shard."""
        number = numbers.get(shard_id)
        return 0 if number is None else self.place(Cursor(number))


@dataclass(slots=True)
class Standing:
    """How far one run of the reader has come in one shard.

    Args:
        next: The row that it has to get next.
        begun: Whether it may read the shard, whatever its parents.
        lost: The rows that were lost with notice.
        records: The records that it has got.
        nbytes: Their bytes in memory.
        gaps: How often it was told that records are lost.
        gap_millis: How far apart the records around those are, at most.
        newest: When the last record that it has got arrived.
        acknowledged: The row after the last that its job has acknowledged.
    """

    next: int
    begun: bool
    lost: set[int] = field(default_factory=set)
    records: int = 0
    nbytes: int = 0
    gaps: int = 0
    gap_millis: int = 0
    newest: int | None = None
    acknowledged: int = 0


@final
class Reading:
    """Compare what one run gets with the slice of the source log after its stored position.

    Rows are compared by position, key, arrival and bytes; nothing is only counted.

    Args:
        oracle: What all runs have got together.
        life: The run.
        stored: The positions from which it goes on.
    """

    def __init__(self, oracle: Oracle, life: Life, stored: Mapping[str, SplitPosition]) -> None:
        self.standings: dict[str, Standing] = {}
        self._oracle = oracle
        self._life = life
        for shard_id, shard in oracle.shards.items():
            state = stored.get(shard_id)
            begun = state is not None and isinstance(state.position, Cursor)
            place = max(shard.stored_place(state), shard.start)
            newest = None if state is None else state.newest
            standing = Standing(place, begun, newest=newest, acknowledged=place)
            self.standings[shard_id] = standing
            oracle.replayed += max(0, shard.reached - standing.next)

    def missing(self, broken: str | None) -> dict[str, int]:
        """Return how many rows of each shard are still to come.

        Args:
            broken: A shard that stays broken: nothing is missed of it and of its descendants.
        """
        excused = {broken}
        for shard in self._oracle.log.shards.values():
            if excused.intersection(shard.parents):
                excused.add(shard.shard_id)
        return {
            shard_id: missing
            for shard_id in self.standings
            if shard_id not in excused and (missing := self._missing(shard_id))
        }

    def _missing(self, shard_id: str) -> int:
        # A shard may end behind records that have expired: no batch tells of them then.
        return len(self._oracle.shards[shard_id].rows) - self.standing_place(shard_id)

    def acknowledge(self, splits: Mapping[str, Position]) -> None:
        """Take note of what the job has said that it is done with."""
        for shard_id, position in splits.items():
            standing = self.standings[shard_id]
            place = self._oracle.shards[shard_id].place(position)
            standing.acknowledged = max(standing.acknowledged, place)

    def check_acknowledged(self, positions: str) -> None:
        """Check positions that the stream calls acknowledged: everything before them is.

        Raises:
            OracleError: If it is not.
        """
        stored = Checkpoint.from_json(positions).splits
        for shard_id, standing in self.standings.items():
            place = self._oracle.shards[shard_id].stored_place(stored.get(shard_id))
            passed_over = self._expired(shard_id, self._life.passed_over)
            early = range(max(standing.acknowledged, passed_over), place)
            if not standing.lost.issuperset(early):
                raise OracleError(
                    f"lost: row {early[0]} of {shard_id} is not acknowledged, but the position is "
                    f"said to be after row {place}"
                )

    def check_stored(self, positions: str) -> None:
        """Check positions that are about to be stored: everything before them was handed on.

        Raises:
            OracleError: If it was not.
        """
        stored = Checkpoint.from_json(positions).splits
        for shard_id, shard in self._oracle.shards.items():
            place = shard.stored_place(stored.get(shard_id))
            if place > max(shard.reached, self._expired(shard_id, self._life.passed_over)):
                raise OracleError(
                    f"lost: the stored position of {shard_id} is after row {place}, but only "
                    f"{shard.reached} were handed on"
                )
            shard.reached = max(shard.reached, place)

    def deliver(self, batch: Batch) -> None:
        """Check one batch.

        Raises:
            OracleError: If it is not exactly what comes next.
        """
        shard_id = batch.split.id
        shard, standing = self._oracle.shards[shard_id], self.standings[shard_id]
        self._check_lineage(shard_id, standing)
        self._take_gaps(shard_id, standing, batch.gaps)
        if not standing.begun:
            # Whoever begins with the oldest record there is misses none that had expired before.
            standing.lost.update(
                range(standing.next, self._expired(shard_id, self._life.passed_over))
            )
        until = shard.place(batch.range.until)
        places = [i for i in range(standing.next, until) if i not in standing.lost]
        expected = [_tuple_of(shard.rows[place]) for place in places]
        got = list(_tuples_of(batch))
        if got != expected:
            raise OracleError(_difference(shard_id, got, expected, shard.rows, standing.next))
        self._oracle.checked += len(got)
        standing.next = max(standing.next, until)
        shard.reached = max(shard.reached, standing.next)
        standing.begun = True
        standing.records += batch.num_records
        standing.nbytes += batch.nbytes
        if batch.gaps and standing.newest is not None:
            standing.gap_millis += max(0, got[0][3] - standing.newest)
        standing.newest = got[-1][3]

    def place_of(self, shard_id: str, position: Position) -> int:
        """Return the place of the first row after a position that the stream tells."""
        return self._oracle.shards[shard_id].place(position)

    def generations(self) -> int:
        """Return how many shards of which rows are missing continue each other; at least one."""
        depths: dict[str, int] = {}
        for shard_id, shard in self._oracle.log.shards.items():
            before = max((depths[parent] for parent in shard.parents), default=0)
            depths[shard_id] = before + bool(before or self._missing(shard_id))
        return max(1, *depths.values())

    def standing_place(self, shard_id: str) -> int:
        """Return the place of the next row, behind what had expired when the shard was begun."""
        return max(self.standings[shard_id].next, self._expired(shard_id, self._life.passed_over))

    def _check_lineage(self, shard_id: str, standing: Standing) -> None:
        if standing.begun:
            return
        for parent in self._oracle.log.shards[shard_id].parents:
            if missing := self._missing(parent):
                raise OracleError(
                    f"out of order: {shard_id} came before the last {missing} rows of its parent "
                    f"{parent}"
                )

    def _take_gaps(self, shard_id: str, standing: Standing, gaps: Iterable[Gap]) -> None:
        shard = self._oracle.shards[shard_id]
        for gap in gaps:
            standing.gaps += 1
            first = max(standing.next, shard.place(gap.after))
            trimmed = self._expired(shard_id, self._oracle.service.trimmed)
            match gap.until:
                case None:
                    end = len(shard.rows)
                case Horizon():
                    end = self._expired(shard_id, self._life.passed_over)
                case until:
                    end = shard.place(until)
            if end > max(first, trimmed):
                raise OracleError(
                    f"lost: row {trimmed} of {shard_id} was given up ({gap.reason}), although the "
                    f"service still had it"
                )
            standing.lost.update(range(first, end))

    def _expired(self, shard_id: str, numbers: Mapping[str, int]) -> int:
        return self._oracle.shards[shard_id].expired(shard_id, numbers)


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
    rows: list[Row],
    following: int,
) -> str:
    """Name what is wrong, without quoting data."""
    numbers = [row[:2] for row in got]
    wanted = [row[:2] for row in expected]
    known = {(str(row.sequence), row.sub): i for i, row in enumerate(rows)}
    places = [known.get((number, sub)) for number, sub in numbers]
    text = f"{shard_id} from row {following} on: rows {places}, not {[known[w] for w in wanted]}"
    if None in places:
        return f"altered: {text}"
    found = [place for place in places if place is not None]
    if len(set(found)) < len(found) or any(place < following for place in found):
        return f"duplicated: {text}"
    if found != sorted(found):
        return f"out of order: {text}"
    if numbers == wanted:
        return f"altered: {text}"
    if numbers[: len(wanted)] == wanted:
        return f"duplicated: {text}, as the next batch begins before them"
    return f"lost: {text}"
