"""Describe a consumer group of the new protocol for people: its members, and what they have."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final, final

from aiokafka.errors import GroupAuthorizationFailedError, IncompatibleBrokerVersion

from fanout.core.backoff import Backoff, FullJitter
from fanout.errors import ServiceError
from fanout.kafka.group.calls import NO_GROUPS
from fanout.kafka.partitions import Partition
from fanout.kafka.protocol.coordinators import Coordinators, CoordinatorType
from fanout.kafka.protocol.error_codes import raise_for_code
from fanout.kafka.protocol.first_contact import open_cluster
from fanout.kafka.protocol.messages.consumer_groups import ConsumerMembersRequest
from fanout.kafka.protocol.retries import with_retries
from fanout.kafka.reading.consumer_options import ConsumerOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanout.kafka.cluster import Cluster

# What a broker says of a group that is not there, or is of the classic protocol.
_NOT_FOUND: Final = 69


@final
@dataclass(frozen=True, slots=True)
class ConsumerRow:
    """A member, with the partitions that it owns and those that it waits for."""

    id: str
    instance_id: str | None
    client_id: str
    host: str
    owned: tuple[Partition, ...]
    awaited: tuple[Partition, ...]


@final
@dataclass(frozen=True, slots=True)
class ConsumersDescription:
    """The state of a group, such as `Stable`, and its members."""

    state: str
    members: Sequence[ConsumerRow]


async def describe_consumers(cluster: Cluster, group: str) -> ConsumersDescription:
    """Describe a group.

    Raises:
        ServiceError: If no broker answers, or there is no such group of the new protocol.
    """
    jitter = FullJitter(Backoff(), Random())  # noqa: S311 - jitter, no secret
    async with open_cluster(cluster.named("describe"), ConsumerOptions()) as connections:
        coordinators = Coordinators(connections, CoordinatorType.GROUP)

        async def describe() -> Any:
            try:
                response = await coordinators.send(group, ConsumerMembersRequest(group))
            except IncompatibleBrokerVersion as error:
                raise ServiceError(NO_GROUPS) from error
            ((code, message, _, state, _, _, _, members, *_),) = response.groups
            if code == _NOT_FOUND:
                raise ServiceError(
                    f"there is no consumer group {group!r} of the new protocol: it begins when its "
                    f"first member joins"
                )
            if code == GroupAuthorizationFailedError.errno:
                message = f"grant the principal DESCRIBE on the group {group}"
            raise_for_code(code, message or group)
            return state, members

        what = f"the consumer group {group} cannot be described"
        state, members = await with_retries(what, describe, jitter)
    return ConsumersDescription(state, sorted(map(_row, members), key=lambda row: row.id))


def _row(member: Any) -> ConsumerRow:
    id_, instance_id, _, _, client, host, _, _, owned, target, _ = member
    has = _partitions(owned)
    awaited = tuple(each for each in _partitions(target) if each not in has)
    return ConsumerRow(id_, instance_id, client, host, has, awaited)


def _partitions(assignment: Any) -> tuple[Partition, ...]:
    found = (
        Partition(topic, number) for _, topic, numbers, _ in assignment[0] for number in numbers
    )
    return tuple(sorted(found))
