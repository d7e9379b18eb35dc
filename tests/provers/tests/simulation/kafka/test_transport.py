from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from aiokafka.errors import (
    KafkaConnectionError,
    NotLeaderForPartitionError,
    OffsetOutOfRangeError,
    RequestTimedOutError,
)

from fanout.core.positions import Cursor
from fanout.kafka.partitions import Partition
from fanout.kafka.reading.transport import Fetched, FetchRefused, OffsetSpec, PartitionFetch
from fanout.testing.virtual_time.loop import running_loop
from tests.provers.simulation.job.process_run import ProcessRun
from tests.provers.simulation.kafka.faults import KafkaFault, KafkaFaultKind
from tests.provers.simulation.kafka.plan_draws import draw_kafka_plan
from tests.provers.simulation.kafka.world import KafkaWorld
from tests.provers.simulation.kinesis.oracle.held_events import HeldEvents
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from fanout.kafka.reading.transport import FetchAnswer, KafkaTransport
    from tests.provers.simulation.kafka.partition_log import LogEra

PARTITION = Partition("t", 0)
PLAN = replace(
    draw_kafka_plan(7),
    brokers=2,
    partitions=1,
    another=False,
    batches=30,
    transactions=False,
    large=False,
    seconds=60.0,
    selection="topics",
    start="earliest",
    group=True,
    faults=(),
    cluster_faults=(),
)


class TransportCluster:
    """A cluster of two brokers, and one process that asks it."""

    def __init__(self, *faults: KafkaFault) -> None:
        plan = replace(PLAN, cluster_faults=faults)
        world = KafkaWorld(plan, lambda _: None)
        self.run = ProcessRun(1, HeldEvents(1 << 30))
        world.witness(self.run)
        self.era: LogEra = plan.logs()[PARTITION].eras[0]
        self.transport: KafkaTransport = world.source(self.run).transport()

    async def fetch(
        self, offset: int, max_bytes: int = 1 << 20, *, max_wait: float = 0.0, broker: int = 0
    ) -> FetchAnswer:
        leader = self.transport.leader(PARTITION)
        if leader is None:
            await self.transport.describe(["t"])
            leader = self.transport.leader(PARTITION)
        assert leader is not None
        wanted = {PARTITION: PartitionFetch(offset, max_bytes)}
        answers = await self.transport.fetch(broker or leader, wanted, max_wait=max_wait)
        return answers[PARTITION]

    async def records(self, offset: int, max_bytes: int = 1 << 20) -> bytes:
        answer = await self.fetch(offset, max_bytes)
        assert isinstance(answer, Fetched)
        return bytes(answer.batches)


@in_virtual_time
async def test_an_answer_begins_with_the_batch_that_holds_the_offset() -> None:
    cluster = TransportCluster()
    await asyncio.sleep(60.0)
    wide = next(s for s in cluster.era.batches if s.next_offset - s.base > 2)
    assert (await cluster.records(wide.base + 1)).startswith(wide.data)


@in_virtual_time
async def test_the_first_batch_comes_whole_and_the_last_may_be_cut_short() -> None:
    cluster = TransportCluster()
    await asyncio.sleep(60.0)
    first, second = cluster.era.batches[:2]
    assert await cluster.records(first.base, max_bytes=1) == first.data
    size = len(first.data) + 10
    assert await cluster.records(first.base, max_bytes=size) == first.data + second.data[:10]


@in_virtual_time
async def test_a_fetch_waits_for_records_as_long_as_it_may_and_no_longer() -> None:
    cluster = TransportCluster()
    began = running_loop().time()
    late = next(s for s in cluster.era.batches if s.at > 1.0)
    answer = await cluster.fetch(late.base, max_wait=100.0)
    assert isinstance(answer, Fetched)
    assert answer.batches
    assert running_loop().time() == pytest.approx(late.at, abs=0.1)
    await asyncio.sleep(60.0)
    began = running_loop().time()
    answer = await cluster.fetch(cluster.era.high_watermark(60.0), max_wait=5.0)
    assert isinstance(answer, Fetched)
    assert not answer.batches
    assert running_loop().time() == pytest.approx(began + 5.0, abs=0.1)


@in_virtual_time
async def test_offsets_that_there_are_not_and_brokers_that_do_not_lead_are_refused() -> None:
    cluster = TransportCluster()
    answer = await cluster.fetch(10_000)
    assert isinstance(answer, FetchRefused)
    assert isinstance(answer.error, OffsetOutOfRangeError)
    leader = cluster.transport.leader(PARTITION)
    assert leader is not None
    answer = await cluster.fetch(0, broker=3 - leader)
    assert isinstance(answer, FetchRefused)
    assert isinstance(answer.error, NotLeaderForPartitionError)


@in_virtual_time
async def test_a_broker_that_dies_or_hangs_fails_the_fetch_that_waits_there() -> None:
    kinds = (KafkaFaultKind.BROKER_DIES, KafkaFaultKind.BROKER_HANGS)
    dies, hangs = (
        TransportCluster(*(KafkaFault(kind=k, at=5.0, seconds=50.0, amount=n) for n in range(2)))
        for k in kinds
    )
    await asyncio.sleep(4.9)
    end = dies.era.high_watermark(4.9)
    assert dies.era.next_change(4.9) > 5.0
    with pytest.raises(KafkaConnectionError):
        await dies.fetch(end, max_wait=20.0)
    assert running_loop().time() == pytest.approx(5.0, abs=0.01)
    await asyncio.sleep(1.0)
    began = running_loop().time()
    with pytest.raises(RequestTimedOutError):
        await hangs.transport.describe(["t"])
    assert running_loop().time() == pytest.approx(began + 30.0)


@in_virtual_time
async def test_the_edges_and_what_the_group_has_committed_are_told() -> None:
    cluster = TransportCluster()
    await asyncio.sleep(60.0)
    transport, end = cluster.transport, cluster.era.high_watermark(60.0)
    assert await transport.offsets({PARTITION: OffsetSpec.EARLIEST}) == {PARTITION: 0}
    assert await transport.offsets({PARTITION: OffsetSpec.LATEST}) == {PARTITION: end}
    assert await transport.committed("g", [PARTITION]) == {PARTITION: None}
    assert await transport.commit("g", {PARTITION: Cursor(2)}) == {}
    assert await transport.committed("g", [PARTITION]) == {PARTITION: Cursor(2)}


@in_virtual_time
async def test_a_process_that_is_dead_commits_nothing() -> None:
    cluster = TransportCluster()
    cluster.run.dead = True
    with pytest.raises(KafkaConnectionError):
        await cluster.transport.commit("g", {PARTITION: Cursor(2)})
    cluster.run.dead = False
    assert await cluster.transport.committed("g", [PARTITION]) == {PARTITION: None}
