"""The log of a simulated partition at each moment: batches as a broker sends them, and records.

Everything is made from a seed before the run and never changes; so what a broker would answer at
any moment is a function of that moment, and what a reader must get is known beforehand.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fanout.kafka.partitions import Partition
    from fanout.kafka.shuffle.frames import ControlFrame

__all__ = (
    "KafkaRecord",
    "LogEra",
    "LoggedTransaction",
    "PartitionLog",
    "ProducerFrames",
    "StoredBatch",
)


class KafkaRecord(NamedTuple):
    """One record as a reader has to get it.

    Args:
        offset: Its offset.
        timestamp: When it was written, in milliseconds since the Unix epoch.
        key: Its key.
        value: Its value.
        headers: Its headers.
        event_time: When it happened, in milliseconds since the Unix epoch, where it is one of a
            shuffle and has a time.
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    event_time: int | None = None


@final
@dataclass(frozen=True, slots=True)
class ProducerFrames:
    """The control frames of a producer of a shuffle in a batch.

    Args:
        generation: The producer's generation.
        producer: Its number.
        controls: What it says of itself, with the offset of each, counted from the first.
        repeated: Whether it has written the same before, and does not know that it has arrived:
            such records may come behind its own watermark.
    """

    generation: int
    producer: int
    controls: tuple[tuple[int, ControlFrame], ...]
    repeated: bool = False


@final
@dataclass(frozen=True, slots=True)
class StoredBatch:
    """One batch of a log.

    Args:
        base: Its first offset.
        next_offset: The offset after its last, also where compaction has left less.
        at: When it can be read, in virtual seconds.
        data: Its bytes.
        records: Its records; none in a marker of a transaction's end.
        transaction: The place of its transaction in those of the era; None where it has none.
        frames: The frames of a producer of a shuffle in it; None where there is no shuffle.
    """

    base: int
    next_offset: int
    at: float
    data: bytes = field(repr=False)
    records: tuple[KafkaRecord, ...] = field(repr=False)
    transaction: int | None = None
    frames: ProducerFrames | None = field(default=None, repr=False)


@final
@dataclass(frozen=True, slots=True)
class LoggedTransaction:
    """A transaction, as it came out.

    Args:
        producer: The id of its producer.
        first: The offset of its first record.
        last: The offset of its marker; None where an era is over before that.
        began: When its first record came, in virtual seconds.
        ended: When its marker came.
        aborted: Whether readers of committed records leave it out.
    """

    producer: int
    first: int
    last: int | None
    began: float
    ended: float
    aborted: bool


