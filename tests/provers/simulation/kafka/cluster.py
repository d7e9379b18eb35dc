"""The leaders, dead brokers and listings of a simulated cluster, as functions of time."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Final, TypeAlias, final

from tests.provers.simulation.kafka.faults import KafkaFault, KafkaFaultKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from random import Random

    from fanout.kafka.partitions import Partition
    from tests.provers.simulation.kafka.partition_log import PartitionLog

__all__ = ("LeaderSpan", "SimCluster")

# How long an election takes where a leader has died, and how long a broker that has just started
# knows no topic, in seconds.
_ELECTION: Final = 2.0
_WARMING: Final = 3.0
# After how many seconds a cluster misses a broker that it does not hear of
# (`broker.session.timeout.ms`).
_SESSION: Final = 9.0

_Timeline: TypeAlias = "list[tuple[float, int | None]]"


@final
@dataclass(frozen=True, slots=True)
class LeaderSpan:
    """From when to when something is so, in virtual seconds."""

    since: float
    until: float
    amount: int = 0

    def __contains__(self, now: float) -> bool:
        return self.since <= now < self.until

    def after(self, seconds: float) -> LeaderSpan:
        """Return what is left of it after its first seconds."""
        return LeaderSpan(self.since + seconds, self.until)


@final
@dataclass(slots=True)
class _SimBroker:
    """When a broker is down, silent, frozen, slow, or has just started."""

    down: list[LeaderSpan] = field(default_factory=list)
    silent: list[LeaderSpan] = field(default_factory=list)
    frozen: list[LeaderSpan] = field(default_factory=list)
    slow: list[LeaderSpan] = field(default_factory=list)
    warming: list[LeaderSpan] = field(default_factory=list)


@final
class SimCluster:
    """A few brokers, and the partitions that they lead.

    Args:
        logs: What the partitions hold.
        brokers: How many brokers there are.
        faults: What happens to them.
        until: When all of that is over, in virtual seconds.
        random: Who leads at first, and after an election.
        rack: The broker in the rack of the clients; 0 for none.
    """

    def __init__(
        self,
        logs: Mapping[Partition, PartitionLog],
        brokers: int,
        faults: Iterable[KafkaFault],
        *,
        until: float,
        random: Random,
        rack: int = 0,
    ) -> None:
        self.logs = logs
        self.rack = rack
        self.brokers = {number: _SimBroker() for number in range(1, brokers + 1)}
        self._until = until
        self._random = random
        self._leaders: dict[Partition, _Timeline] = {}
        # When a listing says it, since when it is so, and who leads.
        self._leaders_by_time: dict[Partition, list[tuple[float, float, int | None]]] = {}
        self._lagging: defaultdict[Partition, list[LeaderSpan]] = defaultdict(list)
        self._unseen: defaultdict[str, list[LeaderSpan]] = defaultdict(list)
        for partition in logs:
            first = random.randint(1, brokers)
            self._leaders[partition] = [(-math.inf, first)]
            self._leaders_by_time[partition] = [(-math.inf, -math.inf, first)]
        for fault in faults:
            for partition in self._meant(fault):
                self._strike_service(fault, partition)
            self._befall_broker(fault)

    def leader(self, partition: Partition, now: float) -> int | None:
        """Return who leads a partition; None where there is no leader."""
        return _at(self._leaders[partition], now)

    def listed_leader(self, partition: Partition, now: float) -> int | None:
        """Return who leads a partition by the listings, which may be late."""
        known = [change for change in self._leaders_by_time[partition] if change[0] <= now]
        return max(reversed(known), key=lambda change: change[1])[2]

    def is_seen(self, topic: str, now: float) -> bool:
        """Return whether listings name a topic."""
        if any(now in span for span in self._unseen[topic]):
            return False
        return bool(self.numbers(topic, now))

    def numbers(self, topic: str, now: float) -> Sequence[int]:
        """Return the numbers of the partitions that a topic has at a moment."""
        return [
            partition.number
            for partition, log in self.logs.items()
            if partition.topic == topic and log.era(now) is not None
        ]

    @property
    def topics(self) -> Sequence[str]:
        """The topics that there ever are."""
        return sorted({partition.topic for partition in self.logs})

    def lag(self, partition: Partition, now: float) -> int | None:
        """Return how many of the newest batches the leader does not know yet, if it lags."""
        return next((span.amount for span in self._lagging[partition] if now in span), None)

    def lags_between(self, partition: Partition, since: float, now: float) -> bool:
        """Return whether the leader has not known the newest records for a while."""
        return any(s.since <= now and since <= s.until for s in self._lagging[partition])

    def down(self, broker: int, now: float) -> bool:
        """Return whether a broker is down."""
        return any(now in span for span in self.brokers[broker].down)

    def died(self, broker: int, since: float, now: float) -> bool:
        """Return whether a broker has died between two moments, so that a request has no answer."""
        return any(since <= span.since <= now for span in self.brokers[broker].down)

    def next_death(self, broker: int, now: float) -> float:
        """Return when a broker dies next; infinity for never."""
        deaths = (span.since for span in self.brokers[broker].down)
        return min((death for death in deaths if death > now), default=math.inf)

    def next_freeze(self, broker: int, now: float) -> float:
        """Return when a broker freezes next; infinity for never."""
        freezes = (span.since for span in self.brokers[broker].frozen)
        return min((freeze for freeze in freezes if freeze > now), default=math.inf)

    def silent_until(self, broker: int, now: float) -> float | None:
        """Return until when a broker answers nothing; None where it answers."""
        return next((span.until for span in self.brokers[broker].silent if now in span), None)

    @property
    def freezes(self) -> bool:
        """Whether a broker ever freezes."""
        return any(broker.frozen for broker in self.brokers.values())

    def frozen(self, broker: int, now: float) -> bool:
        """Return whether a broker accepts requests and answers none."""
        return any(now in span for span in self.brokers[broker].frozen)

    def missed_since(self, broker: int, now: float) -> float | None:
        """Return since when the cluster misses a broker; None where it does not."""
        state = self.brokers[broker]
        return next(
            (s.since + _SESSION for s in (*state.frozen, *state.down) if now in s.after(_SESSION)),
            None,
        )

    def hears_all(self, but: int, since: float, now: float) -> bool:
        """Return whether all other brokers have answered at once all the time since a moment."""
        return not any(
            span.since <= now and since < span.until
            for number, broker in self.brokers.items()
            if number != but
            for span in (*broker.down, *broker.silent, *broker.slow, *broker.warming)
        )

    def near(self, partition: Partition, now: float) -> int | None:
        """Return the replica in the clients' rack that a leader names; None for none."""
        if not self.rack or self.leader(partition, now) == self.rack:
            return None
        state = self.brokers[self.rack]
        away = self.missed_since(self.rack, now) is not None
        return None if away or any(now in span for span in state.warming) else self.rack

    def slow(self, broker: int, now: float) -> bool:
        """Return whether a broker takes long."""
        return any(now in span for span in self.brokers[broker].slow)

    def warming(self, broker: int, now: float) -> bool:
        """Return whether a broker has just started, and knows no topic yet."""
        return any(now in span for span in self.brokers[broker].warming)

    def _meant(self, fault: KafkaFault) -> list[Partition]:
        if fault.partition is None:
            return list(self.logs)
        return [partition for partition in self.logs if str(partition) == fault.partition]

    def _span(self, fault: KafkaFault) -> LeaderSpan:
        return LeaderSpan(fault.at, min(fault.at + fault.seconds, self._until), fault.amount)

    def _strike_service(self, fault: KafkaFault, partition: Partition) -> None:
        span = self._span(fault)
        match fault.kind:
            case KafkaFaultKind.LEADER_MOVES:
                self._lead(partition, span.since, self._another(partition, span.since), span.until)
            case KafkaFaultKind.NO_LEADER:
                self._lead(partition, span.since, None, span.since)
                self._lead(partition, span.until, self._anyone(span.until) or 1, span.until)
            case KafkaFaultKind.LAGGING_LEADER:
                self._lagging[partition].append(span)
            case KafkaFaultKind.UNSEEN if not self._unseen[partition.topic]:
                self._unseen[partition.topic].append(span)
            case _:
                pass

    def _befall_broker(self, fault: KafkaFault) -> None:
        number = 1 + fault.amount % len(self.brokers)
        broker, span = self.brokers[number], self._span(fault)
        match fault.kind:
            case KafkaFaultKind.BROKER_HANGS:
                broker.silent.append(span)
            case KafkaFaultKind.BROKER_FREEZES:
                broker.silent.append(span)
                broker.frozen.append(span)
                missed = span.since + _SESSION
                for partition in self.logs:
                    if missed < span.until and self.leader(partition, missed) == number:
                        successor = self._anyone(missed)
                        if successor is not None:
                            self._lead(partition, missed, successor, missed)
            case KafkaFaultKind.BROKER_SLOW:
                broker.slow.append(span)
            case KafkaFaultKind.BROKER_DIES:
                broker.down.append(span)
                broker.warming.append(
                    LeaderSpan(span.until, min(span.until + _WARMING, self._until))
                )
                for partition in self.logs:
                    if self.leader(partition, span.since) == number:
                        self._elect(partition, span, number)
            case _:
                pass

    def _elect(self, partition: Partition, span: LeaderSpan, number: int) -> None:
        """Let another broker lead what one that dies has led; where none is up, wait for it."""
        over = min(span.since + _ELECTION, span.until)
        successor = self._anyone(over)
        self._lead(partition, span.since, None, span.since)
        if successor is None:
            over, successor = span.until, self._anyone(span.until) or number
        self._lead(partition, over, successor, over)

    def _lead(self, partition: Partition, at: float, leader: int | None, known_at: float) -> None:
        """Let a broker lead from a moment on, in place of another; listings say it later."""
        timeline = self._leaders[partition]
        timeline.insert(bisect_right(timeline, at, key=itemgetter(0)), (at, leader))
        self._leaders_by_time[partition].append((known_at, at, leader))

    def _another(self, partition: Partition, now: float) -> int | None:
        others = [b for b in self._up(now) if b != self.leader(partition, now)]
        return self._random.choice(others) if others else self.leader(partition, now)

    def _anyone(self, now: float) -> int | None:
        up = self._up(now)
        return self._random.choice(up) if up else None

    def _up(self, now: float) -> list[int]:
        return [n for n in self.brokers if not self.down(n, now) and not self.frozen(n, now)]


def _at(timeline: _Timeline, now: float) -> int | None:
    return timeline[bisect_right(timeline, now, key=itemgetter(0)) - 1][1]
