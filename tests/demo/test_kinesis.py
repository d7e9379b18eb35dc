from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

import boto3
import pytest

from fanout.demo.kinesis import KinesisStream
from fanout.demo.plan import Action, ActionResult, Kind
from fanout.testing.kinesis.process import KinesisProcess
from fanout.testing.trials.records import RecordProducer

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST, SECOND, THIRD, FOURTH = (f"shardId-{index:012}" for index in range(4))


@pytest.fixture(scope="module")
def server() -> Iterator[KinesisProcess]:
    with KinesisProcess() as server:
        yield server


async def created(server: KinesisProcess, name: str, shards: int) -> KinesisStream:
    return await asyncio.to_thread(KinesisStream, server, name, shards)


async def test_a_shard_is_split(server: KinesisProcess) -> None:
    stream = await created(server, "split", 2)
    done = await stream.perform(Action(1, Kind.SPLIT, 0.9))
    told = f"split {SECOND} into {THIRD} and {FOURTH}"
    assert done == ActionResult(told, ended=(SECOND,), born=(THIRD, FOURTH))


async def test_neighbours_are_merged_even_after_a_split(server: KinesisProcess) -> None:
    stream = await created(server, "merge", 2)
    await stream.perform(Action(1, Kind.SPLIT, 0.0))
    done = await stream.perform(Action(1, Kind.MERGE, 0.9))
    child = "shardId-000000000004"
    told = f"merge {FOURTH} and {SECOND} into {child}"
    assert done == ActionResult(told, ended=(FOURTH, SECOND), born=(child,))


async def test_what_is_done_while_nobody_reads_splits_and_merges_children(
    server: KinesisProcess,
) -> None:
    stream = await created(server, "again", 3)
    first, second = (await stream.perform(Action(1, Kind.SPLIT, 0.9))).born
    split = await stream.perform(Action(1, Kind.SPLIT_AGAIN, 0.0))
    merge = await stream.perform(Action(1, Kind.MERGE_AGAIN, 0.9))
    left, right, merged = (f"shardId-{index:012}" for index in (5, 6, 7))
    assert (split.ended, split.born) == ((first,), (left, right))
    assert (merge.ended, merge.born) == ((right, second), (merged,))


@pytest.mark.long
@pytest.mark.parametrize("merge", [0.0, 0.5, 0.99])
async def test_shards_of_the_beginning_are_merged_again_only_with_a_new_neighbour(
    server: KinesisProcess, merge: float
) -> None:
    stream = await created(server, f"neighbours-{merge}", 8)
    children = (await stream.perform(Action(1, Kind.SPLIT, 0.0))).born
    split = await stream.perform(Action(1, Kind.SPLIT_AGAIN, 0.9))
    merged = await stream.perform(Action(1, Kind.MERGE_AGAIN, merge))
    assert split.ended == (children[1],)
    assert set(merged.ended) & {*children, *split.born}


async def test_one_child_is_enough_to_be_split_and_merged_again(server: KinesisProcess) -> None:
    stream = await created(server, "one", 2)
    (child,) = (await stream.perform(Action(1, Kind.MERGE, 0.0))).born
    split = await stream.perform(Action(1, Kind.SPLIT_AGAIN, 0.5))
    merge = await stream.perform(Action(1, Kind.MERGE_AGAIN, 0.5))
    assert split.ended == (child,)
    assert merge.ended == split.born


async def test_the_open_shards_are_those_that_the_service_lists_by_their_hash_keys(
    server: KinesisProcess,
) -> None:
    stream = await created(server, "listed", 2)
    for kind, where in [(Kind.SPLIT, 0.9), (Kind.MERGE, 0.0), (Kind.SPLIT_AGAIN, 0.9)]:
        await stream.perform(Action(1, kind, where))
    client = boto3.client("kinesis", **server.client_options)
    shards = (await asyncio.to_thread(client.list_shards, StreamName="listed"))["Shards"]
    still_open = [
        shard for shard in shards if "EndingSequenceNumber" not in shard["SequenceNumberRange"]
    ]
    still_open.sort(key=lambda shard: int(shard["HashKeyRange"]["StartingHashKey"]))
    assert stream._open == [shard["ShardId"] for shard in still_open]
    assert stream._born == {shard["ShardId"] for shard in shards if "ParentShardId" in shard}


@pytest.mark.long
@pytest.mark.parametrize("kind", [Kind.CUT, Kind.STALL, Kind.ERROR])
async def test_a_fault_names_an_open_shard(server: KinesisProcess, kind: Kind) -> None:
    stream = await created(server, kind.name, 1)
    await stream.perform(Action(1, Kind.SPLIT, 0.0))
    assert SECOND in (await stream.perform(Action(1, kind, 0.0))).description


async def test_the_places_of_records_are_told_in_their_order(server: KinesisProcess) -> None:
    stream = await created(server, "places", 3)
    records = RecordProducer("places", Random(1)).make(20)
    sent = await stream.put(records)
    client = boto3.client("kinesis", **server.client_options)
    found = {}
    for shard in stream._open:
        iterator = await asyncio.to_thread(
            client.get_shard_iterator,
            StreamName="places",
            ShardId=shard,
            ShardIteratorType="TRIM_HORIZON",
        )
        page = await asyncio.to_thread(client.get_records, ShardIterator=iterator["ShardIterator"])
        for each in page["Records"]:
            found[shard, each["SequenceNumber"]] = (each["PartitionKey"], each["Data"])
    assert [found[place.split, place.sequence] for place in sent] == [
        (record.key, record.value) for record in records
    ]
    assert len(found) == 20
