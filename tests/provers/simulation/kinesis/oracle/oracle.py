"""Compare what the runs of a reader get with what a simulated stream holds, row by row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from fanout.core.checkpoint import Checkpoint
from fanout.core.positions import Cursor, Horizon
from tests.provers.simulation.errors import OracleError
from tests.provers.simulation.kinesis.oracle.comparison import difference, tuple_of, tuples_of
from tests.provers.simulation.kinesis.oracle.shard_rows import ShardRows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fanout.core.checkpoint import SplitPosition
    from fanout.core.events import Batch, Gap
    from fanout.core.positions import Position
    from tests.provers.simulation.job.process_run import ProcessRun
    from tests.provers.simulation.kinesis.service.service import KinesisSimService
    from tests.provers.simulation.kinesis.service.stream_log import KinesisRow, SourceLog


__all__ = ("KinesisOracle", "KinesisReading", "ShardProgress")


@dataclass(slots=True)
class ShardProgress:
    """The progress of one run of the reader in one shard.

    Args:
        next: The row that it has to get next.
        begun: Whether it may read the shard, also before its parents are read.
        lost: The rows that were lost with notice.
        records: The records that it has got.
        nbytes: Their bytes in memory.
        gaps: How many gaps were reported to it.
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
class KinesisReading:
    """Compare what one run gets with the slice of the source log after its stored position.

    Rows are compared by position, key, arrival and bytes; nothing is only counted.

    Args:
        oracle: What all runs have got together.
        run: The run.
        stored: The positions from which it goes on.
    """

    def __init__(
        self, oracle: KinesisOracle, run: ProcessRun, stored: Mapping[str, SplitPosition]
    ) -> None:
        self.standings: dict[str, ShardProgress] = {}
        self._oracle = oracle
        self._run = run
        self._known = list(stored)
        for shard_id, shard in oracle.shards.items():
            state = stored.get(shard_id)
            begun = state is not None and isinstance(state.position, Cursor)
            place = shard.stored_place(state)
            newest = None if state is None else state.newest
            standing = ShardProgress(place, begun, newest=newest, acknowledged=place)
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
        first = max(self.standings[shard_id].next, self._unreported(shard_id))
        return self._owed(shard_id, first, len(self._oracle.shards[shard_id].rows))

    def _owed(self, shard_id: str, first: int, end: int) -> int:
        """Return how many rows of some a reader has to get.

        It need not get those of other shards, nor those that can only be lost: these are reported
        as gaps, but not where the shard ends behind them.
        """
        rows = self._oracle.shards[shard_id].rows[first:end]
        return sum(not self._optional(shard_id, row) for row in rows)

    def _optional(self, shard_id: str, row: KinesisRow) -> bool:
        return row.foreign or self._oracle.damage.may_be_lost(shard_id, row.sequence)

    def _unreported(self, shard_id: str) -> int:
        """Return before which row a shard may end without a word to the job.

        A shard may end behind records that have expired: no batch reports them then.
        """
        if self.is_expired(shard_id):
            return self._expired(shard_id, self._oracle.retention.trimmed)
        return self._expired(shard_id, self._run.passed_over)

    def acknowledge(self, splits: Mapping[str, Position]) -> None:
        """Record what the job has acknowledged."""
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
            shard = self._oracle.shards[shard_id]
            place = shard.stored_place(stored.get(shard_id))
            first = max(standing.acknowledged, self._unreported(shard_id))
            owed = [i for i in range(first, place) if not self._optional(shard_id, shard.rows[i])]
            if not standing.lost.issuperset(owed):
                raise OracleError(
                    f"lost: row {owed[0]} of {shard_id} is not acknowledged, but the position is "
                    f"reported as after row {place}"
                )

    def check_stored(self, positions: str) -> None:
        """Check positions that are about to be stored: everything before them was handed on.

        Raises:
            OracleError: If it was not, or a shard is forgotten that has not expired.
        """
        stored = Checkpoint.from_json(positions).splits
        for shard_id in self._known:
            if shard_id not in stored and not self.is_expired(shard_id):
                raise OracleError(f"lost: the stored positions do not name {shard_id} any more")
        self._known = list(stored)
        for shard_id, shard in self._oracle.shards.items():
            place = shard.stored_place(stored.get(shard_id))
            if self._owed(shard_id, max(shard.reached, self._unreported(shard_id)), place):
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
        oldest = self._oldest(batch)
        self._take_gaps(shard_id, standing, batch.gaps, oldest)
        if not standing.begun:
            # A reader that begins with the oldest record misses none that had expired before.
            standing.lost.update(range(standing.next, oldest))
        until = shard.place(batch.range.until)
        places = [i for i in range(standing.next, until) if i not in standing.lost]
        got = list(tuples_of(batch))
        # A process that does not know the shard's hash keys yet cannot filter foreign rows.
        if not any(shard.rows[place].foreign for place in places) or len(got) < len(places):
            places = [place for place in places if not shard.rows[place].foreign]
        expected = [tuple_of(shard.rows[place]) for place in places]
        if got != expected:
            raise OracleError(difference(shard_id, got, expected, shard.rows, standing.next))
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
        """Return the place of the first row after a position that the stream reports.

        Args:
            shard_id: Of which shard.
            position: The position.
        """
        return self._oracle.shards[shard_id].place(position)

    def generations(self) -> int:
        """Return how many shards of which rows are missing continue each other; at least one."""
        depths: dict[str, int] = {}
        for shard_id, shard in self._oracle.log.shards.items():
            before = max((depths[parent] for parent in shard.parents), default=0)
            depths[shard_id] = before + bool(before or self._missing(shard_id))
        return max(1, *depths.values())

    def is_expired(self, shard_id: str) -> bool:
        """Say whether a shard is gone as a whole."""
        return shard_id in self._oracle.retention.expired

    def standing_place(self, shard_id: str) -> int:
        """Return the place of the next row that it has to get."""
        rows = self._oracle.shards[shard_id].rows
        place = max(self.standings[shard_id].next, self._unreported(shard_id))
        while place < len(rows) and self._optional(shard_id, rows[place]):
            place += 1
        return place

    def _oldest(self, batch: Batch) -> int:
        """Return the place of the oldest row there was when a batch was asked for.

        The process may have asked for the oldest once more since then.
        """
        shard_id = batch.split.id
        number = int(batch.records.column("sequenceNumber")[0].as_py())
        first = self._oracle.shards[shard_id].place(Cursor(number, -1))
        return min(first, self._expired(shard_id, self._run.passed_over))

    def _check_lineage(self, shard_id: str, standing: ShardProgress) -> None:
        if standing.begun:
            return
        for parent in self._oracle.log.shards[shard_id].parents:
            if missing := self._missing(parent):
                raise OracleError(
                    f"out of order: {shard_id} came before the last {missing} rows of its parent "
                    f"{parent}"
                )

    def _take_gaps(
        self, shard_id: str, standing: ShardProgress, gaps: Iterable[Gap], oldest: int
    ) -> None:
        shard = self._oracle.shards[shard_id]
        for gap in gaps:
            standing.gaps += 1
            first = max(standing.next, shard.place(gap.after))
            trimmed = self._expired(shard_id, self._oracle.retention.trimmed)
            match gap.until:
                case None:
                    end = len(shard.rows)
                case Horizon():
                    end = oldest
                case until:
                    end = shard.place(until)
            damage = self._oracle.damage
            numbers = [row.sequence for row in shard.rows[max(first, trimmed) : end]]
            if not all(damage.may_be_lost(shard_id, number) for number in numbers):
                raise OracleError(
                    f"lost: row {trimmed} of {shard_id} was given up ({gap.reason}), although the "
                    f"service still had it"
                )
            standing.lost.update(range(first, end))

    def _expired(self, shard_id: str, numbers: Mapping[str, int]) -> int:
        return self._oracle.shards[shard_id].expired(shard_id, numbers)


