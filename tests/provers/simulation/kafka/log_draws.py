"""Make what simulated topics hold: what is written, and the upheavals in between."""

from __future__ import annotations

import math
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING, Final, final

from fanout.kafka.partitions import Partition
from tests.provers.simulation.kafka.faults import KafkaFault, KafkaFaultKind
from tests.provers.simulation.kafka.log_builder import LogBuilder
from tests.provers.simulation.kafka.partition_log import PartitionLog
from tests.provers.simulation.kafka.shuffle.generations import draw_generations
from tests.provers.simulation.kafka.shuffle.shuffle_writer import ShuffleLogWriter
from tests.provers.simulation.kafka.topic_writer import TopicWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from random import Random

    from tests.provers.simulation.kafka.log_builder import PartitionWriter
    from tests.provers.simulation.kafka.partition_log import LogEra

__all__ = ("make_logs",)

_UPHEAVALS: Final = {
    KafkaFaultKind.EXPIRED,
    KafkaFaultKind.TRUNCATED,
    KafkaFaultKind.RECREATED,
    KafkaFaultKind.DELETED,
}
# The share of transactions that are aborted.
_ABORTED: Final = 0.5
_ABORTED_IN_SHUFFLE: Final = 0.25
# When the last transaction is over, as a part of the seconds in which records come.
_SETTLED: Final = 0.98
# For how long producers say that they live, which is longer than any reader needs to recover, and
# how often, which is less than what is taken for silence; in seconds.
_SIGNS: Final = 900
_SIGN_EVERY: Final = 5


def make_logs(
    stream: Callable[[str], Random],
    partitions: Sequence[Partition],
    faults: Sequence[KafkaFault],
    *,
    batches: int,
    seconds: float,
    transactions: bool,
    large: bool,
    producers: int = 0,
    generations: int = 1,
    go_on: bool = False,
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
        producers: How many producers of a shuffle write at once, at the most; 0 for no shuffle.
        generations: How many generations there are of those.
        go_on: Whether producers that live say so for long when no more records come.
    """
    began = dict.fromkeys(partitions, -math.inf)
    gone: set[str] = set()
    for fault in faults:
        topic = _topic_of(fault, partitions)
        if _of_topic(fault):
            gone.add(topic)
        elif fault.kind is KafkaFaultKind.PARTITIONS_ADDED and topic not in gone:
            number = sum(partition.topic == topic for partition in began)
            for added in range(number, number + fault.amount):
                began[Partition(topic, added)] = fault.at
    shuffles = {
        topic: draw_generations(
            stream(f"producers {topic}"),
            generations,
            producers,
            partitions=sum(partition.topic == topic for partition in partitions),
            seconds=seconds,
            transactions=transactions,
        )
        for topic in {partition.topic: None for partition in partitions if producers}
    }
    logs = {}
    for partition, since in began.items():
        random = stream(f"load {partition}")
        if partition.topic in shuffles:
            builder = LogBuilder(random, aborted=_ABORTED_IN_SHUFFLE)
            author: PartitionWriter = ShuffleLogWriter(builder, random, shuffles[partition.topic])
        else:
            builder = LogBuilder(random, aborted=_ABORTED)
            author = TopicWriter(builder, random, transactions=transactions, large=large)
        signs = [seconds + after for after in range(1, _SIGNS, _SIGN_EVERY)] if go_on else []
        scribe = _Scribe(builder, author, random, seconds, batches, signs=signs)
        own = [f for f in faults if f.partition in {None, str(partition)} or _of_topic(f)]
        logs[partition] = PartitionLog(
            partition, tuple(scribe.write(since, _own(own, partition, partitions)))
        )
    return logs


def _of_topic(fault: KafkaFault) -> bool:
    return fault.kind in {KafkaFaultKind.RECREATED, KafkaFaultKind.DELETED}


def _topic_of(fault: KafkaFault, partitions: Sequence[Partition]) -> str:
    named = partitions[0] if fault.partition is None else Partition.of(fault.partition)
    return named.topic


def _own(
    faults: Iterable[KafkaFault], partition: Partition, partitions: Sequence[Partition]
) -> Iterator[KafkaFault]:
    """Yield what happens to a partition; of those of a topic, those of its topic."""
    for fault in faults:
        if not _of_topic(fault):
            yield fault
        elif _topic_of(fault, partitions) == partition.topic:
            left_out = fault.kind is KafkaFaultKind.RECREATED and partition.number >= fault.amount
            yield replace(fault, kind=KafkaFaultKind.DELETED) if left_out else fault


@final
class _Scribe:
    """Let a partition be written, and upheavals happen to it.

    Args:
        sheet: The partition.
        author: The writer.
        random: When something is written.
        seconds: For how long records come.
        batches: About how many batches there are in an era.
        signs: When producers say that they live, after all that.
    """

    def __init__(
        self,
        builder: LogBuilder,
        author: PartitionWriter,
        random: Random,
        seconds: float,
        batches: int,
        *,
        signs: Sequence[float],
    ) -> None:
        self._builder = builder
        self._author = author
        self._random = random
        self._seconds = seconds
        self._count = batches
        self._signs = signs

    def write(self, since: float, faults: Iterable[KafkaFault]) -> Iterator[LogEra]:
        """Yield the eras of the partition, which begins at a moment."""
        gone_until = since
        for at, what in self._happenings(since, faults):
            if at < gone_until:
                continue
            match what:
                case str():
                    self._go_on(at, what)
                case KafkaFault(kind=KafkaFaultKind.EXPIRED):
                    self._builder.expire(at, what.amount)
                case KafkaFault(kind=KafkaFaultKind.TRUNCATED):
                    if self._builder.can_cut(what.amount):
                        yield self._builder.era(since, at)
                        self._builder.truncate(at, what.amount)
                        since = at
                case KafkaFault(kind=KafkaFaultKind.RECREATED):
                    yield self._builder.era(since, at)
                    self._builder.clear()
                    gone_until = since = at + what.seconds
                case _:
                    yield self._builder.era(since, at)
                    return
        yield self._builder.era(since, math.inf)

    def _happenings(
        self, since: float, faults: Iterable[KafkaFault]
    ) -> list[tuple[float, str | KafkaFault]]:
        """Return all that happens, by moment: a word for what is written, or a fault."""
        happenings: list[tuple[float, str | KafkaFault]] = []
        happenings += [(at, "write") for at in self._moments(since)]
        for fault in faults:
            if fault.kind in _UPHEAVALS:
                happenings.append((fault.at, fault))
            elif fault.kind is KafkaFaultKind.HELD_TRANSACTION:
                over = min(fault.at + fault.seconds, self._seconds * _SETTLED)
                happenings += [(fault.at, "hold"), (over, "let go")]
        happenings += [(at, "settle") for at in (self._seconds * _SETTLED, *self._signs)]
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
                self._author.hold(at)
            case "let go":
                self._author.let_go(at)
            case "settle":
                self._author.settle(at)
            case _:
                self._author.write(at)
