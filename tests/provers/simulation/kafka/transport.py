"""The product's Transport over a simulated cluster: it knows leaders as a client does."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, final

from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    LeaderNotAvailableError,
    UnknownTopicOrPartitionError,
)

from fanout.kafka.reading.transport import Fetched, FetchRefused, Throttled
from tests.provers.simulation.kafka.faults import KafkaFaultKind, KafkaFaultSite
from tests.provers.simulation.kafka.moments import KafkaSometimes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fanout.kafka.partitions import Partition
    from fanout.kafka.reading.transport import FetchAnswer, OffsetSpec, PartitionFetch
    from tests.provers.simulation.job.process_run import ProcessRun
    from tests.provers.simulation.kafka.partition_log import LogEra
    from tests.provers.simulation.kafka.sent_responses import SentResponses
    from tests.provers.simulation.kafka.service import KafkaSimService
    from tests.provers.simulation.kafka.witness import KafkaWitness

__all__ = ("CLUSTER_ID", "KafkaSimTransport")

CLUSTER_ID: Final = "simulated"


@final
class KafkaSimTransport:
    """Talk to a simulated cluster for one process; the calls of a dead one get no answer.

    Args:
        service: What answers.
        run: The process.
        sent_responses: Records the responses.
        witness: Looks at what it asks.
    """

    def __init__(
        self,
        service: KafkaSimService,
        run: ProcessRun,
        sent_responses: SentResponses,
        witness: KafkaWitness,
    ) -> None:
        self._service = service
        self._run = run
        self._sent_responses = sent_responses
        self._witness = witness
        self._leaders: dict[Partition, int] = {}
        self.throttled = 0
        self._quiet_until: defaultdict[int, float] = defaultdict(float)

    @property
    def cluster_id(self) -> str:
        """The cluster's own id."""
        return CLUSTER_ID

    async def topics(self) -> Mapping[str, Sequence[int] | Exception]:
        """List every topic."""
        return await self._metadata(None)

    async def describe(self, topics: Sequence[str]) -> Mapping[str, Sequence[int] | Exception]:
        """List the partitions of some topics."""
        return await self._metadata(topics)

    def leader(self, partition: Partition) -> int | None:
        """Return who leads a partition, as far as is known."""
        return self._leaders.get(partition)

    async def offsets(
        self, wanted: Mapping[Partition, OffsetSpec | int]
    ) -> Mapping[Partition, int | None]:
        """Look offsets up at the partitions' leaders."""
        unknown = sorted({p.topic for p in wanted if p not in self._leaders})
        listed = await self._metadata(unknown) if unknown else {}
        found: dict[Partition, int | None] = {}
        leaders: defaultdict[int, list[Partition]] = defaultdict(list)
        for partition in wanted:
            leaders[self._leader(partition, listed.get(partition.topic))].append(partition)
        for leader, partitions in leaders.items():
            try:
                await self._call("ListOffsets", leader)
                for partition in partitions:
                    era = self._check_leader(leader, partition)
                    found[partition] = self._service.offset(partition, wanted[partition], era)
            except KafkaError:
                for partition in partitions:
                    self._leaders.pop(partition, None)
                raise
        return found

    async def committed(
        self, group_id: str, partitions: Sequence[Partition]
    ) -> Mapping[Partition, int | None]:
        """Return what the group has committed."""
        del group_id
        await self._call("OffsetFetch", self._service.any_broker())
        return {partition: self._service.offsets.get(partition) for partition in partitions}

    async def commit(
        self, group_id: str, offsets: Mapping[Partition, int]
    ) -> Mapping[Partition, Exception]:
        """Commit next offsets for the group."""
        del group_id
        service, sent_responses = self._service, self._sent_responses
        self._witness.commits(offsets)
        fault = service.strike(KafkaFaultSite.COMMIT)
        kind = None if fault is None else fault.kind
        hang = fault.seconds if fault is not None and kind is KafkaFaultKind.COMMIT_HANGS else 0.0
        with service.counted("OffsetCommit", sent_responses):
            await service.reach(service.any_broker(), sent_responses, hang)
        self._check_alive()
        if fault is not None and kind is KafkaFaultKind.COMMIT_REFUSED:
            raise sent_responses.gives(service.error_of(fault))
        refused: dict[Partition, Exception] = {}
        if fault is not None and kind is KafkaFaultKind.COMMIT_REFUSED_PARTLY:
            first = min(offsets)
            refused[first] = sent_responses.gives(service.error_of(fault))
        done = {p: offset for p, offset in offsets.items() if p not in refused}
        service.offsets.update(done)
        if kind is KafkaFaultKind.COMMIT_UNHEARD:
            service.moments[KafkaSometimes.COMMIT_UNHEARD] += 1
            raise sent_responses.gives(KafkaConnectionError("simulated: the answer is lost"))
        return refused

    async def fetch(
        self, broker: int, wanted: Mapping[Partition, PartitionFetch], *, max_wait: float
    ) -> Mapping[Partition, FetchAnswer]:
        """Fetch from one broker."""
        self._witness.asks(wanted)
        try:
            answers = await self._fetch(broker, wanted, max_wait)
        finally:
            self._witness.over(wanted)
        self._witness.gets(wanted, answers)
        return answers

    async def _fetch(
        self, broker: int, wanted: Mapping[Partition, PartitionFetch], max_wait: float
    ) -> Mapping[Partition, FetchAnswer]:
        service, sent_responses = self._service, self._sent_responses
        self._witness.asks_broker(broker, self._quiet_until[broker])
        throttle = service.strike(KafkaFaultSite.QUOTA)
        if throttle is not None:
            self.throttled += 1
            self._quiet_until[broker] = service.now + throttle.seconds
            return dict.fromkeys(wanted, Throttled(throttle.seconds))
        fault = service.strike(KafkaFaultSite.REQUEST)
        began = service.now
        with service.counted("Fetch", sent_responses):
            hangs = fault is not None and fault.kind is KafkaFaultKind.FETCH_HANGS
            await service.reach(broker, sent_responses, fault.seconds if fault and hangs else 0.0)
            self._check_alive()
            if fault is not None and fault.kind is KafkaFaultKind.FETCH_CUT:
                raise sent_responses.gives(KafkaConnectionError("simulated: the connection is cut"))
            answers = self._answers(broker, wanted)
            while not _has_content(answers) and service.now < began + max_wait:
                await service.wait_for_change(broker, list(wanted), began + max_wait)
                if service.cluster.died(broker, began, service.now):
                    service.moments[KafkaSometimes.DIED_WAITING] += 1
                    raise sent_responses.gives(KafkaConnectionError(f"broker {broker} has died"))
                answers = self._answers(broker, wanted)
        self._check_alive()
        return answers

    def _answers(
        self, broker: int, wanted: Mapping[Partition, PartitionFetch]
    ) -> dict[Partition, FetchAnswer]:
        """Fill an answer in the order of the request, until it is full (KIP-74)."""
        service = self._service
        room, empty = service.fetch_max_bytes, True
        answers: dict[Partition, FetchAnswer] = {}
        for partition, want in wanted.items():
            answer = self._answer(broker, partition, want, room=room, whole=empty)
            if isinstance(answer, Fetched):
                room -= len(answer.batches)
                empty = empty and not answer.batches
            answers[partition] = answer
        return answers

    def _answer(
        self, broker: int, partition: Partition, want: PartitionFetch, *, room: int, whole: bool
    ) -> FetchAnswer:
        service, sent_responses = self._service, self._sent_responses
        fault = service.armed.strike(
            KafkaFaultSite.ANSWER, service.now, shard=str(partition), kinds={KafkaFaultKind.REFUSED}
        )
        try:
            if fault is not None:
                raise service.error_of(fault)
            return service.read(broker, partition, want, sent_responses, room=room, whole=whole)
        except KafkaError as error:
            sent_responses.refused[partition, want.offset, type(error).__name__] += 1
            return FetchRefused(sent_responses.gives(error))

    async def _metadata(self, topics: Sequence[str] | None) -> dict[str, Sequence[int] | Exception]:
        service, sent_responses = self._service, self._sent_responses
        cluster = service.cluster
        broker = service.any_broker()
        old = await self._call("Metadata", broker)
        now = service.now - old
        listed: dict[str, Sequence[int] | Exception] = {}
        for topic in cluster.topics if topics is None else topics:
            if not cluster.is_seen(topic, now) or cluster.warming(broker, now):
                if topics is not None:
                    listed[topic] = sent_responses.gives(UnknownTopicOrPartitionError(topic))
                sent_responses.unseen = True
                continue
            listed[topic] = cluster.numbers(topic, now)
        for partition in cluster.logs:
            if isinstance(listed.get(partition.topic), Exception) or partition.topic not in listed:
                continue
            leader = cluster.listed_leader(partition, now)
            if leader is None or partition.number not in cluster.numbers(partition.topic, now):
                self._leaders.pop(partition, None)
            else:
                self._leaders[partition] = leader
        return listed

    async def _call(self, name: str, broker: int) -> float:
        """Make a call other than a fetch or a commit; return how old its answer is, in seconds.

        Raises:
            KafkaError: It is refused, or gets no answer.
        """
        service, sent_responses = self._service, self._sent_responses
        fault = service.strike(KafkaFaultSite.CALL)
        kind = None if fault is None else fault.kind
        hang = fault.seconds if fault is not None and kind is KafkaFaultKind.CALL_HANGS else 0.0
        with service.counted(name, sent_responses):
            await service.reach(broker, sent_responses, hang)
        self._check_alive()
        if fault is not None and kind is KafkaFaultKind.CALL_REFUSED:
            raise sent_responses.gives(service.error_of(fault))
        return fault.seconds if fault is not None and kind is KafkaFaultKind.LISTING_OLD else 0.0

    def _leader(self, partition: Partition, listed: Sequence[int] | Exception | None) -> int:
        """Return who leads a partition, as far as is known.

        Args:
            partition: The partition.
            listed: The partitions of its topic in the last listing; None where there was none.

        Raises:
            KafkaError: It has no leader, or there is no such partition.
        """
        if isinstance(listed, Exception):
            raise listed
        if listed is not None and partition.number not in listed:
            raise self._sent_responses.gives(UnknownTopicOrPartitionError(str(partition)))
        leader = self._leaders.get(partition)
        if leader is None:
            raise self._sent_responses.gives(LeaderNotAvailableError(str(partition)))
        return leader

    def _check_leader(self, leader: int, partition: Partition) -> LogEra:
        try:
            return self._service.check_leader(leader, partition)
        except KafkaError as error:
            raise self._sent_responses.gives(error) from None

    def _check_alive(self) -> None:
        """Let the calls of a dead process get no answer."""
        if self._run.dead:
            raise self._sent_responses.gives(KafkaConnectionError("this process is dead"))


def _has_content(answers: Mapping[Partition, FetchAnswer]) -> bool:
    return any(not isinstance(answer, Fetched) or answer.batches for answer in answers.values())
