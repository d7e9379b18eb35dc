from __future__ import annotations

from datetime import UTC, datetime
from random import Random

from fanout.core.backoff import Backoff, FullJitter
from fanout.kafka.partitions import Partition
from fanout.kafka.reading.offsets import OffsetResolver, next_offset
from tests.support.kafka.scripted_cluster import ScriptedCluster
from tests.support.virtual_time import in_virtual_time

FAR = datetime(2100, 1, 1, tzinfo=UTC)


async def resolve(cluster: ScriptedCluster, start: object) -> list[int]:
    resolver = OffsetResolver(cluster, None, FullJitter(Backoff(), Random(1)))
    splits = [partition.split for partition in cluster.partitions]
    found = await resolver.resolve("start", start, splits)
    return [next_offset(found[Partition("t", number)]) for number in range(len(splits))]


@in_virtual_time
async def test_a_record_that_comes_during_the_look_up_is_not_lost() -> None:
    cluster = ScriptedCluster()
    cluster.log().append(3)
    cluster.after_offsets.append(lambda: cluster.log().append(1))
    assert await resolve(cluster, FAR) == [3]


@in_virtual_time
async def test_each_partition_begins_by_its_own_start() -> None:
    cluster = ScriptedCluster(4)
    for number in range(4):
        cluster.log(number).append(5)
        cluster.log(number).expire(1)
        cluster.log(number).times = {3: 2_000}
    start = {"t-0": "earliest", "t-1": "latest", "t-2": 2, "t-3": datetime.fromtimestamp(1, UTC)}
    assert await resolve(cluster, start) == [1, 5, 2, 3]
