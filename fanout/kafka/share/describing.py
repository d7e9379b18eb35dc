"""Look at a share group without joining it."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, TypeVar, final

from fanout.core.backoff import BackoffOptions, FullJitter
from fanout.kafka.protocol.asking import asked
from fanout.kafka.protocol.connections import open_connections
from fanout.kafka.protocol.servers import parse_servers
from fanout.kafka.share.client_options import ClientOptions
from fanout.kafka.share.groups import GroupCalls

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from fanout.kafka.partitions import Partition
    from fanout.kafka.protocol.security import Security
    from fanout.kafka.share.groups import Beginning, GroupMember

    _T = TypeVar("_T")

__all__ = ("GroupDescription", "describe")


@final
@dataclass(frozen=True, slots=True)
class GroupDescription:
    """What a cluster says of a share group.

    Args:
        state: Its state, such as `Stable` or `Empty`; `Unknown` where nobody has joined it.
        members: Its members.
        beginnings: Where it begins in each partition.
        settings: Its settings.
    """

    state: str
    members: tuple[GroupMember, ...]
    beginnings: Mapping[Partition, Beginning]
    settings: Mapping[str, str]


async def describe(
    bootstrap_servers: str | Sequence[str], group: str, *, security: Security
) -> GroupDescription:
    """Ask a cluster about a group.

    Args:
        bootstrap_servers: Some of its brokers, as `"host:port"`.
        group: The group.
        security: How they are talked to.

    Raises:
        ServiceError: If the brokers have no share groups, refuse us, or do not answer.
    """
    jitter = FullJitter(BackoffOptions(), Random())  # noqa: S311 - jitter, no secret

    async def ask(call: Callable[[], Awaitable[_T]]) -> _T:
        return await asked(f"the share group {group} cannot be described", call, jitter)

    async with open_connections(
        parse_servers(bootstrap_servers),
        security=security,
        client_id="fanout-describe",
        options=ClientOptions(),
    ) as connections:
        calls = GroupCalls(connections, group)
        state, members = await ask(calls.members)
        beginnings = await ask(calls.beginnings)
        return GroupDescription(state, members, beginnings, await ask(calls.settings))
