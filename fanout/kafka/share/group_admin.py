"""Admin requests about a share group, and the ids of its topics.

An error is raised as the `aiokafka.errors.KafkaError` of its code:

- 30 GROUP_AUTHORIZATION_FAILED: settings need DESCRIBE_CONFIGS and ALTER_CONFIGS on the group,
  everything else DESCRIBE.
- 35 UNSUPPORTED_VERSION: the broker supports share groups, but they are not enabled.
- 69 GROUP_ID_NOT_FOUND: no member has joined the group yet. It is not raised.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from aiokafka.errors import (
    GroupAuthorizationFailedError,
    IncompatibleBrokerVersion,
    InvalidConfigurationError,
    KafkaError,
    StaleMetadata,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from aiokafka.protocol.admin import DescribeConfigsRequest

from fanout.core.backoff import Backoff, FullJitter
from fanout.kafka.partitions import Partition
from fanout.kafka.protocol.coordinators import Coordinators, CoordinatorType
from fanout.kafka.protocol.error_codes import error_of, raise_for_code
from fanout.kafka.protocol.first_contact import open_cluster
from fanout.kafka.protocol.messages.cluster_state import TopicIdsRequest
from fanout.kafka.protocol.messages.flexible import ANY_TOPIC_ID
from fanout.kafka.protocol.messages.share_groups import (
    AlterGroupRequest,
    GroupMembersRequest,
    GroupOffsetsRequest,
)
from fanout.kafka.protocol.retries import with_retries
from fanout.kafka.share.client_options import ClientOptions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from fanout.kafka.cluster import Cluster
    from fanout.kafka.protocol.connections import Connections

    _T = TypeVar("_T")

_GROUP: Final = 32  # the type of the resource in requests about configurations

_PREFIX: Final = "share."

_NOT_FOUND: Final = 69

NO_SHARE_GROUPS: Final = (
    "the brokers offer no share groups: those need Kafka 4.2 or later, with share.version=1 or "
    "later (`kafka-features.sh upgrade --feature share.version=1`)"
)


@final
@dataclass(frozen=True, slots=True)
class StartOffset:
    """The start offset of a group in a partition: every record before it is finished for good.

    Args:
        topic_id: The id of the topic; a topic that is created again has another id.
        offset: The offset; None before the first member has read there.
        lag: How many records from there on are not finished; None if the broker does not tell.
    """

    topic_id: str
    offset: int | None
    lag: int | None


@final
@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a share group; other members may have the same partitions."""

    id: str
    client_id: str
    host: str
    partitions: tuple[Partition, ...]


