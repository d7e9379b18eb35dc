"""What the entries of all runs have to hold."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, final

from fanout.core.positions import reaches
from tests.provers.simulation.errors import OracleError
from tests.provers.simulation.landers.splits import records_before

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.core.checkpoint import Checkpoint
    from fanout.core.positions import Position
    from fanout.landing.segments.segments import SegmentFile
    from tests.provers.simulation.landers.splits import SplitLog
    from tests.provers.simulation.landers.storage import Row

__all__ = ("EntryOracle",)


@final
class EntryOracle:
    """Compare each entry with the logs, in the order in which entries are written.

    Args:
        logs: The logs.
        files: The files that are published.
        landers: How many there are.
    """

    def __init__(
        self, logs: Mapping[str, SplitLog], files: Mapping[str, tuple[Row, ...]], landers: int
    ) -> None:
        self.records = 0
        self.named: set[str] = set()
        self._logs = logs
        self._files = files
        self._landers = landers
        self._read = dict.fromkeys(logs, 0)
        self._ended: set[str] = set()
        self._positions: dict[str, Position] = {}
        self._watermark = -math.inf

    @property
    def complete(self) -> bool:
        """Whether all records are in entries, and all splits that have ended have so in these."""
        return all(
            self._read[split_id] == len(log.arrivals)
            and (log.ends_at is None or split_id in self._ended)
            for split_id, log in self._logs.items()
        )

    def landed(self, split_id: str) -> int:
        """Return how many records of a split are in entries."""
        return self._read[split_id]

    @property
    def missing(self) -> dict[str, int]:
        """How many records of each split never came."""
        return {
            split_id: len(log.arrivals) - self._read[split_id]
            for split_id, log in self._logs.items()
            if self._read[split_id] < len(log.arrivals)
            or (log.ends_at is not None and split_id not in self._ended)
        }

    def check_entry(
        self,
        segments: tuple[SegmentFile, ...],
        positions: Checkpoint,
        watermark: int | None = None,
        bad: tuple[Row, ...] | None = None,
    ) -> None:
        """Check an entry that is written now.

        `bad` are the bad records of an entry of a landing, which puts those of a split into several
        files: each keeps their order. None is for a batch of a query.

        In these logs no record is older than one before it, and none is idle: none is late.

        Raises:
            OracleError: If a promise is broken.
        """
        self._check_credit(segments)
        found: list[Row] = []
        for segment in segments:
            rows = self._files.get(segment.name)
            if rows is None:
                raise OracleError(f"lost: {segment.name} is in an entry, and was never published")
            if len(rows) != segment.rows:
                raise OracleError(f"altered: {segment.name} has {len(rows)} rows")
            self.named.add(segment.name)
            found += rows
            _check_order(segment.name, rows)
        for row in found if bad is None else sorted([*found, *bad], key=_place):
            self._take(*row)
        self._check_positions(positions)
        self._watermark = max(self._watermark, -math.inf if watermark is None else watermark)

    def _check_credit(self, segments: tuple[SegmentFile, ...]) -> None:
        """Check that each lander has landed one segment that no batch had taken."""
        names = {segment.name.rpartition("/")[2] for segment in segments}
        sessions = Counter(name.rpartition("-")[0] for name in names)
        for session, count in sessions.items():
            if count > 1:
                raise OracleError(f"unbounded: {count} segments of {session} were not taken")
        if len(names) > self._landers:
            raise OracleError(f"unbounded: {len(names)} segments of {self._landers} landers")

    def _take(self, split_id: str, sequence: int) -> None:
        expected = self._read[split_id] + 1
        if sequence != expected:
            kind = "duplicated" if sequence < expected else "lost"
            raise OracleError(f"{kind}: record {sequence} of {split_id} instead of {expected}")
        if expected == 1:
            for parent in self._logs[split_id].split.parents:
                if self._read[parent] < len(self._logs[parent].arrivals):
                    raise OracleError(f"out of order: {split_id} before the end of {parent}")
        if (at := self._logs[split_id].millis(sequence)) <= self._watermark:
            raise OracleError(
                f"late: record {sequence} of {split_id} is of {at}, and an entry before it has the "
                f"watermark {self._watermark}"
            )
        self._read[split_id] = sequence
        self.records += 1

    def _check_positions(self, positions: Checkpoint) -> None:
        """Check that positions are those after the segments of all entries, and never go back."""
        for split_id, state in positions.splits.items():
            at = records_before(state.position)
            read, log = self._read[split_id], self._logs[split_id]
            if at != read:
                kind = "lost" if at > read else "duplicated"
                raise OracleError(f"{kind}: {split_id} is at {at}, and {read} records were landed")
            if not reaches(state.position, self._positions.get(split_id, state.position)):
                raise OracleError(f"altered: {split_id} goes back to {state.position}")
            self._positions[split_id] = state.position
            if state.ended and (read < len(log.arrivals) or log.ends_at is None):
                raise OracleError(f"lost: {split_id} has ended at {at} of {len(log.arrivals)}")
            if split_id in self._ended and not state.ended:
                raise OracleError(f"altered: {split_id} had ended, and has not any more")
            if state.ended:
                self._ended.add(split_id)
        for split_id, read in self._read.items():
            if read and split_id not in positions.splits and split_id not in self._ended:
                raise OracleError(f"lost: {split_id} has no position")


def _check_order(name: str, rows: tuple[Row, ...]) -> None:
    """Check that a file has the records of each split in their order."""
    last: dict[str, int] = {}
    for split_id, sequence in rows:
        if sequence <= last.get(split_id, 0):
            raise OracleError(f"out of order: record {sequence} of {split_id} in {name}")
        last[split_id] = sequence


def _place(row: Row) -> Row:
    """Return a key by which children come after their parents, and records in their order."""
    return f"{int(row[0].rpartition('-')[2]):06}", row[1]
