"""Make what a simulated topic holds: plain and transactional batches, holes, and upheavals."""

from __future__ import annotations

import math
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING, Final, final

from fanout.kafka.partitions import Partition
from fanout.testing.kafka_batches import ABORT, CODECS, COMMIT, Row, batch, empty, marker
from fanout.testing.simulation.chance import happens
from fanout.testing.simulation.kafka.faults import ClusterFault, ClusterKind
from fanout.testing.simulation.kafka.log import Era, PartitionLog, Record, Stored, Transaction
from fanout.testing.simulation.stream import millis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from random import Random

__all__ = ("make_logs",)

_PRODUCERS: Final = (101, 102, 103)
_HELD: Final = 104
_UPHEAVALS: Final = {
    ClusterKind.EXPIRED,
    ClusterKind.TRUNCATED,
    ClusterKind.RECREATED,
    ClusterKind.DELETED,
}
# When the last transaction is over, as a part of the seconds in which records come.
_SETTLED: Final = 0.98


def make_logs(
    stream: Callable[[str], Random],
    partitions: Sequence[Partition],
    faults: Sequence[ClusterFault],
    *,
    batches: int,
    seconds: float,
    transactions: bool,
    large: bool,
) -> dict[Partition, PartitionLog]:
    """Make the logs of some partitions, those that are added later included.

    Args:
        stream: Returns the random numbers of a purpose.
        partitions: The partitions that there are from the beginning.
        faults: What happens to them.
        batches: About how many batches each has.
        seconds: For how long records come, in virtual seconds.
        transactions: Whether there are any.
        large: Whether there are large records.
    """
    began = dict.fromkeys(partitions, -math.inf)
    gone: set[str] = set()
    for fault in faults:
        topic = _topic_of(fault, partitions)
        if _of_topic(fault):
            gone.add(topic)
        elif fault.kind is ClusterKind.PARTITIONS_ADDED and topic not in gone:
            number = sum(partition.topic == topic for partition in began)
            for added in range(number, number + fault.amount):
                began[Partition(topic, added)] = fault.at
    logs = {}
    for partition, since in began.items():
        scribe = _Scribe(
            stream(f"load {partition}"), seconds, batches, transactions=transactions, large=large
        )
        own = [f for f in faults if f.partition in {None, str(partition)} or _of_topic(f)]
        logs[partition] = PartitionLog(
            partition, tuple(scribe.write(since, _own(own, partition, partitions)))
        )
    return logs


def _of_topic(fault: ClusterFault) -> bool:
    return fault.kind in {ClusterKind.RECREATED, ClusterKind.DELETED}


def _topic_of(fault: ClusterFault, partitions: Sequence[Partition]) -> str:
    named = partitions[0] if fault.partition is None else Partition.of(fault.partition)
    return named.topic


def _own(
    faults: Iterable[ClusterFault], partition: Partition, partitions: Sequence[Partition]
) -> Iterator[ClusterFault]:
    """Yield what happens to a partition; of those of a topic, those of its topic."""
    for fault in faults:
        if not _of_topic(fault):
            yield fault
        elif _topic_of(fault, partitions) == partition.topic:
            left_out = fault.kind is ClusterKind.RECREATED and partition.number >= fault.amount
            yield replace(fault, kind=ClusterKind.DELETED) if left_out else fault


