"""Count the events that one process holds in memory, from outside."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from fanout.core.positions import Cursor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fanout.core.events import Batch
    from tests.provers.simulation.kinesis.service.stream_log import SourceRecord

__all__ = ("HeldEvents",)


@final
@dataclass(frozen=True, slots=True)
class _HeldEvent:
    """An event that was taken whole: its first and last sequence number, its rows and bytes."""

    first: int
    last: int
    rows: int
    nbytes: int


@final
@dataclass(slots=True)
class HeldEvents:
    """Count the events of each shard that a process has taken and its job has not got.

    Who asks for more has put everything that it took before into the slot: so at most one event
    waits there. A drain that collects, or has been cancelled, holds as
    many rows as it was asked for; one that is full may have taken an event that does not fit.

    `wrongs` has what breaks a bound. `on_take` is called, where it is set,
    when an event has been put into its slot.

    Args:
        limit: The most bytes of all shards together, except for one event alone.
        drain_rows: The most rows that a drain may hold now.
        may_drain: Whether the job ever drains.
    """

    limit: int
    drain_rows: int = 0
    may_drain: bool = False
    wrongs: list[str] = field(default_factory=list)
    on_take: Callable[[], object] | None = None
    _held: dict[str, deque[_HeldEvent]] = field(default_factory=dict)
    _got: dict[str, int] = field(default_factory=dict)
    _inside: dict[str, bool] = field(default_factory=dict)

    def resume(self, shard_id: str, number: int, *, inside: bool = False) -> None:
        """Record that a shard is asked for again from a sequence number on.

        Args:
            shard_id: The shard.
            number: The number after which it is asked for.
            inside: Whether a part of the first record was handed on before.
        """
        self._inside[shard_id] = inside
        held = self._held.setdefault(shard_id, deque())
        while held and held[-1].last > number:
            held.pop()

    def take(self, shard_id: str, records: Sequence[SourceRecord], nbytes: int) -> None:
        """Record that the process asks for more behind an event that it has taken whole.

        Args:
            shard_id: Of which shard.
            records: The records of the event.
            nbytes: Their bytes in memory.
        """
        rows = sum(record.row_count for record in records)
        if self._inside.pop(shard_id, False):
            rows -= max(0, records[0].row_count - 1)  # one is left of the first record at least
        self.hold(shard_id, records[0].sequence, records[-1].sequence, rows, nbytes)

    def hold(self, shard_id: str, first: int, last: int, rows: int, nbytes: int) -> None:
        """Record an event that the process has taken whole, as it asks for more.

        Args:
            shard_id: Of which shard.
            first: Its first sequence number.
            last: Its last one.
            rows: The rows that the job has to get of it, at least.
            nbytes: Its bytes in memory.
        """
        held = self._held[shard_id]
        held.append(_HeldEvent(first, last, rows, nbytes))
        while held and held[0].first <= self._got.get(shard_id, 0):
            held.popleft()
        waiting = list(held)[: -2 if self.may_drain else -1]
        if sum(event.rows for event in waiting) > self.drain_rows:
            self.wrongs.append(
                f"unbounded: {len(held)} events of {shard_id} are held, and more is asked for"
            )
        self._check_bytes()
        if self.on_take is not None:
            self.on_take()

    def get(self, batch: Batch) -> None:
        """Record that the job has got a batch."""
        if isinstance(batch.range.until, Cursor):
            # A drain that was cancelled gives back what comes before all that it has collected.
            until = batch.range.until.sequence
            self._got[batch.split.id] = max(until, self._got.get(batch.split.id, 0))

    def excuse(self) -> None:
        """Record that a drain was cancelled: what it has collected waits for the next call."""
        for shard_id, held in self._held.items():
            if held:
                self._got[shard_id] = max(held[-1].last, self._got.get(shard_id, 0))

    def _check_bytes(self) -> None:
        if self.may_drain:
            return  # what a drain has collected is in its own bounds
        sizes = [
            event.nbytes
            for shard_id, held in self._held.items()
            for event in held
            if event.first > self._got.get(shard_id, 0)
        ]
        if len(sizes) > 1 and sum(sizes) > self.limit:
            self.wrongs.append(f"unbounded: {sum(sizes)} bytes are held, more than {self.limit}")
