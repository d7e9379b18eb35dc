"""Check what must hold of a checkpoint after every fault of its drivers."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

import msgspec
import pyarrow.parquet as pq

from fanout.core.positions import Cursor
from fanout.landing.log.entries import BATCHES, BatchEntry, batch_ids, decode_entry, entry_name
from fanout.landing.log.pending import PENDING, decode_pending, pending_name
from fanout.landing.segments.segments import SEGMENTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.core.positions import Position
    from tests.provers.simulation.spark.arriving_source import ArrivalLog, Row
    from tests.provers.simulation.spark.checkpoint_files import CheckpointFiles
    from tests.provers.simulation.spark.process import SimDriverProcess
    from tests.provers.simulation.spark.spark_session import SparkCheckpointLog

__all__ = ("AcquiredByDriver", "QueryOracle")

_KEPT = 10
_KEPT_RUNS = 5


@final
@dataclass(eq=False)
class AcquiredByDriver:
    """Check the owner of the checkpoint: of two drivers at most one makes progress.

    Args:
        exclusive: Whether the newer one waits for the older one to end, its JVM included; otherwise
            it takes over, and what the older one has under way may still be done.
        violations: Where a broken promise is noted.
    """

    exclusive: bool
    violations: list[str]
    owners: dict[SimDriverProcess, int] = field(default_factory=dict)
    late: Counter[str] = field(default_factory=Counter)

    def begin(self, process: SimDriverProcess, run: int) -> None:
        """Note that a driver has claimed the checkpoint, under a number."""
        if self.exclusive:
            for owner in self.owners:
                if owner.jvm.alive:
                    self.violations.append(f"{process.name} did not wait for {owner.name}")
        self.owners[process] = run

    def end(self, process: SimDriverProcess) -> None:
        """Note that a driver gives the checkpoint back of its own will."""
        if self.exclusive:
            del self.owners[process]

    def progress(self, process: SimDriverProcess) -> None:
        """Note that a driver has made a new batch."""
        newest = max(self.owners, key=lambda owner: self.owners[owner])
        if newest is not process:
            self.late[process.name] += 1
            if self.late[process.name] > 1:
                self.violations.append(f"{process.name} goes on after {newest.name}")


@final
@dataclass(eq=False)
class QueryOracle:
    """Record the calls of the handler and the service, and compare them with what is durable.

    Args:
        logs: Everything that the source ever holds.
        files: The checkpoint.
        spark: What Spark has written down.
        exclusive: Whether a newer driver waits for an older one.
        lending: Whether the source lends its records: they come in no order.
        lists_lag: Whether a list may miss an entry: only the newest one keeps its segments for
            certain, which is all that a later run can need.
    """

    logs: tuple[ArrivalLog, ...]
    files: CheckpointFiles
    spark: SparkCheckpointLog
    exclusive: bool
    lending: bool = False
    lists_lag: bool = False
    contents: dict[int, list[Row]] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    rows: int = 0
    replays: int = 0
    acknowledgements: int = 0
    damaged: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.claims = AcquiredByDriver(self.exclusive, self.violations)
        self._left = {log.split.id: log.rows for log in self.logs}

    def handled(self, process: SimDriverProcess, batch_id: int, rows: list[Row]) -> None:
        """Check a call of the handler: what is in the ledger is what it gets, for ever."""
        self._expect_durable(batch_id)
        if batch_id in self.contents:
            self.replays += 1
            if self.contents[batch_id] != rows:
                self.violate(f"batch {batch_id} had {self.contents[batch_id]} and now has {rows}")
            return
        if batch_id in self.spark.commits:
            self.violate(f"batch {batch_id} was done without records, and now has {rows}")
        if self.contents and batch_id < max(self.contents):
            self.violate(f"batch {batch_id} comes after batch {max(self.contents)}")
        self.claims.progress(process)
        self.contents[batch_id] = rows
        for row in rows:
            self._deliver(batch_id, row)

    def acknowledged(self, positions: Mapping[str, Position]) -> None:
        """Check an acknowledgement: what it covers is durable, and the handler has returned."""
        self.acknowledgements += 1
        entries = self._durable_entries()
        if not entries:
            self.violate(f"{positions} were acknowledged before any entry was durable")
            return
        newest = entries[-1]
        for log in self.logs:
            state = newest.positions.splits.get(log.split.id)
            acknowledged = _sequence(positions.get(log.split.id))
            durable = _sequence(state and state.position)
            # Places without a record may be acknowledged at any time: nothing of them can be lost.
            if any(durable < sequence <= acknowledged for _, sequence, _ in log.rows):
                self.violate(f"{log.split} was acknowledged to {acknowledged}, durable is {state}")
            if any(sequence <= acknowledged for _, sequence, _ in self._left[log.split.id]):
                first = self._left[log.split.id][0]
                self.violate(
                    f"{log.split} was acknowledged to {acknowledged}, {first} is unhandled"
                )
        self._expect_segment(newest)

    def accepted(self, row: Row) -> None:
        """Check that a record which never comes again is in a segment that is named."""
        self.acknowledgements += 1
        if row not in self._left[row[0]]:
            return  # it was handled before, when the answer to its acknowledgement was lost
        entries, taken = self._durable_entries(), 0
        names = {segment.name for entry in entries for segment in entry.segments}
        if entries and entries[-1].taken is not None:
            taken = entries[-1].taken.last
        for number in batch_ids(self.files.names(PENDING)):
            data = self.files.read(pending_name(number), durable=True)
            pending = data and decode_pending(data, number, location="the checkpoint")
            if pending and number > taken:
                names.add(pending.segment.name)
        if not any(self._holds(name, row) for name in names):
            self.violate(f"{row} was acknowledged, and is in no segment that is named")

    def _holds(self, name: str, row: Row) -> bool:
        if name in self.damaged:
            return True  # who knows; its batch is not handled before it is restored
        data = self.files.read(name, durable=True)
        if data is None:
            return False
        columns = pq.ParquetFile(io.BytesIO(data)).read(use_threads=False).to_pydict()
        return row in zip(columns["split"], columns["sequence"], columns["data"], strict=True)

    def finished(self, run: int) -> None:
        """Check the end of a run: everything was handled, and nothing is left lying about.

        Args:
            run: The number of the last run.
        """
        for id_, left in self._left.items():
            if left:
                self.violate(f"{len(left)} records of {id_} were lost, the first is {left[0]}")
        entries = self._entries(durable=False)
        runs = [self._run(entry) for entry in entries]
        if runs != sorted(runs):
            self.violate(f"an older run has written after a newer one: {runs}")
        with_segment = [entry for entry in entries if entry.segments]
        for entry in entries[-1:] if self.lists_lag else with_segment:
            self._expect_segment(entry)
        if runs and runs[-1] == run:
            if len(with_segment) > _KEPT or len(entries) > _KEPT + 1:
                self.violate(f"{len(entries)} entries and {len(with_segment)} segments were kept")
            named = {segment.name for entry in entries for segment in entry.segments}
            found = {f"{SEGMENTS}/{name}" for name in self.files.names(SEGMENTS)}
            if found - named:
                self.violate(f"segments that no entry names were left: {sorted(found - named)}")
        left_over = self.files.names("_scratch")
        left_over += [name for name in self.files.names(BATCHES) if name.startswith("_")]
        if left_over:
            self.violate(f"temporary files were left: {left_over}")
        if len(self.files.names("runs")) > _KEPT_RUNS:
            self.violate(f"too many runs are remembered: {self.files.names('runs')}")

    def violate(self, text: str) -> None:
        """Note that a promise was broken."""
        self.violations.append(text)

    def _deliver(self, batch_id: int, row: Row) -> None:
        """Take a record from the head of its log, and its parents' logs must be empty."""
        left = self._left[row[0]]
        if self.lending and row in left:
            left.remove(row)
            self.rows += 1
        elif not left or left[0] != row:
            expected = left[0] if left else "nothing"
            self.violate(f"batch {batch_id} has {row} where {expected} was due")
        else:
            del left[0]
            self.rows += 1
        for log in () if self.lending else self.logs:
            if any(child.id == row[0] for child in log.children) and self._left[log.split.id]:
                self.violate(f"batch {batch_id} has {row} before the end of {log.split}")

    def _expect_durable(self, batch_id: int) -> None:
        entries = {entry.batch_id: entry for entry in self._durable_entries()}
        entry = entries.get(batch_id)
        if entry is None:
            self.violate(f"batch {batch_id} was handled before its entry was durable")
        else:
            self._expect_segment(entry)

    def _expect_segment(self, entry: BatchEntry) -> None:
        for segment in entry.segments:
            if segment.name in self.damaged:
                continue
            data = self.files.read(segment.name, durable=True)
            if data is None or len(data) != segment.size:
                found = "is not durable" if data is None else f"has {len(data)} durable bytes"
                self.violate(f"batch {entry.batch_id} stands for {segment}, which {found}")

    def _durable_entries(self) -> list[BatchEntry]:
        return self._entries(durable=True)

    def _entries(self, *, durable: bool) -> list[BatchEntry]:
        entries = []
        for batch_id in batch_ids(self.files.names(BATCHES)):
            name = entry_name(batch_id)
            if self.lists_lag and name in self.damaged:
                continue  # a driver whose list misses it goes on
            data = self.files.read(name, durable=durable)
            if data is not None:
                entries.append(decode_entry(data, batch_id, location="the checkpoint"))
        return entries

    def _run(self, entry: BatchEntry) -> int:
        data = self.files.read(entry_name(entry.batch_id), durable=False)
        assert data is not None
        run: int = msgspec.json.decode(data)["run"]
        return run


def _sequence(position: Position | None) -> int:
    return position.sequence if isinstance(position, Cursor) else -1