@final
class _Scribe:
    """Write one partition.

    Args:
        random: Where chance comes from.
        seconds: For how long records come.
        batches: About how many batches there are in an era.
        transactions: Whether there are any.
        large: Whether there are large records.
    """

    def __init__(
        self, random: Random, seconds: float, batches: int, *, transactions: bool, large: bool
    ) -> None:
        self._random = random
        self._seconds = seconds
        self._count = batches
        self._has_transactions = transactions
        self._large = large
        self._clear()

    def _clear(self) -> None:
        self._end = 0
        self._batches: list[Stored] = []
        self._transactions: list[Transaction] = []
        self._open: dict[int, int] = {}
        self._starts: list[tuple[float, int]] = [(-math.inf, 0)]

    def write(self, since: float, faults: Iterable[ClusterFault]) -> Iterator[Era]:
        """Yield the eras of the partition, which begins at a moment."""
        gone_until = since
        for at, what in self._happenings(since, faults):
            if at < gone_until:
                continue
            match what:
                case str():
                    self._go_on(at, what)
                case ClusterFault(kind=ClusterKind.EXPIRED):
                    self._expire(at, what.amount)
                case ClusterFault(kind=ClusterKind.TRUNCATED):
                    if self._can_cut(what.amount):
                        yield self._era(since, at)
                        self._truncate(at, what.amount)
                        since = at
                case ClusterFault(kind=ClusterKind.RECREATED):
                    yield self._era(since, at)
                    self._clear()
                    gone_until = since = at + what.seconds
                case _:
                    yield self._era(since, at)
                    return
        yield self._era(since, math.inf)

    def _happenings(
        self, since: float, faults: Iterable[ClusterFault]
    ) -> list[tuple[float, str | ClusterFault]]:
        """Return all that happens, by moment: a word for what is written, or a fault."""
        happenings: list[tuple[float, str | ClusterFault]] = []
        happenings += [(at, "write") for at in self._moments(since)]
        for fault in faults:
            if fault.kind in _UPHEAVALS:
                happenings.append((fault.at, fault))
            elif fault.kind is ClusterKind.HELD_TRANSACTION and self._has_transactions:
                over = min(fault.at + fault.seconds, self._seconds * _SETTLED)
                happenings += [(fault.at, "hold"), (over, "let go")]
        happenings.append((self._seconds * _SETTLED, "settle"))
        return sorted(happenings, key=itemgetter(0))

    def _moments(self, since: float) -> list[float]:
        """Draw when something is written: some of it before the beginning, some at once."""
        random, first = self._random, max(0.0, since)
        count = random.randint(1, 2 * self._count)
        last = self._seconds * (_SETTLED - 0.01)
        moments = [max(first, random.uniform(-0.3, 1) * last) for _ in range(count)]
        return [-1.0 if at == 0.0 and since < 0 else at for at in sorted(moments)]

    def _go_on(self, at: float, what: str) -> None:
        match what:
            case "hold":
                self._append(at, _HELD)
            case "let go":
                self._finish(at, _HELD)
            case "settle":
                for producer in list(self._open):
                    self._finish(at, producer)
            case _ if self._has_transactions and happens(self._random, 0.6):
                producer = self._random.choice(_PRODUCERS)
                if producer in self._open and happens(self._random, 0.5):
                    self._finish(at, producer)
                else:
                    self._append(at, producer)
            case _:
                self._append(at, None)

    def _era(self, since: float, until: float) -> Era:
        return Era(
            since=since,
            until=until,
            batches=tuple(self._batches),
            transactions=tuple(self._transactions),
            starts=tuple(self._starts),
        )

    def _append(self, at: float, producer: int | None) -> None:
        """Append a batch, from which compaction may have taken something."""
        random, base = self._random, self._end
        if happens(random, 0.1):
            base += random.randint(1, 5)  # all that was there has been compacted
        count = random.choice((1, 1, 2, 3, 8))
        rows = [self._row(number, at) for number in range(count)]
        compacted = happens(random, 0.15)
        left = [row for row in rows if not (compacted and happens(random, 0.6))]
        place = None if producer is None else self._transaction(producer, base, at)
        codec = random.choice(CODECS)
        whose = -1 if producer is None else producer
        if left:
            data = batch(
                left,
                base,
                codec=codec,
                transactional=producer is not None,
                last=count - 1,
                producer=whose,
            )
        else:
            data = empty(base, count - 1, transactional=producer is not None, producer=whose)
        records = tuple(Record(base + row.offset, *row[1:]) for row in left)
        self._store(Stored(base, base + count, at, data, records, place))

    def _transaction(self, producer: int, first: int, at: float) -> int:
        if producer not in self._open:
            self._open[producer] = len(self._transactions)
            aborted = happens(self._random, 0.5)
            self._transactions.append(
                Transaction(producer, first, None, at, math.inf, aborted=aborted)
            )
        return self._open[producer]

    def _finish(self, at: float, producer: int) -> None:
        """Append the marker of a transaction's end, if it is open."""
        place = self._open.pop(producer, None)
        if place is None:
            return
        transaction = self._transactions[place]
        data = marker(ABORT if transaction.aborted else COMMIT, self._end, producer)
        self._transactions[place] = replace(transaction, last=self._end, ended=at)
        self._store(Stored(self._end, self._end + 1, at, data, ()))

    def _store(self, stored: Stored) -> None:
        self._batches.append(stored)
        self._end = stored.next_offset

    def _expire(self, at: float, left: int) -> None:
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

    def _can_cut(self, batches: int) -> bool:
        return 0 < batches < len(self._batches) and (
            self._batches[-batches].base >= self._starts[-1][1]
        )

    def _truncate(self, at: float, batches: int) -> None:
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
            self._finish(at, producer)

    def _row(self, number: int, at: float) -> Row:
        random = self._random
        size = random.choice((0, 1, 10, 100))
        if self._large and happens(random, 0.2):
            size = random.randrange(300_000)
        return Row(
            number,
            millis(at),
            random.choice((None, b"", random.randbytes(3))),
            None if happens(random, 0.05) else random.randbytes(size),
            (("h", random.choice((None, b"x"))),) if happens(random, 0.1) else (),
        )
