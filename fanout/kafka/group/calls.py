"""The calls of a member to the coordinator of its consumer group.

The codes are those of Errors.java of Kafka 4.3; what each means for a member was seen at a broker.
aiokafka has no class for most of them, so the numbers decide.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, final

from aiokafka.errors import IncompatibleBrokerVersion, KafkaError, StaleMetadata
from aiokafka.protocol.admin import DescribeConfigsRequest

from fanout.core.sentence import Sentence
from fanout.errors import ServiceError
from fanout.kafka.partitions import Partition, by_topic, numbers_by_topic, partition_rows
from fanout.kafka.protocol.coordinators import Coordinators, CoordinatorType
from fanout.kafka.protocol.error_codes import raise_for_code, raise_if_refused
from fanout.kafka.protocol.messages.cluster_state import TopicIdsRequest
from fanout.kafka.protocol.messages.consumer_groups import (
    HeartbeatRequest,
    MemberCommitRequest,
    MemberOffsetsRequest,
)
from fanout.kafka.protocol.messages.flexible import ANY_TOPIC_ID
from fanout.kafka.reading.offsets import NO_EPOCH, cursor_before, epoch_at, next_offset

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from fanout.core.positions import Cursor
    from fanout.kafka.protocol.connections import Connections

_GROUP_RESOURCE: Final = 32
_SESSION: Final = "consumer.session.timeout.ms"

NO_GROUPS: Final = (
    "the brokers offer no consumer groups of the new protocol (KIP-848): those need Kafka 4.0 or "
    "later, with group.version=1 (`kafka-features.sh upgrade --feature group.version=1`)"
)


@final
class Code(IntEnum):
    """The error codes that a member decides on, by their names in Errors.java."""

    NONE = 0
    UNKNOWN_TOPIC_OR_PARTITION = 3
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    UNKNOWN_MEMBER_ID = 25
    UNSUPPORTED_VERSION = 35
    GROUP_MAX_SIZE_REACHED = 81
    UNSTABLE_OFFSET_COMMIT = 88
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    STALE_MEMBER_EPOCH = 113


_PASSING: Final = frozenset(
    {Code.COORDINATOR_LOAD_IN_PROGRESS, Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR}
)
FENCED: Final = frozenset({Code.UNKNOWN_MEMBER_ID, Code.FENCED_MEMBER_EPOCH})
"""The coordinator does not know the member any more, and has given its partitions away."""


@final
@dataclass(frozen=True, slots=True)
class Identity:
    """Who a member is: the id that it chose, its epoch, and its static id if it has one."""

    id: str
    epoch: int
    instance_id: str | None = None

    @property
    def wire(self) -> tuple[str, int, str | None]:
        """The fields of a request."""
        return self.id, self.epoch, self.instance_id


@final
@dataclass(frozen=True, slots=True, order=True)
class AssignedPartition:
    """A partition that a member owns; a topic that is created again has another id."""

    partition: Partition
    topic_id: bytes


@final
@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The answer to a heartbeat; without an assignment it is as before."""

    code: int
    message: str
    epoch: int
    interval: float
    assignment: frozenset[AssignedPartition] | None


@final
@dataclass(frozen=True, slots=True)
class Stored:
    """What a group has of a partition: the next offset, and the text beside it; None for none.

    `epoch` is the leader epoch of the record before that offset, or -1.
    """

    offset: int | None
    text: str
    epoch: int = NO_EPOCH


@final
@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """Offsets for a group, with a text for each topic; by which member, None for none.

    `positions` are those that the offsets are behind, if any.
    """

    group: str
    offsets: Mapping[Partition, int]
    texts: Mapping[str, str]
    member: Identity | None = None
    positions: Mapping[Partition, Cursor] = field(default_factory=dict)

    @classmethod
    def behind(
        cls,
        positions: Mapping[Partition, Cursor],
        group: str,
        texts: Mapping[str, str],
        member: Identity | None = None,
    ) -> GroupOffsets:
        """Return the offsets behind positions."""
        offsets = {p: next_offset(at) for p, at in positions.items()}
        return cls(group, offsets, texts, member, positions)

    @property
    def rows(self) -> list[tuple[str, list[tuple[Any, ...]]]]:
        """The rows of a request: numbers, offsets, leader epochs and texts."""
        found: dict[Partition, tuple[int, int, str]] = {}
        for partition, offset in self.offsets.items():
            at = self.positions.get(partition, cursor_before(offset))
            found[partition] = offset, epoch_at(at), self.texts.get(partition.topic, "")
        return by_topic(found)


