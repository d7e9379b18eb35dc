"""Do to the stream what the plan says."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from fanout.demo.plan import Kind
from fanout.testing.faults import CutConnection, RaiseInStream, Stall

if TYPE_CHECKING:
    from fanout.demo.plan import Act
    from fanout.testing.kinesis_process import KinesisProcess

__all__ = ("parents_of_shards", "perform")


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
    shards = await _open_shards(client, stream)
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


async def parents_of_shards(client: Any, stream: str) -> dict[str, list[str]]:
    """Return the parents of every shard that the service lists."""
    names = ("ParentShardId", "AdjacentParentShardId")
    return {
        shard["ShardId"]: [shard[name] for name in names if name in shard]
        for shard in await _list_shards(client, stream)
    }


async def _open_shards(client: Any, stream: str) -> list[str]:
    """Return the open shards in the order of their hash keys, so that neighbours are adjacent."""
    shards = [
        shard
        for shard in await _list_shards(client, stream)
        if "EndingSequenceNumber" not in shard["SequenceNumberRange"]
    ]
    shards.sort(key=lambda shard: int(shard["HashKeyRange"]["StartingHashKey"]))
    return [shard["ShardId"] for shard in shards]


async def _list_shards(client: Any, stream: str) -> list[Any]:
    shards: list[Any] = (await client.list_shards(StreamName=stream))["Shards"]
    return shards