@final
class KinesisOracle:
    """Know what the stream holds, and what of it all runs of a reader have got together.

    Args:
        log: What the stream holds.
        service: Which of it has expired.
    """

    def __init__(self, log: SourceLog, service: KinesisSimService) -> None:
        self.log = log
        self.retention = service.retention
        self.damage = service.damage
        self.checked = 0
        self.replayed = 0
        self.shards = {
            id_: ShardRows(shard.rows, [(row.sequence, row.sub) for row in shard.rows])
            for id_, shard in log.shards.items()
        }

    @property
    def generations(self) -> int:
        """The most shards that can continue each other."""
        return len(self.shards)

    def begin(self, positions: str, run: ProcessRun, *, anew: bool = False) -> KinesisReading:
        """Take note from where a run of the reader goes on.

        Args:
            positions: What it was given, as JSON.
            run: The run.
            anew: Whether nothing was stored before, so that the stream begins there.

        Raises:
            OracleError: If records are behind it that no run has got.
            PositionError: If that is no JSON of positions.
        """
        stored = Checkpoint.from_json(positions).splits
        if anew:
            for shard_id, shard in self.shards.items():
                # Another process may have begun at the same time, and have read on.
                shard.reached = max(shard.reached, shard.stored_place(stored.get(shard_id)))
        reading = KinesisReading(self, run, stored)
        reading.check_stored(positions)
        return reading
