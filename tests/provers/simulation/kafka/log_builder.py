"""One partition while it is written: batches, transactions, and what upheavals leave of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, final

from tests.provers.simulation.kafka.partition_log import LogEra, LoggedTransaction, StoredBatch
from tests.provers.simulation.randomness import happens
from tests.support.kafka.record_batches import ABORT, CODECS, COMMIT, batch, empty, marker

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from tests.provers.simulation.kafka.partition_log import KafkaRecord, ProducerFrames
    from tests.support.kafka.record_batches import BatchRow

__all__ = ("BatchContent", "LogBuilder", "PartitionWriter")


@final
@dataclass(frozen=True, slots=True)
class BatchContent:
    """The content of a batch; offsets count from its first one.

    Args:
        rows: What a broker keeps.
        records: What a reader has to get of that.
        width: How many offsets it takes.
        frames: The frames of a producer of a shuffle in it; None where there is no shuffle.
    """

    rows: Sequence[BatchRow]
    records: Sequence[KafkaRecord]
    width: int
    frames: ProducerFrames | None = None


class PartitionWriter(Protocol):
    """The writer of a partition."""

    def write(self, at: float) -> None:
        """Write something at a moment: a batch, or the end of a transaction."""

    def hold(self, at: float) -> None:
        """Write something into a transaction that stays open."""

    def let_go(self, at: float) -> None:
        """End that transaction."""

    def settle(self, at: float) -> None:
        """End all transactions: no record is written any more."""


@final
class LogBuilder:
    """Write one partition.

    Args:
        random: Where chance comes from.
        aborted: The share of transactions that are aborted.
    """

    def __init__(self, random: Random, *, aborted: float) -> None:
        self._random = random
        self._aborted = aborted
        self.clear()

    def clear(self) -> None:
        """Begin with nothing."""
        self._end = 0
        self._batches: list[StoredBatch] = []
        self._transactions: list[LoggedTransaction] = []
        self._open: dict[int, int] = {}
        self._starts: list[tuple[float, int]] = [(-math.inf, 0)]

    def era(self, since: float, until: float) -> LogEra:
        """Return what was written, as the partition has it between two moments."""
        return LogEra(
            since=since,
            until=until,
            batches=tuple(self._batches),
            transactions=tuple(self._transactions),
            starts=tuple(self._starts),
        )

    @property
    def open(self) -> list[int]:
        """The producers with an open transaction."""
        return list(self._open)

    def skip(self, offsets: int) -> None:
        """Leave out offsets: all that was there has been compacted."""
        self._end += offsets

    def append(self, at: float, producer: int | None, page: BatchContent) -> None:
        """Append a batch, to the transaction of a producer where there is one."""
        base, whose = self._end, -1 if producer is None else producer
        place = None if producer is None else self._transaction(producer, base, at)
        codec, last = self._random.choice(CODECS), page.width - 1
        if page.rows:
            data = batch(
                page.rows,
                base,
                codec=codec,
                transactional=producer is not None,
                last=last,
                producer=whose,
            )
        else:
            data = empty(base, last, transactional=producer is not None, producer=whose)
        records = tuple(each._replace(offset=base + each.offset) for each in page.records)
        self._store(StoredBatch(base, base + page.width, at, data, records, place, page.frames))

    def finish(self, at: float, producer: int) -> LoggedTransaction | None:
        """Append the marker of a transaction's end, and return it; None where it is not open."""
        place = self._open.pop(producer, None)
        if place is None:
            return None
        transaction = replace(self._transactions[place], last=self._end, ended=at)
        data = marker(ABORT if transaction.aborted else COMMIT, self._end, producer)
        self._transactions[place] = transaction
        self._store(StoredBatch(self._end, self._end + 1, at, data, ()))
        return transaction

    def expire(self, at: float, left: int) -> None:
        """Delete what is old, but for the newest batches; sometimes up to the middle of one."""
        first = len(self._batches) - left
        if first <= 0:
            return
        stored = self._batches[first] if left else self._batches[-1]
        start = stored.base if left else stored.next_offset
        if left and happens(self._random, 0.3):
            start = self._random.randrange(stored.base, stored.next_offset)
        # A transaction that is open is newer than what expires.
        opened = [self._transactions[place].first for place in self._open.values()]
        start = min([start, *opened])
        if start > self._starts[-1][1]:
            self._starts.append((at, start))

    def can_cut(self, batches: int) -> bool:
        """Return whether that many of the newest batches can be cut off."""
        return 0 < batches < len(self._batches) and (
            self._batches[-batches].base >= self._starts[-1][1]
        )

    def truncate(self, at: float, batches: int) -> None:
        """Cut the newest batches off; transactions that end in them are ended once more."""
        self._end = self._batches[-batches].base
        del self._batches[-batches:]
        self._transactions = [one for one in self._transactions if one.first < self._end]
        reopened = {
            one.producer: place
            for place, one in enumerate(self._transactions)
            if one.last is None or one.last >= self._end
        }
        self._open = {}
        for producer, place in reopened.items():
            one = self._transactions[place]
            self._transactions[place] = replace(one, last=None, ended=math.inf, aborted=True)
            self._open[producer] = place
            self.finish(at, producer)

    def _transaction(self, producer: int, first: int, at: float) -> int:
        if producer not in self._open:
            self._open[producer] = len(self._transactions)
            aborted = happens(self._random, self._aborted)
            self._transactions.append(
                LoggedTransaction(producer, first, None, at, math.inf, aborted=aborted)
            )
        return self._open[producer]

    def _store(self, stored: StoredBatch) -> None:
        self._batches.append(stored)
        self._end = stored.next_offset
