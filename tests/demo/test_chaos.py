from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import aioboto3
import pytest

from fanout.demo.chaos import parents_of_shards, perform, reshard_again
from fanout.demo.plan import Act, Kind, SecondReshard
from fanout.testing.kinesis_process import KinesisProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

FIRST, SECOND, THIRD, FOURTH = (f"shardId-{index:012}" for index in range(4))


@pytest.fixture(scope="module")
def server() -> Iterator[KinesisProcess]:
    with KinesisProcess() as server:
        yield server


@pytest.fixture
async def client(server: KinesisProcess) -> AsyncIterator[Any]:
    session: Any = aioboto3.Session()
    async with session.client("kinesis", **server.client_options) as client:
        yield client


async def test_a_shard_is_split(server: KinesisProcess, client: Any) -> None:
    await asyncio.to_thread(server.create_stream, "split", 2)
    told = await perform(Act(1, Kind.SPLIT, 0.9), server, client, "split")
    assert told == f"split {SECOND} into {THIRD} and {FOURTH}"


async def test_neighbours_are_merged_even_after_a_split(
    server: KinesisProcess, client: Any
) -> None:
    await asyncio.to_thread(server.create_stream, "merge", 2)
    await asyncio.to_thread(server.split_shard, "merge", FIRST)
    told = await perform(Act(1, Kind.MERGE, 0.9), server, client, "merge")
    assert told == f"merge {FOURTH} and {SECOND} into shardId-000000000004"


async def test_a_second_reshard_splits_and_merges_children_of_the_first(
    server: KinesisProcess, client: Any
) -> None:
    await asyncio.to_thread(server.create_stream, "again", 3)
    first, second = await asyncio.to_thread(server.split_shard, "again", THIRD)
    done = await reshard_again(SecondReshard(split=0.0, merge=0.9), server, client, "again")
    left, right, merged = (f"shardId-{index:012}" for index in (5, 6, 7))
    assert done.ended == (first, right, second)
    assert done.born == (left, right, merged)
    assert (await parents_of_shards(client, "again"))[merged] == [right, second]


@pytest.mark.parametrize("merge", [0.0, 0.5, 0.99])
async def test_a_second_reshard_leaves_no_shard_of_the_beginning_unless_it_has_a_new_neighbour(
    server: KinesisProcess, client: Any, merge: float
) -> None:
    stream = f"neighbours-{merge}"
    await asyncio.to_thread(server.create_stream, stream, 8)
    children = await asyncio.to_thread(server.split_shard, stream, FIRST)
    done = await reshard_again(SecondReshard(split=0.9, merge=merge), server, client, stream)
    assert done.ended[0] == children[1]
    assert set(done.ended[1:]) & {*children, *done.born}


async def test_a_second_reshard_needs_no_more_than_one_child(
    server: KinesisProcess, client: Any
) -> None:
    await asyncio.to_thread(server.create_stream, "one", 2)
    child = await asyncio.to_thread(server.merge_shards, "one", FIRST, SECOND)
    done = await reshard_again(SecondReshard(split=0.5, merge=0.5), server, client, "one")
    assert done.ended == (child, *done.born[:2])


async def test_parents_are_those_that_the_service_lists(
    server: KinesisProcess, client: Any
) -> None:
    await asyncio.to_thread(server.create_stream, "parents", 1)
    children = await asyncio.to_thread(server.split_shard, "parents", FIRST)
    await asyncio.to_thread(server.merge_shards, "parents", *children)
    assert await parents_of_shards(client, "parents") == {
        FIRST: [],
        SECOND: [FIRST],
        THIRD: [FIRST],
        FOURTH: [SECOND, THIRD],
    }


@pytest.mark.parametrize("kind", [Kind.CUT, Kind.STALL, Kind.ERROR])
async def test_a_fault_names_an_open_shard(server: KinesisProcess, client: Any, kind: Kind) -> None:
    await asyncio.to_thread(server.create_stream, kind.name)
    await asyncio.to_thread(server.split_shard, kind.name, FIRST)
    assert SECOND in await perform(Act(1, kind, 0.0), server, client, kind.name)
