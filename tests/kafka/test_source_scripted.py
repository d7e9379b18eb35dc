"""A Kafka stream as a whole, over a cluster that follows a script."""

from __future__ import annotations

import asyncio
from collections import deque
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from aiokafka.errors import KafkaConnectionError, NotLeaderForPartitionError

import fanout
from fanout.core.backoff import Backoff
from fanout.kafka.reading.offsets import next_offset
from fanout.testing.virtual_time.cancellation import sweep
from fanout.testing.virtual_time.loop import simulate
from tests.support.kafka.scripted_cluster import ScriptedCluster, ScriptedSource
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from fanout.core.positions import Cursor
    from fanout.kafka.partitions import Partition

RECORDS = 12


class Cluster(ScriptedCluster):
    """A cluster with a group, which keeps what was committed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.offsets_committed: dict[Partition, int] = {}
        self.commit_faults: list[Exception] = []

    async def commit(
        self, _group_id: str, positions: Mapping[Partition, Cursor]
    ) -> Mapping[Partition, Exception]:
        await asyncio.sleep(self._latency)
        if self.commit_faults:
            raise self.commit_faults.pop()
        self.offsets_committed |= {p: next_offset(at) for p, at in positions.items()}
        return {}


@in_virtual_time
async def test_a_fetch_is_as_the_options_of_kafkas_consumer_say() -> None:
    cluster = ScriptedCluster()
    reported = {"fetch.max.wait.ms": 250, "max.partition.fetch.bytes": 20_000}
    async with fanout.open(ScriptedSource(cluster, consumer_options=reported)) as stream:
        cluster.log().append(1)
        await anext(stream)
    request = cluster.fetches[-1]
    assert request.max_wait == 0.25
    assert [want.max_bytes for want in request.wanted.values()] == [20_000]


@pytest.mark.parametrize("kind", [pa.string(), pa.timestamp("ms", "UTC"), pa.timestamp("us")])
def test_a_timestamp_that_decode_has_made_is_not_taken_for_the_brokers(kind: pa.DataType) -> None:
    def decode(records: pa.RecordBatch) -> pa.RecordBatch:
        at = records.schema.get_field_index("timestamp")
        made = pa.repeat(pa.scalar(5, pa.int64()), len(records)).cast(kind)
        return records.set_column(at, pa.field("timestamp", kind), made)

    async def main() -> None:
        cluster = ScriptedCluster()
        cluster.log().append(3)
        async with fanout.open(ScriptedSource(cluster, decode=decode)) as stream:
            assert (await anext(stream)).num_records == 3
            assert stream.statistics().splits["t-0"].newest is None

    simulate(main)


def test_a_stream_cancelled_at_any_step_leaves_nothing_and_is_continued_exactly() -> None:
    assert sweep(cancelled_and_continued) > 30


@pytest.mark.long
def test_a_stream_cancelled_at_any_time_leaves_nothing_and_is_continued_exactly() -> None:
    """Each call of the cluster takes 50 ms, so a cancellation strikes inside each of them."""

    class Later:
        fired = False

        def __init__(self, seconds: float) -> None:
            self._seconds = seconds

        async def run(self, work: Coroutine[Any, Any, None]) -> None:
            task = asyncio.create_task(work)
            await asyncio.wait([task], timeout=self._seconds)
            self.fired = task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()

    cancellations = [Later(0.01 * tick) for tick in range(300)]
    for cancellation in cancellations:
        simulate(cancelled_and_continued, cancellation)
    assert sum(one.fired for one in cancellations) > 100


async def cancelled_and_continued(cancellation: Any) -> None:
    """Read and commit everything, cancelled once on the way."""
    cluster = troubled_cluster()
    source = ScriptedSource(cluster, group_id="g", backoff=Backoff(base=0.1, cap=1.0))
    acknowledged: list[tuple[str, int]] = []
    positions: str | None = None

    async def run() -> None:
        nonlocal positions
        async with fanout.open(source, resume=positions, random=Random(7)) as stream:
            try:
                while len(acknowledged) < RECORDS:
                    batch = await anext(stream)
                    offsets = batch.records.column("offset").to_pylist()
                    await asyncio.sleep(0.1)
                    acknowledged.extend((batch.split.id, offset) for offset in offsets)
                    await stream.acknowledge(batch)
            finally:
                positions = stream.positions

    await cancellation.run(run())
    assert len(asyncio.all_tasks()) == 1
    if len(acknowledged) < RECORDS:
        await run()
    for partition in cluster.partitions:
        offsets = [offset for split, offset in acknowledged if split == str(partition)]
        assert offsets == list(range(RECORDS // 2))
    # What a cancellation keeps from being committed is, with the next record.
    if not cancellation.fired:
        assert cluster.offsets_committed == dict.fromkeys(cluster.partitions, RECORDS // 2)


def troubled_cluster() -> Cluster:
    """Build two partitions on two brokers, and trouble with every kind of call."""
    cluster = Cluster(partitions=2, latency=0.05)
    first, second = cluster.partitions
    cluster.leaders[second] = cluster.known[second] = 2
    for log in cluster.logs.values():
        for _ in range(3):
            log.append(RECORDS // 6)
    cluster.fetch_faults.append(KafkaConnectionError("a broker is gone"))
    cluster.answer_faults[first] = deque([NotLeaderForPartitionError()])
    cluster.offset_faults.append(KafkaConnectionError("a broker is gone"))
    cluster.commit_faults.append(KafkaConnectionError("a broker is gone"))
    return cluster