@final
@dataclass(frozen=True)
class LogEra:
    """The log of a partition between two truncations or deletions.

    Args:
        since: When it begins, in virtual seconds.
        until: When it is over.
        batches: The batches, in the order of their offsets and of their moments.
        transactions: The transactions, by their first offsets.
        starts: From which moment on what is the oldest offset, by moment; the first from the
            beginning on.
        floor: The end of an era without batches.
    """

    since: float
    until: float
    batches: tuple[StoredBatch, ...] = field(repr=False)
    transactions: tuple[LoggedTransaction, ...] = field(repr=False)
    starts: tuple[tuple[float, int], ...] = ((-math.inf, 0),)
    floor: int = 0

    @cached_property
    def _moments(self) -> list[float]:
        return [batch.at for batch in self.batches]

    @cached_property
    def _ends(self) -> list[int]:
        return [batch.next_offset for batch in self.batches]

    @cached_property
    def committed(self) -> list[KafkaRecord]:
        """The records that a reader of what is committed has to get, all that there ever are."""
        return [
            record
            for batch in self.batches
            for record in batch.records
            if batch.transaction is None or self._is_committed(batch.transaction)
        ]

    @cached_property
    def everything(self) -> list[KafkaRecord]:
        """The records that a reader of everything has to get."""
        return [record for batch in self.batches for record in batch.records]

    def records(self, first: int, end: int, *, committed: bool) -> list[KafkaRecord]:
        """Return what a reader has to get between two offsets.

        Args:
            first: The first offset.
            end: The offset after the last.
            committed: Whether it reads only what is committed.
        """
        records = self.committed if committed else self.everything
        low = bisect_left(records, first, key=_offset)
        return records[low : bisect_left(records, end, key=_offset)]

    def spoken(self, first: int, end: int) -> Iterator[tuple[StoredBatch, ProducerFrames]]:
        """Yield the batches of producers of a shuffle that touch what lies between two offsets.

        Args:
            first: The first offset.
            end: The offset after the last.
        """
        for batch in self.batches[bisect_right(self._ends, first) :]:
            if batch.base >= end:
                return
            if batch.frames is not None and (
                batch.transaction is None or self._is_committed(batch.transaction)
            ):
                yield batch, batch.frames

    def start(self, now: float) -> int:
        """Return the oldest offset at a moment."""
        place = bisect_right(self.starts, now, key=_moment)
        return self.starts[max(0, place - 1)][1]

    def high_watermark(self, now: float) -> int:
        """Return the offset after the last record at a moment."""
        count = bisect_right(self._moments, now)
        end = self.batches[count - 1].next_offset if count else self.floor
        return max(end, self.start(now))

    def last_stable(self, now: float) -> int:
        """Return the offset of the first record of an open transaction, else the end."""
        opened = (one.first for one in self.transactions if one.began <= now < one.ended)
        return min(opened, default=self.high_watermark(now))

    def end(self, now: float, *, committed: bool) -> int:
        """Return the offset after the last record that a reader can get at a moment."""
        return self.last_stable(now) if committed else self.high_watermark(now)

    def next_change(self, now: float) -> float:
        """Return when there is next something new to be read; infinity for never."""
        place = bisect_right(self._moments, now)
        return min(self._moments[place] if place < len(self._moments) else math.inf, self.until)

    def readable(self, offset: int, now: float, *, committed: bool) -> Sequence[StoredBatch]:
        """Return the batches from that one on that holds an offset, as far as they can be read."""
        end = self.end(now, committed=committed)
        first = bisect_right(self._ends, offset)
        return self.batches[first : max(first, bisect_right(self._ends, end))]

    def aborted(self, offset: int, end: int, now: float) -> list[LoggedTransaction]:
        """Return the aborted transactions that touch what lies between two offsets."""
        return [
            one
            for one in self.transactions
            if one.aborted and one.ended <= now and one.last is not None
            if one.last >= offset and one.first < end
        ]

    def at_time(self, millis: int, now: float, *, committed: bool) -> int | None:
        """Return the offset of the first record that is not older than a time."""
        end = self.end(now, committed=committed)
        young = (
            record.offset
            for batch in self.readable(self.start(now), now, committed=committed)
            for record in batch.records
            if record.timestamp >= millis and self.start(now) <= record.offset < end
        )
        return next(young, None)

    def _is_committed(self, place: int) -> bool:
        transaction = self.transactions[place]
        return transaction.last is not None and not transaction.aborted


@final
@dataclass(frozen=True)
class PartitionLog:
    """One partition, through all of its eras.

    Args:
        partition: The partition.
        eras: Its eras, in order; between two of them it may not be there.
    """

    partition: Partition
    eras: tuple[LogEra, ...]

    def place(self, now: float) -> int | None:
        """Return the place of the era at a moment; None where there is no such partition then."""
        for place, era in enumerate(self.eras):
            if era.since <= now < era.until:
                return place
        return None

    def era(self, now: float) -> LogEra | None:
        """Return the era at a moment."""
        place = self.place(now)
        return None if place is None else self.eras[place]

    def next_change(self, now: float) -> float:
        """Return when there is next something new: records, or another era."""
        era = self.era(now)
        if era is not None:
            return era.next_change(now)
        return min((era.since for era in self.eras if era.since > now), default=math.inf)

    def lost(self, offset: int, since: float, now: float) -> bool:
        """Return whether what comes at an offset was lost at any moment between two.

        Args:
            offset: Where a reader stands.
            since: The first moment.
            now: The last one.
        """
        if any(self._is_lost(offset, moment) for moment in (since, now)):
            return True
        moments = [at for era in self.eras for at in (era.since, era.until)]
        moments += [at for era in self.eras for at, _ in era.starts]
        return any(self._is_lost(offset, at) for at in moments if since <= at <= now)

    def _is_lost(self, offset: int, now: float) -> bool:
        era = self.era(now)
        return era is None or not era.start(now) <= offset <= era.high_watermark(now)


def _offset(record: KafkaRecord) -> int:
    return record.offset


def _moment(start: tuple[float, int]) -> float:
    return start[0]
