"""Look over the shoulder of one process that reads a simulated cluster."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from typing import TYPE_CHECKING, Final, final

from aiokafka.errors import LeaderNotAvailableError

from fanout.core.statistics import SplitState
from fanout.errors import MalformedEventError, SubscribeTimeoutError, SubscriptionSilentError
from fanout.kafka.partitions import Partition
from fanout.kafka.reading.transport import Fetched
from fanout.testing.virtual_time.loop import running_loop
from tests.provers.simulation.errors import OracleError
from tests.provers.simulation.kafka.moments import KafkaSometimes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fanout.core.backoff import Pacing
    from fanout.core.events import Split
    from fanout.core.fan_out import FanOut
    from fanout.kafka.reading.transport import FetchAnswer, PartitionFetch
    from tests.provers.simulation.job.process_run import ProcessRun
    from tests.provers.simulation.kafka.oracle import KafkaOracle, KafkaReading
    from tests.provers.simulation.kafka.sent_responses import SentResponses
    from tests.provers.simulation.kafka.service import KafkaSimService

__all__ = ("KafkaWitness",)

_MOST_WRONGS: Final = 5
_RESOLUTION: Final = 1e-6  # of the clock, in seconds
# A broker that answers at once and without records is asked at most a hundred times a second.
_EMPTY_A_SECOND: Final = 150


@final
class KafkaWitness:
    """Check the requests of one process, what is reported to it, and its counters.

    Args:
        run: The process.
        sent_responses: The responses that the cluster has sent to it.
        service: The cluster.
        oracle: What all runs have got together.
        pacing: The pacing of calls to the cluster.
    """

    def __init__(
        self,
        run: ProcessRun,
        sent_responses: SentResponses,
        service: KafkaSimService,
        oracle: KafkaOracle,
        pacing: Pacing,
    ) -> None:
        self._run = run
        self._sent_responses = sent_responses
        self._service = service
        self._oracle = oracle
        self._pacing = pacing
        self._stream: FanOut | None = None
        self._closed_when_repaired = False
        self._blocked_before = running_loop().blocked
        self._resubscribed: Counter[str] = Counter()
        self._answers: dict[Partition, tuple[int, int]] = {}
        self._asking: dict[Partition, int] = {}
        self._unreported: set[Partition] = set()
        self._nothing: defaultdict[int, deque[float]] = defaultdict(deque)

    def opened(self, stream: FanOut) -> None:
        """Begin to look at a stream."""
        self._stream = stream
        if self._reading is not None:
            self._reading.stream = stream
            self._reading.look()

    def looks(self) -> None:
        """Look at the stream between two reads."""
        if self._reading is not None and not self._run.dead:
            self._reading.look()

    def asks(self, wanted: Mapping[Partition, PartitionFetch]) -> None:
        """Record a fetch: who asks for more has handed on what there was before."""
        held, moments = self._run.held, self._service.moments
        for partition, want in wanted.items():
            if partition not in self._sent_responses.asked:
                moments[KafkaSometimes.RESUMED_INSIDE_BATCH] += self._is_inside(partition, want)
            self._sent_responses.asked[partition] = want.offset
            first, size = self._answers.pop(partition, (want.offset, 0))
            if want.offset <= first:
                held.resume(str(partition), want.offset - 1)
                continue
            place = self._sent_responses.eras[partition][-1]
            records = (
                self._oracle.logs[partition]
                .eras[place]
                .records(first, want.offset, committed=self._oracle.committed)
            )
            # A range without records holds nothing, and no call marks its end.
            nbytes = size if records else 0
            held.hold(str(partition), first, want.offset - 1, len(records), nbytes)

        self._asking |= {partition: want.max_bytes for partition, want in wanted.items()}
        asking = sum(self._asking.values())
        if len(self._asking) > 1 and asking > self._pacing.max_bytes_in_flight:
            self._wrong(f"unbounded: {asking} bytes are asked for at once")

    def asks_broker(self, broker: int, quiet_until: float) -> None:
        """Check that a broker is not asked before its throttle is over.

        Args:
            broker: The broker.
            quiet_until: When it reads requests again.
        """
        left = quiet_until - self._now
        if left > _RESOLUTION:
            self._wrong(f"broke a rule: broker {broker} is asked {left:.3f} s before it reads")

    def gets_nothing(self, broker: int) -> None:
        """Check that a broker which answers at once and without records is not asked in a loop."""
        answers = self._nothing[broker]
        answers.append(self._now)
        while answers[0] < self._now - 1.0:
            answers.popleft()
        if len(answers) == _EMPTY_A_SECOND:
            self._wrong(f"broke a rule: broker {broker} has nothing, and is asked without a pause")

    def waits(self, broker: int, seconds: float) -> None:
        """Take note of a request that waits for a broker which the cluster misses."""
        self._wrong(f"stuck: a request waits {seconds:.1f} s too long for broker {broker}")

    def asks_dead_replica(self, partition: Partition, since: float) -> None:
        """Take note of a replica that is asked again after it has failed."""
        self._wrong(f"broke a rule: the dead replica of {partition} is asked again in {since:.1f}s")

    def forgets(self, partitions: Sequence[Partition]) -> None:
        """Take note of offsets that the group has forgotten, and could have been stored again."""
        if partitions and not self._run.dead:
            self._wrong(f"lost: the group has forgotten its offsets of {partitions}")

    def over(self, wanted: Mapping[Partition, PartitionFetch]) -> None:
        """Record that a fetch is answered, or has failed."""
        for partition in wanted:
            self._asking.pop(partition, None)

    def gets(
        self, wanted: Mapping[Partition, PartitionFetch], answers: Mapping[Partition, FetchAnswer]
    ) -> None:
        """Record the answers to a fetch."""
        for partition, answer in answers.items():
            if isinstance(answer, Fetched):
                held_back = answer.last_stable_offset < answer.high_watermark
                self._service.moments[KafkaSometimes.HELD_BACK] += held_back
            if isinstance(answer, Fetched) and answer.batches:
                self._answers[partition] = wanted[partition].offset, len(answer.batches)

    def commits(self, offsets: Mapping[Partition, int]) -> None:
        """Check what is committed: nothing that the job is not done with."""
        reading = self._reading
        moments = self._service.moments
        for partition, offset in offsets.items():
            before = self._sent_responses.committed.get(partition, offset)
            failed = self._service.offsets.get(partition) != before
            moments[KafkaSometimes.COMMITTED_NEWER] += failed and offset > before
            self._sent_responses.committed[partition] = offset
            if reading is None or self._run.dead:
                continue
            place = reading.places[partition]
            furthest = place.furthest if place.begun else reading.oldest(partition)
            if offset > furthest and reading.owed(partition, furthest, offset):
                self._wrong(
                    f"broke a rule: {partition} is committed up to {offset}, but acknowledged up "
                    f"to {furthest}"
                )

    def resubscribes(self, split: Split, cause: Exception, delay: float) -> None:
        """Check a call of `on_resubscribe`; this method is such a callback.

        Args:
            split: What is subscribed to again.
            cause: Why its last subscription has ended.
            delay: In how many seconds.
        """
        if self._run.dead or self._stream is None:
            return
        self._resubscribed[split.id] += 1
        partition = Partition.of(split.id)
        match cause:
            case MalformedEventError():
                known = any(where == partition for where, _ in self._sent_responses.damaged)
            case SubscribeTimeoutError() | SubscriptionSilentError():
                # A loop may have stood still for about as long as a broker may be silent.
                blocked = running_loop().blocked > self._blocked_before
                known = blocked or self._sent_responses.hung > 0
            case LeaderNotAvailableError():
                known = True  # the reader's own error for what a listing showed
            case _:
                known = self._sent_responses.knows(cause)
        if not known:
            self._wrong(f"a wrong cause was reported for {split}: {cause!r}")
        backoff = self._pacing.backoff
        longest = max(self._pacing.floor + backoff.cap, self._pacing.slow + backoff.base)
        if not 0 <= delay <= longest:
            self._wrong(f"a wait of {delay:g} s of {split}")
        statistics = self._stream.statistics()
        if statistics.bytes_in_flight > self._pacing.max_bytes_in_flight:
            self._wrong(f"unbounded: {statistics.bytes_in_flight} bytes are in flight")
        state = statistics.splits[split.id].state
        if state is not SplitState.BACKING_OFF:
            self._wrong(f"{split} backs off, but its state is {state}")

    def closing(self, reading: KafkaReading) -> None:
        """Compare the counters of a stream that is about to be closed with what was seen."""
        reading.stream = None
        if self._stream is None or self._run.dead:
            return
        self._closed_when_repaired = self._service.armed.stopped
        committing = any(
            name == "OffsetCommit" for name, _ in self._sent_responses.calling.values()
        )
        self._service.moments[KafkaSometimes.CLOSED_COMMITTING] += committing
        for name, counted in self._stream.statistics().splits.items():
            place = reading.places[Partition.of(name)]
            for what, reported, seen in (
                ("records", counted.records, place.records),
                ("bytes", counted.bytes, place.nbytes),
                ("resubscriptions", counted.resubscriptions, self._resubscribed[name]),
            ):
                if reported != seen:
                    self._wrong(f"miscounted: {what} of {name} is {reported}, not {seen}")
            if counted.gaps > place.gaps:
                self._unreported.add(Partition.of(name))
            if counted.gaps < place.gaps:
                self._wrong(f"miscounted: gaps of {name} are {counted.gaps}, not {place.gaps}")

    def closed(self) -> None:
        """Look at what is left of the stream.

        Raises:
            OracleError: If something was wrong about the process.
        """
        if self._run.dead:
            return
        if self._stream is not None:
            in_flight = self._stream.statistics().bytes_in_flight
            if in_flight:
                self._wrong(f"leaked: {in_flight} bytes are in flight in a closed stream")
            if self._closed_when_repaired and self._stream.failure is None:
                self._check_commits()
        wrongs = self._sent_responses.wrongs + self._run.held.wrongs
        if wrongs:
            raise OracleError("; ".join(wrongs[:_MOST_WRONGS]))

    def _check_commits(self) -> None:
        """Check that everything acknowledged was committed, once the group answers."""
        reading = self._reading
        if reading is None or not self._service.calls["OffsetCommit"]:
            return
        # A gap that is not reported yet may have led back to before what is acknowledged.
        self.forgets(self._service.forget_offsets(self._run.number))
        out = self._unreported | self._service.forgotten
        for partition in sorted(self._sent_responses.committed.keys() - out):
            offset = self._service.offsets.get(partition, 0)
            acknowledged = reading.places[partition].acknowledged
            if reading.owed(partition, offset, acknowledged):
                self._wrong(
                    f"lost: {partition} is acknowledged up to {acknowledged}, but the group has "
                    f"{offset}"
                )

    def _is_inside(self, partition: Partition, want: PartitionFetch) -> bool:
        """Return whether what is wanted lies inside a batch."""
        era = self._service.cluster.logs[partition].era(self._now)
        return era is not None and any(
            stored.base < want.offset < stored.next_offset for stored in era.batches
        )

    @property
    def _reading(self) -> KafkaReading | None:
        return self._oracle.readings.get(self._run.number)

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _wrong(self, what: str) -> None:
        self._sent_responses.wrongs.append(what)
