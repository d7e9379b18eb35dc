"""Errors of a share group without permissions, on a broker with an authorizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from fanout.errors import ServiceError
from fanout.kafka.cluster import Cluster
from tests.support.kafka.permissions import grant, permission
from tests.support.kafka.sharing import new_group, take

if TYPE_CHECKING:
    from tests.kafka.secured import Secured

pytestmark = pytest.mark.long


async def test_who_may_not_share_is_told_what_to_grant(cluster: Secured) -> None:
    group = await new_group(cluster.broker, 5)

    async def share() -> None:
        login = cluster.guarded_login("sharer")
        async with group.open(cluster=Cluster(cluster.guarded, security=login)) as stream:
            await take(stream, 5)

    for kind, name, operation, advice in (
        (ResourceType.TOPIC, group.topic.name, AclOperation.READ, "READ and DESCRIBE on the topic"),
        (ResourceType.GROUP, group.id, AclOperation.READ, "READ on the group"),
        (ResourceType.GROUP, group.id, AclOperation.ALTER_CONFIGS, "ALTER_CONFIGS on the group"),
    ):
        with pytest.raises(ServiceError, match=f"grant the principal {advice} {name}$"):
            await share()
        grant(cluster.broker, permission("sharer", kind, name, operation))
    await share()
