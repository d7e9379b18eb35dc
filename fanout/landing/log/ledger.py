"""The ledger: which segments each batch id has, and every split's position after it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, final

from fanout.core.positions import Cursor, Horizon, Range, Timestamp
from fanout.errors import CheckpointError
from fanout.landing.log.entries import BatchEntry, EntryLog, entry_name
from fanout.landing.log.pending import PendingSegments
from fanout.landing.segments.segments import SEGMENTS, run_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.core.checkpoint import Checkpoint
    from fanout.core.positions import Position
    from fanout.landing.claims import Ownership
    from fanout.landing.storage.storage import Storage

# A handler may have kept a lazy DataFrame, so the newest batches keep their segments.
_KEPT_BATCHES = 10


@final
@dataclass(frozen=True, slots=True)
class LedgerBatch:
    """What the ledger knows of one batch.

    Args:
        batch_id: Spark's id of the micro-batch.
        rows: Its records; 0 where the handler was not called.
        bytes: Their bytes in the segment.
        ranges: What it covers of each split in which it has moved on, by the split's id; None
            where they are unknown, because the batch before it is no longer known.
        watermark: The stream's watermark after it, in milliseconds since the Unix epoch; None
            where there is none.
    """

    batch_id: int
    rows: int
    bytes: int
    ranges: Mapping[str, Range] | None
    watermark: int | None

    def places(self, limit: int) -> list[str]:
        """Return what it covers as text, such as `shardId-000000000003: 4965 to 4990`.

        Args:
            limit: The most splits that are named, the first by name.
        """
        ranges = self.ranges or {}
        return [
            f"{id_}: {_text(ranges[id_].after)} to {_text(ranges[id_].until)}"
            for id_ in sorted(ranges)[:limit]
        ]


@final
class BatchLedger(EntryLog):
    """Remember batches in small files below the checkpoint. Every call blocks.

    `pending` has the segments that are named before a batch takes them. The claim of this run is
    checked before every write: without it a write is a CheckpointError. So is an entry that is
    damaged or was written by a newer version.
    """

    def __init__(self, storage: Storage, ownership: Ownership) -> None:
        super().__init__(storage, ownership)
        self._entries: dict[int, BatchEntry] = {}
        if self._newest is not None:
            # The list of a store may lag: it shows an entry that was deleted, or misses a new one.
            end = self._newest.batch_id
            numbers = {*self._listed, *range(max(0, end - _KEPT_BATCHES), end)} - {end}
            found = ((batch_id, self.look_up(batch_id)) for batch_id in sorted(numbers))
            self._entries = {batch_id: entry for batch_id, entry in found if entry is not None}
            self._entries[end] = self._newest
        self._swept_orphans = False
        taken = None if self._newest is None else self._newest.taken
        self.pending = PendingSegments(storage, ownership, taken)

    def batch(self, batch_id: int) -> LedgerBatch | None:
        """Return what is known of a batch; None where it is unknown, or no longer known.

        The newest batches are: the one of the last micro-batch, and ten with records. Any thread
        may call it.
        """
        known = dict(self._entries)
        entry = known.get(batch_id)
        if entry is None:
            return None
        # What was pruned between the two had no records, so it may as well belong to this batch.
        nearest = max((id_ for id_ in known if id_ < batch_id), default=None)
        if nearest is not None:
            before: Checkpoint | None = known[nearest].positions
        else:
            before = self.origin() if batch_id == 0 else None
        return LedgerBatch(
            batch_id,
            rows=entry.rows,
            bytes=entry.size,
            ranges=None if before is None else _ranges(before, entry.positions),
            watermark=entry.watermark,
        )

    def find(self, batch_id: int, query_id: str) -> BatchEntry | None:
        """Return the entry of a batch that Spark asks for; None if it is a new one.

        Raises:
            CheckpointError: If the ledger is ahead of Spark, so that Spark's own offsets must have
                been deleted, or behind it, so that entries are missing, or the entries are another
                query's.
        """
        newest = self._newest
        expected = 0 if newest is None else newest.batch_id + 1
        if batch_id > expected:
            self._check_lists(batch_id)
            raise CheckpointError(
                f"Spark asks for batch {batch_id}, but {self._storage.location} has no entry of "
                f"batch {batch_id - 1}: restore {entry_name(batch_id - 1)} and its segments alone "
                f"from a backup, or start with a new checkpoint location"
            )
        if newest is None or batch_id == expected:
            self._check_query(query_id)
            return None
        if batch_id < newest.batch_id:
            raise CheckpointError(
                f"Spark asks for batch {batch_id}, but {self._storage.location} already holds "
                f"batch {newest.batch_id}: Spark's own offsets were deleted; restore them, or "
                f"start with a new checkpoint location"
            )
        self._check_query(query_id)
        return newest

    def write(self, entry: BatchEntry) -> None:
        """Store what a batch stands for; from now on it stands for nothing else."""
        super().write(entry)
        self._entries[entry.batch_id] = entry

    def prune(self) -> None:
        """Delete the entries and segments that no replay and no lazy DataFrame can need.

        Call it after `write`: only then is this run known to continue after the newest entry, and
        what earlier runs left unnamed is an orphan.
        """
        if not self._swept_orphans:
            self._delete_orphans()
            self._swept_orphans = True
        with_segment = [id_ for id_, entry in self._entries.items() if entry.segments]
        kept = {*with_segment[-_KEPT_BATCHES:], max(self._entries)}
        for batch_id in [id_ for id_ in self._entries if id_ not in kept]:
            for segment in self._entries.pop(batch_id).segments:
                self._storage.delete(segment.name)
            self._storage.delete(entry_name(batch_id))
        if self._newest is not None:
            self.pending.settle(self._newest.taken)

    def _check_query(self, query_id: str) -> None:
        if self._newest is not None and self._newest.query_id != query_id:
            raise CheckpointError(
                f"{self._storage.location} belongs to the Spark query {self._newest.query_id}, not "
                f"to {query_id}: Spark's own metadata was deleted; restore it, or start with a new "
                f"checkpoint location"
            )

    def _check_lists(self, batch_id: int) -> None:
        """Say so if the list of entries missed the newest one, so that this run begins too early.

        The entries before the newest may be gone, as those without records are pruned.
        """
        if self.look_up(batch_id - 1) is not None or self.look_up(batch_id) is not None:
            raise CheckpointError(
                f"the entry of batch {batch_id - 1} or {batch_id} is in {self._storage.location}, "
                f"and its list did not show it when this run started: the list lags behind; start "
                f"again in a minute"
            )

    def _delete_orphans(self) -> None:
        entries = self._entries.values()
        named = {segment.name for entry in entries for segment in entry.segments}
        named |= self.pending.segments
        for file in self._storage.list(SEGMENTS):
            name = f"{SEGMENTS}/{file.name}"
            run = run_of(file.name)
            # A newer run may have taken over and published a segment since this run's entry.
            if name not in named and run is not None and run < self._ownership.run:
                self._storage.delete(name)


def _text(position: Position) -> str:
    match position:
        case Cursor(sequence):
            return str(sequence)
        case Timestamp(millis):
            return datetime.fromtimestamp(millis / 1000, UTC).isoformat()
        case _:
            return "beginning"


def _ranges(before: Checkpoint, after: Checkpoint) -> Mapping[str, Range]:
    """Return what lies between two snapshots of each split that has moved."""
    # A split that was not known before was found while it was read: it began at its oldest record.
    starts = {id_: state.position for id_, state in before.splits.items()}
    ranges = {
        id_: Range(starts.get(id_, Horizon()), state.position)
        for id_, state in after.splits.items()
        if starts.get(id_, Horizon()) != state.position
    }
    return MappingProxyType(ranges)
