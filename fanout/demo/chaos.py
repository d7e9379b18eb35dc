"""Do to the stream what the plan says."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING, Any, final

import msgspec

from fanout.demo.plan import Kind, choose
from fanout.testing.faults import CutConnection, RaiseInStream, Stall

if TYPE_CHECKING:
    from fanout.demo.plan import Act, SecondReshard
    from fanout.testing.kinesis_process import KinesisProcess

__all__ = ("Resharded", "parents_of_shards", "perform", "reshard_again")


@final
class Resharded(msgspec.Struct, frozen=True):
    """What a reshard has done.

    Args:
        ended: The shards that it has closed.
        born: The shards that it has made; one that it has closed again is among both.
    """

    ended: tuple[str, ...]
    born: tuple[str, ...]


async def perform(act: Act, server: KinesisProcess, client: Any, stream: str) -> str:
    """Carry out one act on the shards that are open now.

    Args:
        act: What to do.
        server: Where to do it.
        client: An open aioboto3 client of Kinesis.
        stream: The stream's name.

    Returns:
        What was done, for people.
    """
    shards = [shard["ShardId"] for shard in await _open_shards(client, stream)]
    shard = act.choose(shards)
    match act.kind:
        case Kind.SPLIT:
            children = await asyncio.to_thread(server.split_shard, stream, shard)
            return f"split {shard} into {' and '.join(children)}"
        case Kind.MERGE:
            left, right = act.choose(list(pairwise(shards)))
            child = await asyncio.to_thread(server.merge_shards, stream, left, right)
            return f"merge {left} and {right} into {child}"
        case Kind.CUT:
            await asyncio.to_thread(server.inject, CutConnection(shard=shard, event=None))
            return f"cut the connection of {shard} inside a frame"
        case Kind.STALL:
            await asyncio.to_thread(server.inject, Stall(shard=shard, event=None))
            return f"silence {shard}, heartbeats included"
        case Kind.ERROR:
            await asyncio.to_thread(server.inject, RaiseInStream(shard=shard, event=None))
            return f"end the subscription of {shard} with InternalFailureException"


async def reshard_again(
    second: SecondReshard, server: KinesisProcess, client: Any, stream: str
) -> Resharded:
    """Split a shard that a reshard has made, then merge two neighbours, one of them such a shard.

    Args:
        second: Which shards.
        server: Where to do it.
        client: An open aioboto3 client of Kinesis.
        stream: The stream's name, of which a shard was split or merged before.
    """
    made = [shard["ShardId"] for shard in await _open_shards(client, stream) if _was_made(shard)]
    split = choose(second.split, made)
    children = await asyncio.to_thread(server.split_shard, stream, split)
    neighbours = [
        (left["ShardId"], right["ShardId"])
        for left, right in pairwise(await _open_shards(client, stream))
        if _was_made(left) or _was_made(right)
    ]
    left, right = choose(second.merge, neighbours)
    merged = await asyncio.to_thread(server.merge_shards, stream, left, right)
    return Resharded((split, left, right), (*children, merged))


def _was_made(shard: Any) -> bool:
    return "ParentShardId" in shard


async def parents_of_shards(client: Any, stream: str) -> dict[str, list[str]]:
    """Return the parents of every shard that the service lists."""
    names = ("ParentShardId", "AdjacentParentShardId")
    return {
        shard["ShardId"]: [shard[name] for name in names if name in shard]
        for shard in await _list_shards(client, stream)
    }


async def _open_shards(client: Any, stream: str) -> list[Any]:
    """Return the open shards in the order of their hash keys, so that neighbours are adjacent."""
    shards = [
        shard
        for shard in await _list_shards(client, stream)
        if "EndingSequenceNumber" not in shard["SequenceNumberRange"]
    ]
    shards.sort(key=lambda shard: int(shard["HashKeyRange"]["StartingHashKey"]))
    return shards


async def _list_shards(client: Any, stream: str) -> list[Any]:
    shards: list[Any] = (await client.list_shards(StreamName=stream))["Shards"]
    return shards