@final
class ShareGroupAdmin:
    """Send admin requests about one group."""

    def __init__(self, connections: Connections, group: str) -> None:
        self._connections = connections
        self._group = group
        self._coordinators = Coordinators(connections, CoordinatorType.GROUP)

    async def start_offsets(self) -> Mapping[Partition, StartOffset]:
        """Return the start offsets (DescribeShareGroupOffsets); none of an unknown group."""
        response = await self._send(GroupOffsetsRequest(self._group))
        ((_, topics, code, message, _),) = response.groups
        if code == _NOT_FOUND:
            return {}
        self._check(code, message, "DESCRIBE")
        return {
            Partition(topic, number): StartOffset(
                topic_id.hex(), _or_none(start), _or_none(*lag) if lag else None
            )
            for topic, topic_id, partitions, _ in topics
            for number, start, _, *lag, partition_code, _, _ in partitions
            if partition_code == 0
        }

    async def members(self) -> tuple[str, tuple[GroupMember, ...]]:
        """Return the state of the group, and its members (ShareGroupDescribe)."""
        response = await self._send(GroupMembersRequest(self._group))
        ((code, message, _, state, _, _, _, members, _, _),) = response.groups
        if code == _NOT_FOUND:
            return "Unknown", ()
        self._check(code, message, "DESCRIBE")
        return state, tuple(
            GroupMember(
                member,
                client,
                host,
                tuple(
                    Partition(topic, number)
                    for _, topic, numbers, _ in assigned
                    for number in numbers
                ),
            )
            for member, _, _, client, host, _, assigned, _, _ in members
        )

    async def settings(self, altered: Mapping[str, str] | None = None) -> Mapping[str, str]:
        """Return the settings of the group, with the cluster's own as defaults.

        Settings that were `altered` just before reach a broker through the controller. If they have
        not reached it yet, StaleMetadata is raised, and a later call succeeds.
        """
        request = DescribeConfigsRequest([(_GROUP, self._group, None)])
        response = await self._connections.send_to_any(request)
        ((code, message, _, _, entries),) = response.resources
        self._check(code, message, "DESCRIBE_CONFIGS")
        found = {name: value or "" for name, value, *_ in entries if name.startswith(_PREFIX)}
        if not found:
            raise IncompatibleBrokerVersion(NO_SHARE_GROUPS)
        if not (altered or {}).items() <= found.items():
            raise StaleMetadata(f"the broker does not know the new settings of {self._group} yet")
        return found

    async def alter(self, settings: Mapping[str, str]) -> None:
        """Set some settings of the group; the others stay."""
        request = AlterGroupRequest(self._group, settings)
        response = await self._connections.send_to_any(request)
        ((code, message, _, _),) = response.resources
        self._check(code, message, "ALTER_CONFIGS")

    async def _send(self, request: Any) -> Any:
        try:
            return await self._coordinators.send(self._group, request)
        except IncompatibleBrokerVersion as error:
            raise IncompatibleBrokerVersion(NO_SHARE_GROUPS) from error

    def _check(self, code: int, message: str | None, operation: str) -> None:
        what = f"{self._group}: {message}" if message else self._group
        match code:
            case GroupAuthorizationFailedError.errno:
                what = f"grant the principal {operation} on the group {self._group}"
            case UnsupportedVersionError.errno:
                what = NO_SHARE_GROUPS
            case InvalidConfigurationError.errno:
                what = f"the settings of {self._group} are invalid: {message}"
            case _:
                pass
        raise_for_code(code, what)


def _or_none(number: int) -> int | None:
    return number if number >= 0 else None


@final
@dataclass(frozen=True, slots=True)
class GroupDescription:
    """The state of a share group, such as `Stable`; `Unknown` before a member has joined."""

    state: str
    members: tuple[GroupMember, ...]
    start_offsets: Mapping[Partition, StartOffset]
    settings: Mapping[str, str]


async def describe_group(cluster: Cluster, group: str) -> GroupDescription:
    """Describe a group, or raise ServiceError."""
    jitter = FullJitter(Backoff(), Random())  # noqa: S311 - jitter, no secret

    async def retried(call: Callable[[], Awaitable[_T]]) -> _T:
        return await with_retries(f"the share group {group} cannot be described", call, jitter)

    async with open_cluster(cluster.named("describe"), ClientOptions()) as connections:
        admin = ShareGroupAdmin(connections, group)
        state, members = await retried(admin.members)
        start_offsets = await retried(admin.start_offsets)
        return GroupDescription(state, members, start_offsets, await retried(admin.settings))


@final
class TopicIds:
    """Track the ids of topics, and find topics that were deleted and created again."""

    def __init__(self, connections: Connections, topics: Sequence[str]) -> None:
        self._connections = connections
        self._topics = topics
        self._known: dict[str, str] = {}
        self._missing: set[str] = set()

    @property
    def known(self) -> Mapping[str, str]:
        """The latest known id of each topic."""
        return self._known

    @property
    def missing(self) -> set[str]:
        """The topics that did not exist at the last refresh."""
        return self._missing

    async def refresh(self) -> set[str]:
        """Request the ids, and return the topics that were deleted and created again."""
        response = await self._connections.send_to_any(TopicIdsRequest(self._topics))
        replaced, self._missing = set[str](), set[str]()
        for code, topic, topic_id, *_ in response.topics:
            match error_of(code, topic):
                case UnknownTopicOrPartitionError():
                    self._missing.add(topic)
                case KafkaError() as error if not error.retriable:
                    raise error
                case _ if topic_id != ANY_TOPIC_ID:
                    if self._known.setdefault(topic, topic_id.hex()) != topic_id.hex():
                        replaced.add(topic)
                    self._known[topic] = topic_id.hex()
                case _:
                    pass
        return replaced
