"""Route calls when leaders, replicas and coordinators move between several brokers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka.errors import (
    GroupCoordinatorNotAvailableError,
    KafkaConnectionError,
    NotLeaderForPartitionError,
    OffsetOutOfRangeError,
)
from aiokafka.protocol.commit import OffsetCommitResponse_v3
from aiokafka.protocol.coordination import FindCoordinatorResponse_v1
from aiokafka.protocol.fetch import FetchResponse_v11
from aiokafka.protocol.metadata import MetadataResponse_v5
from aiokafka.protocol.offset import OffsetResponse_v3

from fanout.core.positions import Cursor
from fanout.errors import ServiceError
from fanout.kafka.partitions import Partition
from fanout.kafka.protocol.messages.fetch import CheckedFetchRequest
from fanout.kafka.reading.client import _Client
from fanout.kafka.reading.consumer_options import ConsumerOptions
from fanout.kafka.reading.transport import FetchRefused, OffsetSpec, PartitionFetch
from tests.support.virtual_time import in_virtual_time

FIRST = Partition("orders", 0)
WANTED = {FIRST: PartitionFetch(5, 1000)}


class Scripted:
    """Connections that answer by a script: who is asked, and what he says."""

    def __init__(self, *answers: tuple[int | None, Any]) -> None:
        self._answers = list(answers)
        self.racks: list[str] = []

    def set_brokers(self, brokers: Any) -> None: ...

    def add_broker(self, broker: int, server: Any) -> None: ...

    async def send_to_any(self, request: Any) -> Any:
        return await self.send(None, request)

    async def send(self, broker: int | None, request: Any, *_lane: Any) -> Any:
        if isinstance(request, CheckedFetchRequest):
            self.racks.append(request._rack_id)
        asked, answer = self._answers.pop(0)
        assert broker == asked
        if isinstance(answer, Exception):
            raise answer
        return answer

    def client(self) -> _Client:
        connections: Any = self
        return _Client(
            connections, client_rack="here", isolation_level=1, options=ConsumerOptions()
        )


def metadata(leader: int, cluster: str = "id") -> tuple[None, Any]:
    topics: list[Any] = [(0, "orders", False, [(0, 0, leader, [1, 2], [1, 2], [])])]
    return None, MetadataResponse_v5(0, [(1, "a", 1, None), (2, "b", 2, None)], cluster, 1, topics)


def answer(code: int = 0, replica: int = -1) -> Any:
    return FetchResponse_v11(0, 0, 0, [("orders", [(0, code, 9, 9, 0, [], replica, b"")])])


def coordinator(broker: int, code: int = 0) -> tuple[None, Any]:
    return None, FindCoordinatorResponse_v1(0, code, "", broker, "a", 1)


def committed(code: int = 0) -> Any:
    return OffsetCommitResponse_v3(0, [("orders", [(0, code)])])


@pytest.mark.fault("A leader sends us to a replica that is near")
async def test_a_replica_that_the_leader_names_is_read_until_it_fails() -> None:
    lost = KafkaConnectionError("lost")
    client = Scripted(metadata(1), (1, answer(replica=2)), (2, answer()), (2, lost)).client()
    await client.describe(["orders"])
    assert client.leader(FIRST) == 1
    await client.fetch(1, WANTED, max_wait=0.0)
    assert client.leader(FIRST) == 2
    await client.fetch(2, WANTED, max_wait=0.0)
    assert client.leader(FIRST) == 2
    with pytest.raises(KafkaConnectionError):
        await client.fetch(2, WANTED, max_wait=0.0)
    assert client.leader(FIRST) == 1


@in_virtual_time
async def test_a_leader_does_not_hear_the_rack_of_a_replica_that_has_just_failed() -> None:
    """It would name the dead replica, and send no records, until the cluster misses that one."""
    lost = KafkaConnectionError("lost")
    connections = Scripted(
        metadata(1), (1, answer(replica=2)), (2, lost), (1, answer()), (1, answer())
    )
    client = connections.client()
    await client.describe(["orders"])
    await client.fetch(1, WANTED, max_wait=0.0)
    with pytest.raises(KafkaConnectionError):
        await client.fetch(2, WANTED, max_wait=0.0)
    await client.fetch(1, WANTED, max_wait=0.0)
    assert connections.racks == ["here", "here", ""]
    await asyncio.sleep(15)
    await client.fetch(1, WANTED, max_wait=0.0)
    assert connections.racks[3:] == ["here"]


@pytest.mark.fault("A leader sends us to a replica that is near")
async def test_an_offset_that_a_replica_lacks_is_asked_of_the_leader() -> None:
    client = Scripted(
        metadata(1), (1, answer(replica=2)), (2, answer(code=1)), (1, answer(code=1))
    ).client()
    await client.describe(["orders"])
    await client.fetch(1, WANTED, max_wait=0.0)
    (refused,) = (await client.fetch(2, WANTED, max_wait=0.0)).values()
    assert isinstance(refused, FetchRefused)
    assert isinstance(refused.error, NotLeaderForPartitionError)
    assert client.leader(FIRST) == 1
    (refused,) = (await client.fetch(1, WANTED, max_wait=0.0)).values()
    assert isinstance(refused, FetchRefused)
    assert isinstance(refused.error, OffsetOutOfRangeError)


@pytest.mark.fault("A leader is elected anew, here or on another broker")
async def test_a_leader_that_has_moved_is_learnt_when_offsets_are_asked_for_again() -> None:
    moved = OffsetResponse_v3(0, [("orders", [(0, 6, -1, -1)])])
    found = OffsetResponse_v3(0, [("orders", [(0, 0, -1, 9)])])
    client = Scripted(metadata(1), (1, moved), metadata(2), (2, found)).client()
    with pytest.raises(NotLeaderForPartitionError):
        await client.offsets({FIRST: OffsetSpec.LATEST})
    assert await client.offsets({FIRST: OffsetSpec.LATEST}) == {FIRST: 9}


@pytest.mark.fault("The brokers' addresses lead to another cluster while it is read")
async def test_another_cluster_at_the_same_addresses_is_an_error_for_good() -> None:
    client = Scripted(metadata(1), metadata(2, "other"), metadata(1)).client()
    await client.describe(["orders"])
    with pytest.raises(ServiceError, match="belong to the cluster other now, not to id"):
        await client.describe(["orders"])
    assert client.cluster_id == "id"
    assert client.leader(FIRST) == 1
    await client.describe(["orders"])


@pytest.mark.fault("A commit fails, hangs or is refused, or its coordinator has moved")
@pytest.mark.parametrize("stale", [committed(16), committed(15), KafkaConnectionError("lost")])
async def test_a_coordinator_that_is_remembered_and_has_moved_is_looked_up_once_more(
    stale: Any,
) -> None:
    client = Scripted(
        coordinator(1),
        (1, committed()),
        (1, stale),
        coordinator(2),
        (2, committed()),
        (2, committed()),
    ).client()
    for _ in range(3):
        assert await client.commit("group", {FIRST: Cursor(4)}) == {}


async def test_a_coordinator_that_was_just_found_is_not_looked_up_again() -> None:
    client = Scripted(coordinator(1), (1, committed(16)), coordinator(0, 15)).client()
    (error,) = (await client.commit("group", {FIRST: Cursor(4)})).values()
    assert "[Error 16]" in str(error)
    with pytest.raises(GroupCoordinatorNotAvailableError):
        await client.commit("group", {FIRST: Cursor(4)})
