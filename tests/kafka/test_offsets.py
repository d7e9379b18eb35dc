from __future__ import annotations

from datetime import UTC, datetime
from random import Random

import pytest

from fanout.core.backoff import Backoff, FullJitter
from fanout.core.checkpoint import Checkpoint, SplitPosition
from fanout.core.positions import Cursor
from fanout.kafka.partitions import Partition
from fanout.kafka.reading.offsets import (
    OffsetResolver,
    cursor_before,
    epoch_at,
    next_offset,
    of_topic,
    topic_id_at,
)
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


ID, OTHER = "AbC-dEf_123456789012-g", "x" * 22


@pytest.mark.parametrize(
    ("state", "epoch", "id_"),
    [("", -1, ""), ("epoch 7", 7, ""), (f"id {ID}", -1, ID), (f"epoch 7 id {ID}", 7, ID)],
)
def test_a_position_keeps_the_epoch_and_the_id_of_its_topic(
    state: str, epoch: int, id_: str
) -> None:
    position = cursor_before(11, epoch, id_)
    assert (position, position.state) == (Cursor(10), state)
    assert (epoch_at(position), topic_id_at(position)) == (epoch, id_)
    assert topic_id_at(of_topic(position, OTHER)) == id_ or OTHER
    assert epoch_at(of_topic(position, OTHER)) == epoch


@pytest.mark.parametrize("state", ["epoch 7x", "id short", "ids", "[1,2]", "epoch  7", f"id  {ID}"])
def test_a_state_that_is_not_understood_says_nothing(state: str) -> None:
    position = Cursor(10, state=state)
    assert (epoch_at(position), topic_id_at(position)) == (-1, "")


def test_a_position_grows_by_the_id_and_four_letters() -> None:
    def size(id_: str) -> int:
        splits = {
            f"orders-{number}": SplitPosition(
                Partition("orders", number).split, cursor_before(123_456_789, 12, id_)
            )
            for number in range(10_000)
        }
        return len(Checkpoint("kafka:cluster", splits).to_json())

    assert size(ID) - size("") == 10_000 * 26


@in_virtual_time
async def test_a_start_is_of_the_topic_that_has_the_name_now() -> None:
    cluster = ScriptedCluster(2)
    cluster.ids["t"] = ID
    resolver = OffsetResolver(cluster, None, FullJitter(Backoff(), Random(1)))
    splits = [partition.split for partition in cluster.partitions]
    start = {"t-0": 3, "t-1": "latest"}
    found = await resolver.resolve("start", start, splits)
    assert [topic_id_at(at) for at in found.values()] == [ID, ID]
