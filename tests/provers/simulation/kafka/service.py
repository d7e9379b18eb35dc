"""Answer the requests of a simulated cluster, after the time that an answer takes."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, final

from aiokafka.errors import (
    KafkaConnectionError,
    NotLeaderForPartitionError,
    OffsetOutOfRangeError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)

from fanout.kafka.reading.transport import AbortedTransaction, Fetched, OffsetSpec
from fanout.testing.virtual_time.loop import running_loop
from tests.provers.simulation.kafka.faults import ERRORS, KafkaFault, KafkaFaultKind, KafkaFaultSite
from tests.provers.simulation.kafka.moments import KafkaSometimes, note_answer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from random import Random

    from fanout.kafka.partitions import Partition
    from fanout.kafka.reading.transport import PartitionFetch
    from tests.provers.simulation.armed_faults import ArmedFaults
    from tests.provers.simulation.kafka.cluster import SimCluster
    from tests.provers.simulation.kafka.partition_log import LogEra, StoredBatch
    from tests.provers.simulation.kafka.sent_responses import SentResponses

__all__ = ("KafkaSimService",)

# How long a broker takes, in seconds: usually, and where it is slow.
_LATENCY: Final = 0.002
_SLOW: Final = (0.5, 8.0)
# Two requests, one behind the other, may be as long under way together as a broker may be silent.
_LONG: Final = 10.0


@final
@dataclass(frozen=True, slots=True)
class StoredOffset:
    """When a process has stored an offset of its group.

    Args:
        at: When, in virtual seconds.
        blocked: For how many seconds its loop had stood still by then.
        run: The number of the process; 0 once a call about the group has failed.
    """

    at: float
    blocked: float
    run: int


def run_blocked() -> float:
    """Return for how many seconds the loop has stood still."""
    return running_loop().blocked


@final
class KafkaSimService:
    """Answer requests as brokers do; each may be refused, cut, late, or damaged.

    Args:
        cluster: The brokers, and what they hold.
        armed: What goes wrong with single requests.
        random: How long a slow broker takes, and which bit is damaged.
        committed: Whether only what is committed is read.
        request_timeout: How long a client waits for an answer, in seconds.
        fetch_max_bytes: About how many bytes an answer has at the most.
    """

    def __init__(
        self,
        cluster: SimCluster,
        armed: ArmedFaults[KafkaFault],
        random: Random,
        *,
        committed: bool,
        request_timeout: float,
        fetch_max_bytes: int,
    ) -> None:
        self.cluster = cluster
        self.armed = armed
        self.committed = committed
        self.fetch_max_bytes = fetch_max_bytes
        self.calls: Counter[str] = Counter()
        self.moments: Counter[str] = Counter()
        self.offsets: dict[Partition, int] = {}
        """The offsets that the group has committed."""
        self.forgotten: set[Partition] = set()
        """The partitions whose offset the cluster has forgotten at some time."""
        self._random = random
        self._request_timeout = request_timeout
        self._requests = 0
        self._stored: dict[Partition, StoredOffset] = {}
        self._rotten: set[tuple[Partition, int]] = set()

    @property
    def now(self) -> float:
        """The virtual seconds."""
        return asyncio.get_running_loop().time()

    @contextmanager
    def counted(self, name: str, sent_responses: SentResponses) -> Iterator[None]:
        """Count a call, and know of it while it is under way."""
        self.calls[name] += 1
        self._requests += 1
        number = self._requests
        sent_responses.calling[number] = name, self.now
        try:
            yield
        finally:
            del sent_responses.calling[number]

    async def reach(
        self,
        broker: int,
        sent_responses: SentResponses,
        hang: float = 0.0,
        broken: asyncio.Future[Exception] | None = None,
    ) -> None:
        """Let a request travel to a broker and its answer back, however long that takes.

        Args:
            broker: The broker.
            sent_responses: The responses to the process that asks.
            hang: For how many seconds it gets no answer.
            broken: The reason, once the client has closed the connection; None where it never does.

        Raises:
            KafkaConnectionError: The broker is down, or dies meanwhile.
            RequestTimedOutError: It does not answer in time.
        """
        began, cluster = self.now, self.cluster
        if broker not in cluster.brokers or cluster.down(broker, began):
            await asyncio.sleep(_LATENCY)
            raise sent_responses.gives(KafkaConnectionError(f"broker {broker} is down"))
        takes = self._random.uniform(*_SLOW) if cluster.slow(broker, began) else _LATENCY
        silent = cluster.silent_until(broker, began)
        takes = max(takes, hang, 0.0 if silent is None else silent - began)
        sent_responses.hung += takes > _LONG
        patience = min(takes, self._request_timeout)
        if broken is None:
            await asyncio.sleep(patience)
        elif (await asyncio.wait({broken}, timeout=patience))[0]:
            self.moments[KafkaSometimes.BROKEN_OFF] += 1
            raise sent_responses.gives(broken.result())
        if cluster.died(broker, began, self.now):
            raise sent_responses.gives(KafkaConnectionError(f"broker {broker} has died"))
        if takes > self._request_timeout:
            raise sent_responses.gives(RequestTimedOutError(f"broker {broker} did not answer"))

    def any_broker(self, but: Sequence[int] = ()) -> int:
        """Return a broker for a request that any can answer: one that is up, if there is one."""
        cluster = self.cluster
        for number in cluster.brokers:
            away = cluster.down(number, self.now) or cluster.frozen(number, self.now)
            if number not in but and not away:
                return number
        return 1

    def store(self, offsets: Mapping[Partition, int], run: int) -> None:
        """Store offsets of the group for a process."""
        for partition, offset in offsets.items():
            self.moments[KafkaSometimes.STORED_AGAIN] += self.offsets.get(partition) == offset
            self.offsets[partition] = offset
            self._stored[partition] = StoredOffset(self.now, run_blocked(), run)

    def fails_group(self) -> None:
        """Note that a call about the group has failed, so that offsets may be forgotten."""
        self._stored = {p: replace(one, run=0) for p, one in self._stored.items()}

    def forget_offsets(self, run: int) -> list[Partition]:
        """Forget what is too old; return what of it a process could have stored again."""
        kept = min((f.seconds for f in self.armed.of(KafkaFaultSite.GROUP)), default=math.inf)
        old = [p for p, one in self._stored.items() if self.now - one.at > kept]
        stored = {partition: self._stored.pop(partition) for partition in old}
        for partition in old:
            self.offsets.pop(partition, None)
            self.forgotten.add(partition)
        return [p for p, one in stored.items() if one.run == run and one.blocked == run_blocked()]

    async def wait_for_change(
        self, broker: int, partitions: Sequence[Partition], until: float
    ) -> None:
        """Wait until there is something new in one of some partitions, or until a moment.

        Args:
            broker: The broker that holds the request; its death or freeze ends the wait too.
            partitions: The partitions.
            until: The moment.
        """
        now = self.now
        logs = self.cluster.logs
        until = min(until, self.cluster.next_death(broker, now))
        until = min(until, self.cluster.next_freeze(broker, now))
        first = min((logs[p].next_change(now) for p in partitions if p in logs), default=until)
        # A timer may strike by the resolution of the clock too early.
        await asyncio.sleep(max(0.0, min(first, until) - now) + 1e-6)

    def check_leader(self, broker: int, partition: Partition, *, replica: bool = False) -> LogEra:
        """Return what a broker that is asked for a partition has of it.

        Args:
            broker: The broker.
            partition: The partition.
            replica: Whether a replica near the client will do.

        Raises:
            UnknownTopicOrPartitionError: It knows of none.
            NotLeaderForPartitionError: Another broker leads it.
        """
        now, cluster = self.now, self.cluster
        log = cluster.logs.get(partition)
        era = None if log is None else log.era(now)
        if era is None or cluster.warming(broker, now):
            self.moments[KafkaSometimes.WARMING] += era is not None
            raise UnknownTopicOrPartitionError(str(partition))
        if cluster.leader(partition, now) != broker and not (replica and broker == cluster.rack):
            self.moments[KafkaSometimes.OLD_LEADER] += 1
            raise NotLeaderForPartitionError(str(partition))
        return era

    def read(
        self,
        broker: int,
        partition: Partition,
        want: PartitionFetch,
        sent_responses: SentResponses,
        *,
        room: int,
        whole: bool,
    ) -> Fetched:
        """Return what a leader has of a partition.

        Args:
            broker: The broker that receives the request.
            partition: The partition.
            want: What is wanted.
            sent_responses: The responses to the process that asks.
            room: How many bytes the answer has room for.
            whole: Whether the first batch comes, however large it is.

        Raises:
            KafkaError: It is refused.
        """
        era, now = self.check_leader(broker, partition, replica=True), self.now
        high, stable, start = era.high_watermark(now), era.last_stable(now), era.start(now)
        lag = self.cluster.lag(partition, now)
        if lag is not None:
            high = stable = self._lagging_end(era, lag)
        if not start <= want.offset <= high:
            self._note_refused(era, want.offset)
            raise OffsetOutOfRangeError(f"{partition} is asked for {want.offset}")
        place = self.cluster.logs[partition].place(now)
        assert place is not None, "it has an era"
        seen = sent_responses.eras[partition]
        if not seen or seen[-1] != place:
            self.moments[KafkaSometimes.CUT_UNSEEN] += bool(seen) and want.offset > era.starts[0][1]
            seen.append(place)
        batches = [
            stored
            for stored in era.readable(want.offset, now, committed=self.committed)
            if stored.next_offset <= high
        ]
        data = self._cut(batches, min(want.max_bytes, room), whole=whole)
        note_answer(self.moments, era, batches, data, want, whole=whole)
        data = self._damaged(partition, batches, data, sent_responses)
        end = batches[-1].next_offset if batches else want.offset
        return Fetched(
            high_watermark=high,
            last_stable_offset=stable,
            log_start_offset=start,
            aborted=tuple(
                AbortedTransaction(one.producer, one.first)
                for one in era.aborted(want.offset, end, now)
            )
            if self.committed
            else (),
            batches=data,
        )

    def offset(self, partition: Partition, what: OffsetSpec | int, era: LogEra) -> int | None:
        """Return the offset of an edge, or of the first record that is not older than a time."""
        now = self.now
        match what:
            case OffsetSpec.EARLIEST:
                return era.start(now)
            case OffsetSpec.LATEST:
                lag = self.cluster.lag(partition, now)
                if lag is not None:
                    return self._lagging_end(era, lag)
                return era.end(now, committed=self.committed)
            case _:
                return era.at_time(what, now, committed=self.committed)

    def strike(
        self, site: KafkaFaultSite, *, partition: Partition | None = None
    ) -> KafkaFault | None:
        """Take what goes wrong here and now."""
        shard = None if partition is None else str(partition)
        return self.armed.strike(site, self.now, shard=shard)

    def error_of(self, fault: KafkaFault) -> Exception:
        """Return the error that a fault is."""
        return ERRORS[fault.code](f"simulated: {fault.code}")

    def _note_refused(self, era: LogEra, offset: int) -> None:
        """Record why an offset is refused."""
        now, moments = self.now, self.moments
        moments[KafkaSometimes.EXPIRED_UNDER_READER] += offset < era.start(now)
        lost = offset > era.high_watermark(now)
        moments[KafkaSometimes.CUT_BELOW_READER] += lost
        moments[KafkaSometimes.LAGGING] += not lost and offset >= era.start(now)

    def _lagging_end(self, era: LogEra, batches: int) -> int:
        """Return the end of a log by a leader that lacks the newest batches."""
        now = self.now
        known = [b.next_offset for b in era.batches if b.at <= now]
        end = known[-1 - batches] if len(known) > batches else 0
        return max(era.start(now), min(end, era.last_stable(now)))

    def _cut(self, batches: Sequence[StoredBatch], room: int, *, whole: bool) -> bytes:
        """Return batches as far as there is room; the last one may be cut short."""
        data = b"".join(stored.data for stored in batches[:64])
        if batches and whole:
            room = max(room, len(batches[0].data))
        elif batches and len(batches[0].data) > room:
            return b""
        return data[: max(0, room)]

    def _damaged(
        self,
        partition: Partition,
        batches: Sequence[StoredBatch],
        data: bytes,
        sent_responses: SentResponses,
    ) -> bytes:
        """Damage what is damaged for good, or by a fault that strikes now."""
        if not data:
            return data
        kinds = (KafkaFaultKind.CORRUPT, KafkaFaultKind.STAYS_CORRUPT)
        fault = self.armed.strike(
            KafkaFaultSite.ANSWER, self.now, shard=str(partition), kinds=kinds
        )
        if fault is not None and fault.kind is KafkaFaultKind.STAYS_CORRUPT:
            self._rotten.add((partition, batches[0].base))
        at, damaged = 0, bytearray(data)
        for number, stored in enumerate(batches):
            size = len(stored.data)
            if at + size > len(data):
                break
            rotten = (partition, stored.base) in self._rotten
            if rotten or (fault is not None and number == 0):
                bit = self._random.randrange(8 * 21, 8 * size)
                damaged[at + bit // 8] ^= 1 << bit % 8
                sent_responses.damaged[partition, stored.base] += 1
            at += size
        return bytes(damaged)
