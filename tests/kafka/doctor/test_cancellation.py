"""Checks of a cluster that are cancelled while it does not answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from fanout.core.checkpoint import Checkpoint
from fanout.kafka.cluster import Cluster
from fanout.kafka.doctor.diagnose import KafkaNeeds, diagnose_cluster, read_lag
from tests.kafka.brokers import HERE
from tests.kafka.protocol.listeners import broker, listening, silent, until_alone

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from tests.kafka.protocol.listeners import Serve


async def examine(cluster: Cluster) -> None:
    await diagnose_cluster(cluster, KafkaNeeds(topics=["orders"]))


async def look_up(cluster: Cluster) -> None:
    await read_lag(cluster, Checkpoint("kafka:scripted", {}))


@pytest.mark.parametrize(
    ("check", "serve"), [(examine, silent), (examine, broker()), (look_up, silent)]
)
async def test_a_check_that_is_cancelled_closes_its_connections(
    check: Callable[[Cluster], Coroutine[Any, Any, None]], serve: Serve
) -> None:
    async with listening(serve) as server, listening(silent) as other:
        before = asyncio.all_tasks()
        cluster = Cluster([str(server), str(other)], security=HERE)
        for turns in range(4):
            checking = asyncio.create_task(check(cluster))
            await asyncio.sleep(0.05 * turns)
            checking.cancel()
            await asyncio.wait([checking])
            assert checking.cancelled()
            await until_alone(before)
