"""The delivered and the acknowledged position of every split."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias, final

import msgspec

from fanout.core.checkpoint import Checkpoint, SplitPosition
from fanout.core.event_time import late
from fanout.core.events import Batch, End
from fanout.core.positions import Cursor, reaches
from fanout.errors import StreamStateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import pyarrow as pa

    from fanout.core.event_time import Watermarks
    from fanout.core.events import Gap, Split
    from fanout.core.positions import Position

Arrival: TypeAlias = "Callable[[pa.RecordBatch, int], int | None]"
OnGapMeasured: TypeAlias = "Callable[[Split, float], None]"

# A split that is missing from one listing may be there in the next: listings are assembled from
# many machines. Forgetting it too early would read it again after a restart.
ABSENCES: Final = 6


class Moved(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """What another process says of a split that it has read on, as it says it."""

    ended: bool = False
    caught_up: bool = False  # whether it was once read to its newest record
    newest: int | None = None  # see `SplitPosition.newest`
    watermark: int | None = None  # in milliseconds since the Unix epoch
    records: Annotated[int, msgspec.Meta(ge=0)] = 0  # how many there were
    idle: bool = False  # whether the split is idle after them; see `EventTime.idleness`


@final
@dataclass(slots=True)
class SplitProgress:
    """One split's progress.

    Invariant: acknowledged <= delivered, and records_until <= delivered. What lies between
    records_until and delivered holds no records, so acknowledging the one acknowledges the other.
    """

    split: Split
    delivered: Position
    records_until: Position
    acknowledged: Position
    ended: bool = False
    caught_up: bool = False
    records: int = 0
    bytes: int = 0
    lag: float | None = None
    behind: int | None = None
    watermark: int | None = None
    # When the last record that was delivered arrived at the service, in milliseconds since the Unix
    # epoch.
    newest: int | None = None
    gaps: int = 0
    gap_seconds: float = 0.0
    bad_records: int = 0
    late_records: int = 0
    # `newest` of the last record before a gap behind which no record has come yet.
    gap_after: int | None = None
    # Those that the consumer has not seen, as it sees batches with records only. `delivered` stays
    # before them, so that a restart finds them again. It goes back at once where a gap leads back:
    # a restart at the higher position would skip records.
    unseen_gaps: tuple[Gap, ...] = ()
    # How far a split by the same name was delivered that exists no longer; what is acknowledged of
    # it counts for nothing.
    replaced: Position | None = None
    reported: Position | None = None  # the acknowledged position that the service has
    absences: int = 0

    @property
    def absent(self) -> bool:
        """Whether the split is missing from so many listings in a row that it has expired."""
        return self.absences >= ABSENCES

    def deliver(self, event: Batch | End, arrival: Arrival) -> Batch | None:
        """Count an event as handed to the consumer; return what it sees of it."""
        self.gaps += len(event.gaps)
        match event:
            case End():
                self.ended = self.caught_up = True
                self.lag = self.behind = None
                return None
            case Batch():
                self.unseen_gaps += event.gaps
                self.bad_records += event.bad_records
                for gap in event.gaps:
                    if isinstance(gap.until, Cursor) and not reaches(gap.until, self.delivered):
                        self._begin_anew(gap.until)
                self.caught_up = self.caught_up or event.lag == 0
                # The head of a batch that was cut has neither.
                if event.lag is not None or event.behind is not None:
                    self.lag, self.behind = event.lag, event.behind
                # A gap between records of the batch has no side that is known here.
                if any(event.range.after in {gap.after, gap.until} for gap in event.gaps):
                    self.gap_after = self.newest
                if event.num_records:
                    return self._hand_out(event, arrival)
                if not self.unseen_gaps:
                    self._rise(event.watermark)
                    self._move(event.range.until)
                    self._acknowledge(self.acknowledged)
                return None

    def advance(self, until: Position, moved: Moved) -> None:
        """Take in how far another process has read the split."""
        if isinstance(until, Cursor) and not reaches(until, self.delivered):
            self._begin_anew(until)
        self.delivered = self.records_until = until
        self.records += moved.records
        self.ended = moved.ended
        self.caught_up = self.caught_up or moved.caught_up or moved.ended
        self.newest = moved.newest
        # A process that goes on with the split has not seen the records before.
        if self.watermark is None or moved.watermark is None or moved.watermark > self.watermark:
            self._rise(moved.watermark)

    def _hand_out(self, batch: Batch, arrival: Arrival) -> Batch:
        self._move(batch.range.until)
        self.records_until = self.delivered
        self.records += batch.num_records
        self.bytes += batch.nbytes
        if self.gap_after is not None:
            self._measure_gap(self.gap_after, arrival(batch.records, 0))
        self.newest = arrival(batch.records, batch.num_records - 1)
        gaps, self.unseen_gaps = self.unseen_gaps, ()
        self._rise(batch.watermark)
        if gaps == batch.gaps and batch.watermark == self.watermark:
            return batch
        return replace(batch, gaps=gaps, watermark=self.watermark)

    def _rise(self, watermark: int | None) -> None:
        if watermark is not None:
            self.watermark = watermark

    def _begin_anew(self, position: Cursor) -> None:
        """Go on from before what was delivered: a split by the same name has replaced that one."""
        self.replaced = self.delivered
        self.delivered = self.records_until = position
        self.reported = None
        if not reaches(position, self.acknowledged):
            self.acknowledged = position

    def rewind(self) -> None:
        """Go on from what is acknowledged: what came after it is delivered again."""
        self.delivered = self.records_until = self.acknowledged
        self.unseen_gaps, self.gap_after = (), None

    def _move(self, position: Position) -> None:
        # A reader that skips to the horizon stands behind what it has lost, although the horizon
        # is a lower position; what is stored never moves back.
        if reaches(position, self.delivered):
            self.delivered = position

    def _measure_gap(self, gap_after: int, next_arrival: int | None) -> None:
        """Say how long the gap before the next record is, where its arrival is known."""
        if next_arrival is not None:
            self.gap_seconds += (next_arrival - gap_after) / 1000
            self.gap_after = None

    def acknowledge(self, position: Position) -> bool:
        """Move the acknowledged position forward, never back; return whether to report it."""
        counts = self._acknowledge(position)
        report = counts and self.acknowledged != self.reported
        self.reported = self.acknowledged if counts else self.reported
        return report

    def _acknowledge(self, position: Position) -> bool:
        """Move the acknowledged position, unless it is beyond the given one."""
        if not reaches(self.delivered, position):
            if self.replaced is not None and reaches(self.replaced, position):
                return False
            raise StreamStateError(
                f"{self.split} was acknowledged beyond what it has delivered; acknowledge batches "
                f"of this stream only"
            )
        if reaches(position, self.records_until):
            position = self.delivered
        if not reaches(position, self.acknowledged):
            return False
        self.acknowledged = position
        return True


@final
class Progress:
    """The progress of every known split of a source, whose identity each checkpoint has.

    Each checkpoint also has the positions of `kept` splits, which are not read now, as they are.
    `records`, `bytes` and `batches` count what was handed out, also of splits that have expired;
    `gaps`, `gap_seconds` and `bad_records` count what was lost, as those of a split do.
    `late_records` counts records that were not newer than the watermark before their batch.
    `on_gap_measured` is called with the split and the seconds when both sides of a gap are known.
    """

    def __init__(
        self,
        source: str,
        arrival: Arrival,
        kept: Iterable[SplitPosition] = (),
        watermarks: Watermarks | None = None,
    ) -> None:
        self.source = source
        self.watermarks = watermarks
        self._arrival = arrival
        self._kept = {state.split.id: state for state in kept}
        self._splits: dict[str, SplitProgress] = {}
        self.records = self.bytes = self.batches = self.gaps = self.bad_records = 0
        self.late_records = 0
        self.gap_seconds = 0.0
        self.on_gap_measured: OnGapMeasured = _ignore

    def __getitem__(self, split_id: str) -> SplitProgress:
        return self._splits[split_id]

    def __contains__(self, split_id: str) -> bool:
        return split_id in self._splits

    def __iter__(self) -> Iterator[SplitProgress]:
        # Over a copy: statistics are read from other threads while the stream adds splits.
        return iter(list(self._splits.values()))

    def add(
        self,
        split: Split,
        position: Position,
        *,
        ended: bool = False,
        newest: int | None = None,
        watermark: int | None = None,
    ) -> None:
        """Begin to follow a split from a position up to which everything is done."""
        progress = self._splits[split.id] = SplitProgress(
            split, position, position, position, ended=ended, caught_up=ended, newest=newest
        )
        progress.watermark = watermark
        if not isinstance(position, Cursor):
            progress.reported = position  # there is nothing to report yet
        if self.watermarks is not None and not ended:
            self.watermarks.add(split, watermark)

    def remove(self, split_id: str) -> None:
        """Follow a split no longer."""
        del self._splits[split_id]
        if self.watermarks is not None:
            self.watermarks.leave(split_id)

    def advance(self, split_id: str, until: Position, moved: Moved) -> None:
        """Take in how far another process has read a split: until after its last record."""
        split, watermarks = self._splits[split_id], self.watermarks
        split.advance(until, moved)
        if watermarks is not None:
            records = bool(moved.records)
            watermarks.advance(split_id, split.watermark, records=records, idle=moved.idle)
            if moved.ended or (moved.caught_up and watermarks.bounded):
                watermarks.leave(split_id)

    def count(self, records: int, nbytes: int) -> None:
        """Count a batch that another process has read, with its bytes as they are stored."""
        self.records += records
        self.bytes += nbytes
        self.batches += 1

    def deliver(self, events: Iterable[Batch | End]) -> tuple[Batch, ...]:
        """Count events as handed to the consumer; return what it sees of them.

        It sees the batches with records, each with what was lost since the one before.
        """
        return tuple([batch for event in events if (batch := self._deliver(event)) is not None])

    def _deliver(self, event: Batch | End) -> Batch | None:
        split = self._splits[event.split.id]
        gap_seconds = split.gap_seconds
        seen = split.deliver(event, self._arrival)
        self.gaps += len(event.gaps)
        if isinstance(event, Batch):
            self.bad_records += event.bad_records
        if split.gap_seconds != gap_seconds:
            self.gap_seconds += split.gap_seconds - gap_seconds
            self.on_gap_measured(split.split, split.gap_seconds - gap_seconds)
        if seen is not None:
            self.records += seen.num_records
            self.bytes += seen.nbytes
            self.batches += 1
        if self.watermarks is not None:
            if seen is not None and (count := late(seen.event_times, self.watermarks.stream)):
                split.late_records += count
                self.late_records += count
            self.watermarks.deliver(event if seen is None else seen, split.watermark)
        return seen

    def acknowledge(self, positions: Mapping[str, Position]) -> dict[str, Position]:
        """Acknowledge up to a position in each split; return what to report to the service."""
        return {
            id_: self._splits[id_].acknowledged
            for id_, position in positions.items()
            if id_ in self._splits and self._splits[id_].acknowledge(position)
        }

    def forget_expired(self, listed: Iterable[str]) -> None:
        """Drop splits that are read, acknowledged, and missing from several listings in a row."""
        present = set(listed)
        for split in self:
            split.absences = 0 if split.split.id in present else split.absences + 1
            done = split.ended and split.acknowledged == split.delivered
            # What was lost stays on record for as long as the stream runs.
            if done and split.absent and not split.gaps:
                del self._splits[split.split.id]

    @property
    def caught_up(self) -> bool:
        """Whether every split has ended or has once reached its newest record."""
        return all(split.caught_up for split in self)

    def delivered(self) -> Checkpoint:
        """Return the positions after everything that was handed to the consumer."""
        return self._checkpoint(
            SplitPosition(
                split.split,
                split.delivered,
                split.ended,
                split.newest,
                anew=split.replaced is not None,
            )
            for split in self
        )

    def acknowledged(self) -> Checkpoint:
        """Return the positions after everything that the consumer has acknowledged."""
        return self._checkpoint(
            SplitPosition(
                split.split,
                split.acknowledged,
                split.ended and split.acknowledged == split.delivered,
                split.newest if split.acknowledged == split.delivered else None,
            )
            for split in self
        )

    def _checkpoint(self, positions: Iterable[SplitPosition]) -> Checkpoint:
        read = {state.split.id: state for state in positions}
        return Checkpoint(self.source, MappingProxyType({**self._kept, **read}))


def _ignore(split: Split, seconds: float) -> None:
    """Do nothing about a gap whose length is known."""
