"""The product's Transport over a simulated cluster: it knows leaders as a client does."""

from __future__ import annotations

from collections import defaultdict
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Final, final

from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    LeaderNotAvailableError,
    NotLeaderForPartitionError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)

from fanout.core.cancellation import TaskScope
from fanout.kafka.reading.near_replicas import NearReplicas
from fanout.kafka.reading.offsets import cursor_before, next_offset
from fanout.kafka.reading.transport import Fetched, FetchRefused, Throttled
from tests.provers.simulation.kafka.connections import SimConnections
from tests.provers.simulation.kafka.faults import KafkaFaultKind, KafkaFaultSite
from tests.provers.simulation.kafka.moments import KafkaSometimes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from fanout.core.positions import Cursor
    from fanout.kafka.partitions import Partition
    from fanout.kafka.reading.transport import FetchAnswer, OffsetSpec, PartitionFetch
    from tests.provers.simulation.job.process_run import ProcessRun
    from tests.provers.simulation.kafka.faults import KafkaFault
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
        self._near = NearReplicas("here" if service.cluster.rack else "")
        self._replica_failed_at: dict[Partition, float] = {}
        self._connections: SimConnections | None = None

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Watch for brokers that freeze while the block runs, where any ever does."""
        if not self._service.cluster.freezes:
            yield
            return
        async with TaskScope() as scope:
            self._connections = SimConnections(
                self._service, self._sent_responses, self._witness, scope
            )
            try:
                yield
            finally:
                self._connections.end()

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
        """Return who leads a partition, as far as is known, or the replica to be read."""
        replica = self._near.of(partition)
        return self._leaders.get(partition) if replica is None else replica

    def topic_id(self, topic: str) -> str:
        """Return nothing: these brokers have no ids."""
        del topic
        return ""

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

    async def has_members(self, group_id: str) -> bool:
        del group_id
        return False

    async def committed(
        self, group_id: str, partitions: Sequence[Partition]
    ) -> Mapping[Partition, Cursor | None]:
        """Return what the group has committed."""
        del group_id
        try:
            await self._call("OffsetFetch", self._service.any_broker())
        except KafkaError:
            self._service.fails_group()
            raise
        self._witness.forgets(self._service.forget_offsets(self._run.number))
        offsets = {partition: self._service.offsets.get(partition) for partition in partitions}
        return {p: None if at is None else cursor_before(at) for p, at in offsets.items()}

    async def commit(
        self, group_id: str, positions: Mapping[Partition, Cursor]
    ) -> Mapping[Partition, Exception]:
        """Commit the offsets behind positions for the group."""
        del group_id
        self._witness.forgets(self._service.forget_offsets(self._run.number))
        try:
            refused = await self._commit({p: next_offset(at) for p, at in positions.items()})
        except KafkaError:
            self._service.fails_group()
            raise
        if refused:
            self._service.fails_group()
        return refused

    async def _commit(self, offsets: Mapping[Partition, int]) -> Mapping[Partition, Exception]:
        service, sent_responses = self._service, self._sent_responses
        self._witness.commits(offsets)
        fault = service.strike(KafkaFaultSite.COMMIT)
        kind = None if fault is None else fault.kind
        hang = fault.seconds if fault is not None and kind is KafkaFaultKind.COMMIT_HANGS else 0.0
        with service.counted("OffsetCommit", sent_responses):
            await self._reach(service.any_broker(), hang)
        self._check_alive()
        if fault is not None and kind is KafkaFaultKind.COMMIT_REFUSED:
            raise sent_responses.gives(service.error_of(fault))
        refused: dict[Partition, Exception] = {}
        if fault is not None and kind is KafkaFaultKind.COMMIT_REFUSED_PARTLY:
            first = min(offsets)
            refused[first] = sent_responses.gives(service.error_of(fault))
        done = {p: offset for p, offset in offsets.items() if p not in refused}
        service.store(done, self._run.number)
        if kind is KafkaFaultKind.COMMIT_UNHEARD:
            service.moments[KafkaSometimes.COMMIT_UNHEARD] += 1
            raise sent_responses.gives(KafkaConnectionError("simulated: the answer is lost"))
        return refused

    async def fetch(
        self, broker: int, wanted: Mapping[Partition, PartitionFetch], *, max_wait: float
    ) -> Mapping[Partition, FetchAnswer]:
        """Fetch from one broker."""
        self._witness.asks(wanted)
        self._check_replica(broker, wanted)
        try:
            with self._watching(broker):
                answers = await self._fetch(broker, wanted, max_wait)
        except KafkaError:
            self._leave_replica(broker, wanted)
            raise
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
            return self._throttle(throttle, broker, wanted)
        fault = service.strike(KafkaFaultSite.REQUEST)
        began = service.now
        with service.counted("Fetch", sent_responses):
            hangs = fault is not None and fault.kind is KafkaFaultKind.FETCH_HANGS
            await self._reach(broker, fault.seconds if fault and hangs else 0.0)
            self._check_alive()
            if service.strike(KafkaFaultSite.UNUSUAL) is not None:
                self._witness.gets_nothing(broker)
                return {p: _emptied(one) for p, one in self._answers(broker, wanted).items()}
            if fault is not None and fault.kind is KafkaFaultKind.FETCH_CUT:
                raise sent_responses.gives(KafkaConnectionError("simulated: the connection is cut"))
            answers = self._answers(broker, wanted)
            while self._waits(wanted, answers) and service.now < began + max_wait:
                await service.wait_for_change(broker, list(wanted), began + max_wait)
                if service.cluster.died(broker, began, service.now):
                    service.moments[KafkaSometimes.DIED_WAITING] += 1
                    raise sent_responses.gives(KafkaConnectionError(f"broker {broker} has died"))
                if service.cluster.frozen(broker, service.now):
                    await self._reach(broker)
                answers = self._answers(broker, wanted)
        self._check_alive()
        return answers

    def _throttle(
        self, throttle: KafkaFault, broker: int, wanted: Mapping[Partition, PartitionFetch]
    ) -> Mapping[Partition, FetchAnswer]:
        """Answer without records, or with those of every other partition."""
        self.throttled += 1
        self._quiet_until[broker] = self._service.now + throttle.seconds
        throttled: FetchAnswer = Throttled(throttle.seconds)
        some: dict[Partition, PartitionFetch] = {}
        if throttle.kind is KafkaFaultKind.FETCH_THROTTLED_PARTLY:
            some = dict(list(wanted.items())[1::2])
        return dict.fromkeys(wanted, throttled) | self._answers(broker, some)

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
            near = service.cluster.near(partition, service.now)
            leads = service.cluster.leader(partition, service.now) == broker
            named = near if leads and self._near.rack else None
            if named is not None:
                room, whole = 0, False
            service.moments[KafkaSometimes.REPLICA_READ] += broker == near
            answer = service.read(broker, partition, want, sent_responses, room=room, whole=whole)
        except KafkaError as error:
            sent_responses.refused[partition, want.offset, type(error).__name__] += 1
            replica = self._near.of(partition) is not None
            self._near.leave([partition])
            if replica and isinstance(error, OffsetOutOfRangeError):
                error = NotLeaderForPartitionError(f"{partition} on the replica {broker}")
            return FetchRefused(sent_responses.gives(error))
        # A leader names replicas that have the offset, and no others
        # (ReplicaManager.findPreferredReadReplica).
        if named is not None:
            self._near.use(partition, named)
        return answer

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
        with service.counted(name, sent_responses), self._watching(broker):
            await self._reach(broker, hang)
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

    def _watching(self, broker: int) -> AbstractContextManager[None]:
        return nullcontext() if self._connections is None else self._connections.watching(broker)

    async def _reach(self, broker: int, hang: float = 0.0) -> None:
        if self._connections is None:
            await self._service.reach(broker, self._sent_responses, hang)
        else:
            await self._connections.reach(broker, hang)

    def _waits(
        self, wanted: Mapping[Partition, PartitionFetch], answers: Mapping[Partition, FetchAnswer]
    ) -> bool:
        """Return whether a broker waits: an answer that names a replica is sent at once."""
        if any(self.leader(p) not in {None, self._leaders.get(p)} for p in wanted):
            return False
        return not _has_content(answers)

    def _check_replica(self, broker: int, wanted: Mapping[Partition, PartitionFetch]) -> None:
        """Check that a replica is not asked again while the cluster does not know that it died."""
        cluster, now = self._service.cluster, self._service.now
        for partition in wanted:
            if self._near.of(partition) == broker and cluster.down(broker, now):
                self._service.moments[KafkaSometimes.REPLICA_DIED] += 1
                failed = self._replica_failed_at.get(partition)
                if failed is not None and not cluster.died(broker, failed + 1e-6, now):
                    self._witness.asks_dead_replica(partition, now - failed)

    def _leave_replica(self, broker: int, wanted: Mapping[Partition, PartitionFetch]) -> None:
        for partition in wanted:
            if self._near.of(partition) == broker and self._service.cluster.down(
                broker, self._service.now
            ):
                self._replica_failed_at[partition] = self._service.now
        self._near.leave(wanted)

    def _check_alive(self) -> None:
        """Let the calls of a dead process get no answer."""
        if self._run.dead:
            raise self._sent_responses.gives(KafkaConnectionError("this process is dead"))


def _emptied(answer: FetchAnswer) -> FetchAnswer:
    return answer._replace(batches=b"") if isinstance(answer, Fetched) else answer


def _has_content(answers: Mapping[Partition, FetchAnswer]) -> bool:
    return any(not isinstance(answer, Fetched) or answer.batches for answer in answers.values())
