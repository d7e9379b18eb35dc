"""The watermark of a stream: the least of its splits' watermarks, without idle splits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from fanout.core.events import Batch, End

if TYPE_CHECKING:
    from fanout.core.events import Split


@final
@dataclass(slots=True, eq=False)
class _Member:
    """A split that takes part."""

    split: Split
    since: float  # when its last record came, or it began to count, on the clock of the wait
    watermark: int | None = None
    idle: bool = False  # whether another process that reads it says that it is idle


@final
class Watermarks:
    """Hold the least watermark of all splits that count; it never goes back.

    The rules are those of Apache Flink's sources ("Generating Watermarks", "Dealing With Idle
    Sources"): a split without a record holds the stream back, until it is idle; an idle split is
    left out until it has a record again; where every split is idle, or has left, the watermark
    stays. A split leaves with its end, or at the stop of a bounded stream. A split whose parents
    are still read is left out, as they stand for it.

    The clock stands still while the consumer is busy, as Flink's does under back-pressure
    (FLIP-471): records that wait for the consumer are no sign of an idle split. Where other
    processes read the splits, they wait for records, and say which splits are idle.

    `stream` is the stream's watermark in milliseconds since the Unix epoch; None as long as there
    is none. `idleness` are seconds, None for never. In a `bounded` stream a batch without lag is
    the last one of its split.
    """

    def __init__(self, *, idleness: float | None, bounded: bool) -> None:
        self.stream: int | None = None
        self.bounded = bounded
        self._idleness = math.inf if idleness is None else idleness
        self._members: dict[str, _Member] = {}
        self._clock = 0.0
        self._waiting_since: float | None = None
        self._holder: _Member | None = None
        self._held_at: int | None = None

    def add(self, split: Split, watermark: int | None = None) -> None:
        """Let a split take part, with the watermark that it has; None for none yet."""
        self._members[split.id] = _Member(split, self._clock, watermark)

    def restore(self) -> None:
        """Begin with the least watermark of the splits that take part, which they had before."""
        self._advance()

    def deliver(self, event: Batch | End, watermark: int | None) -> None:
        """Take in what was handed to the consumer, and the watermark of its split after that."""
        match event:
            case End():
                self.leave(event.split.id)
            case Batch():
                self.advance(event.split.id, watermark, records=bool(event.num_records))
                if self.bounded and event.lag == 0:
                    self.leave(event.split.id)

    def advance(
        self, split_id: str, watermark: int | None, *, records: bool, idle: bool = False
    ) -> None:
        """Take in the watermark of a split, and whether it had records; one that left is ignored.

        `idle` is whether another process says that the split is idle after them.
        """
        if (member := self._members.get(split_id)) is not None:
            if records:
                member.since = self._clock
            member.idle = idle or (member.idle and not records)
            member.watermark = watermark
            self._advance()

    def leave(self, split_id: str) -> None:
        """Leave a split out for good: it has ended, or is at its stop."""
        if (member := self._members.get(split_id)) is not None:
            self._leave(member)
            self._advance()

    def is_idle(self, split_id: str, now: float) -> bool:
        """Return whether a split that takes part has had no record for long, at the loop's time."""
        member = self._members.get(split_id)
        waited = 0.0 if self._waiting_since is None else now - self._waiting_since
        return member is not None and self._is_idle(member, waited)

    def begin_wait(self, now: float) -> None:
        """Note that the consumer waits and that nothing is ready for it."""
        self._waiting_since = now

    def end_wait(self, now: float) -> None:
        """Note that the wait is over, and leave out the splits that have become idle."""
        assert self._waiting_since is not None, "a wait has begun"
        self._clock += now - self._waiting_since
        self._waiting_since = None
        self._advance()

    def _leave(self, member: _Member) -> None:
        del self._members[member.split.id]
        for other in self._members.values():
            if member.split.id in other.split.parents:
                other.since = self._clock

    def _advance(self) -> None:
        """Move the stream's watermark to the least one that counts."""
        holder = self._holder
        # As long as one split holds the stream back where it did, the others need no look.
        if holder is not None and self._counts(holder) and holder.watermark == self._held_at:
            return
        counting = (member for member in self._members.values() if self._counts(member))
        holder = self._holder = min(counting, key=_height, default=None)
        self._held_at = None if holder is None else holder.watermark
        if self._held_at is not None and (self.stream is None or self._held_at > self.stream):
            self.stream = self._held_at

    def _counts(self, member: _Member) -> bool:
        return (
            member.split.id in self._members
            and not self._is_idle(member)
            and not any(parent in self._members for parent in member.split.parents)
        )

    def _is_idle(self, member: _Member, waited: float = 0.0) -> bool:
        return member.idle or self._clock + waited - member.since >= self._idleness


def _height(member: _Member) -> float:
    return -math.inf if member.watermark is None else member.watermark