@final
class GroupCalls:
    """Call the coordinator of one group."""

    def __init__(self, connections: Connections, group: str) -> None:
        self.group = group
        self._connections = connections
        self._coordinators = Coordinators(connections, CoordinatorType.GROUP)
        self._names: dict[bytes, str] = {}

    async def session_timeout(self) -> float:
        """Return after how many seconds without a heartbeat the group gives partitions away.

        Raises:
            KafkaError: If no broker answers, or the principal may not describe the group.
        """
        request = DescribeConfigsRequest([(_GROUP_RESOURCE, self.group, None)])
        response = await self._connections.send_to_any(request)
        ((code, message, _, _, entries),) = response.resources
        raise_for_code(code, message or self.group)
        found = {name: value for name, value, *_ in entries}
        if _SESSION not in found:
            raise ServiceError(NO_GROUPS)
        return int(found[_SESSION]) / 1000

    async def heartbeat(
        self,
        member: Identity,
        *,
        rebalance_timeout: float | None = None,
        topics: Sequence[str] | None = None,
        owned: Iterable[AssignedPartition] | None = None,
    ) -> Heartbeat:
        """Say that a member is there; what is None is as it was told before.

        Raises:
            KafkaError: If no coordinator answers, or one that is going to answer otherwise.
            ServiceError: If the group cannot be joined.
        """
        request = HeartbeatRequest(
            self.group,
            member.wire,
            rebalance_timeout=rebalance_timeout,
            topics=topics,
            owned=None if owned is None else _by_id(owned),
        )
        try:
            answer = await self._coordinators.send(self.group, request)
        except IncompatibleBrokerVersion as error:
            raise ServiceError(NO_GROUPS) from error
        code = answer.error_code
        if code in _PASSING:
            raise_for_code(code, self.group)
        if code not in FENCED | {Code.NONE, Code.UNRELEASED_INSTANCE_ID}:
            self._refuse(code, answer.error_message or "")
        assignment = answer.assignment
        return Heartbeat(
            code,
            answer.error_message or "",
            answer.member_epoch,
            answer.heartbeat_interval_ms / 1000,
            None if assignment is None else await self._named(assignment[0]),
        )

    async def commit(
        self, member: Identity, positions: Mapping[Partition, Cursor], texts: Mapping[str, str]
    ) -> Mapping[Partition, int]:
        """Commit positions, with the text of each topic; return the code of each partition."""
        offsets = GroupOffsets.behind(positions, self.group, texts, member)
        request = MemberCommitRequest(self.group, member.wire, offsets.rows)
        answer = await self._coordinators.send(self.group, request)
        return {partition: code for partition, code, *_ in partition_rows(answer.topics)}

    async def stored(
        self, member: Identity, partitions: Collection[Partition]
    ) -> Mapping[Partition, Stored]:
        """Return what the group has of partitions.

        Raises:
            KafkaError: If no coordinator answers, the member is not known, or a transaction is
                ending.
        """
        request = MemberOffsetsRequest(
            self.group, member.wire, numbers_by_topic(sorted(partitions))
        )
        answer = await self._coordinators.send(self.group, request)
        ((_, topics, code, _),) = answer.groups
        raise_if_refused(code, self.group, group=self.group)
        found = {}
        for partition, offset, epoch, text, part_code, _ in partition_rows(topics):
            raise_for_code(part_code, partition)
            found[partition] = Stored(offset if offset >= 0 else None, text or "", epoch)
        return found

    async def _named(self, assigned: Any) -> frozenset[AssignedPartition]:
        """Name the topics of an assignment."""
        if any(topic_id not in self._names for topic_id, *_ in assigned):
            await self.learn(())
        if any(topic_id not in self._names for topic_id, *_ in assigned):
            raise StaleMetadata(f"the group {self.group} assigns a topic that is not known yet")
        return frozenset(
            AssignedPartition(Partition(self._names[topic_id], number), topic_id)
            for topic_id, numbers, _ in assigned
            for number in numbers
        )

    async def learn(self, topics: Iterable[str]) -> None:
        """Learn the ids of topics, and again those of topics that are known."""
        names = sorted({*topics, *self._names.values()})
        response = await self._connections.send_to_any(TopicIdsRequest(names))
        for _, topic, topic_id, *_ in response.topics:
            if topic_id != ANY_TOPIC_ID:
                self._names[topic_id] = topic

    def _refuse(self, code: int, message: str) -> None:
        match code:
            case Code.UNSUPPORTED_VERSION:
                raise ServiceError(NO_GROUPS)
            case Code.GROUP_MAX_SIZE_REACHED:
                raise ServiceError(
                    f"the group {self.group} has as many members as the brokers allow; raise "
                    f"group.consumer.max.size, or start fewer"
                )
            case _:
                try:
                    raise_if_refused(code, message or self.group, group=self.group)
                except KafkaError as error:
                    raise ServiceError(
                        Sentence(f"the group {self.group} cannot be joined: ", error)
                    ) from error


def _by_id(owned: Iterable[AssignedPartition]) -> Mapping[bytes, Sequence[int]]:
    numbers: dict[bytes, list[int]] = {}
    for assigned in sorted(owned):
        numbers.setdefault(assigned.topic_id, []).append(assigned.partition.number)
    return numbers
