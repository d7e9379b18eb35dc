"""The result of a drain, and the basket that collects it within its limits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

from fanout.core.events import UNCOUNTED, Batch, End
from fanout.core.option_checks import whole
from fanout.core.positions import Cursor, Range
from fanout.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from fanout.core.checkpoint import Checkpoint


@final
@dataclass(frozen=True, slots=True, eq=False)
class Drained:
    """Records of many splits, in order per split.

    Args:
        batches: The batches, each with at least one record; none if no record came in time, and at
            the end of a bounded stream.
        positions: A full snapshot of every split after these batches.
        watermark: The stream's watermark after them; see `FanOut.watermark`.
    """

    batches: tuple[Batch, ...]
    positions: Checkpoint
    watermark: int | None = None

    @property
    def num_records(self) -> int:
        """The number of records in all batches."""
        return sum(batch.num_records for batch in self.batches)

    @property
    def nbytes(self) -> int:
        """The bytes that the records take in memory."""
        return sum(batch.nbytes for batch in self.batches)


@final
class Basket:
    """Collect events up to a number of records and bytes, cutting the last batch to fit.

    A record that is larger than `max_bytes` is still taken, alone. `cursor` returns the position
    after a row, where a batch is cut. A limit below 1 is an OptionError.
    """

    def __init__(
        self,
        *,
        max_records: int,
        max_bytes: int,
        cursor: Callable[[Batch, int], Cursor],
    ) -> None:
        if whole("max_records", max_records) < 1 or whole("max_bytes", max_bytes) < 1:
            raise OptionError(
                f"max_records={max_records} and max_bytes={max_bytes} must be at least 1"
            )
        self.events: list[Batch | End] = []
        self.full = False
        self._room_records = max_records
        self._room_bytes = max_bytes
        self._cursor = cursor

    def add(self, event: Batch | End) -> Batch | None:
        """Put an event in; return the part of a batch that does not fit."""
        match event:
            case End():
                self.events.append(event)
                return None
            case Batch():
                rows = self._rows_that_fit(event)
                if rows == 0 and event.num_records:
                    self.full = True
                    return event
                head, rest = self._cut(event, rows)
                self.events.append(head)
                self._room_records -= head.num_records
                self._room_bytes -= head.nbytes
                self.full = rest is not None or self._room_records < 1 or self._room_bytes < 1
                return rest

    def drop(self, split_id: str) -> None:
        """Take the events of a split out again; the room that they took is not free again."""
        self.events = [event for event in self.events if event.split.id != split_id]

    @property
    def batches(self) -> tuple[Batch, ...]:
        """The batches with records that were collected."""
        return tuple(e for e in self.events if isinstance(e, Batch) and e.num_records)

    def _rows_that_fit(self, batch: Batch) -> int:
        if batch.num_records <= self._room_records and batch.nbytes <= self._room_bytes:
            return batch.num_records
        rows = min(batch.num_records, self._room_records)
        while rows and (size := batch.records.slice(0, rows).nbytes) > self._room_bytes:
            # Rows differ in size, so the estimate is repeated; it shrinks each time.
            rows = min(rows - 1, rows * self._room_bytes // size)
        return rows if rows or self.batches else min(1, batch.num_records)

    def _cut(self, batch: Batch, rows: int) -> tuple[Batch, Batch | None]:
        if rows == batch.num_records:
            return batch, None
        middle = self._cursor(batch, rows - 1)
        if isinstance(batch.range.after, Cursor):
            # A source changes its state behind the last row of a batch only.
            middle = replace(middle, state=batch.range.after.state)
        times = batch.event_times
        head = replace(
            batch,
            records=batch.records.slice(0, rows),
            range=Range(batch.range.after, middle),
            lag=None,  # these three hold after the last row only
            behind=None,
            watermark=None,
            nbytes=UNCOUNTED,
            event_times=None if times is None else times.slice(0, rows),
        )
        rest = replace(
            batch,
            records=batch.records.slice(rows),
            range=Range(middle, batch.range.until),
            gaps=(),
            nbytes=UNCOUNTED,
            bad_records=0,
            event_times=None if times is None else times.slice(rows),
        )
        return head, rest
