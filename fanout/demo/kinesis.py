"""The demo on the embedded Kinesis: shards are split and merged, connections cut and silenced."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, final

import aioboto3

from fanout.demo.plan import Kind
from fanout.demo.records import SentRecord, digest
from fanout.demo.service import STREAM, ActionResult
from fanout.demo.sources import KinesisSettings
from fanout.kinesis.aws.client_config import go_past_proxies, pinned_config
from fanout.testing.faults import CutConnection, RaiseInStream, Stall
from fanout.testing.kinesis.credentials import REGION
from fanout.testing.kinesis.process import KinesisProcess
from fanout.testing.kinesis.rules import KinesisRules

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from fanout.demo.plan import Action
    from fanout.demo.records import Record

# The service's own figures, except for more frequent heartbeats.
_RULES = KinesisRules(heartbeat=1.0)
# The server sends a heartbeat every second; the service every five, which 35 s fit.
_SILENCE_TIMEOUT = 3.0
_REJECTED_PAUSE = 0.2

_FAULTS = {
    Kind.CUT: (CutConnection, "cut the connection of {} inside a frame"),
    Kind.STALL: (Stall, "silence {}, heartbeats included"),
    Kind.ERROR: (RaiseInStream, "end the subscription of {} with InternalFailureException"),
}


@contextmanager
def start_kinesis(shards: int) -> Iterator[KinesisService]:
    """Run an embedded Kinesis while the block lasts, with a stream that begins with some shards."""
    with KinesisProcess(_RULES) as server:
        server.create_stream(STREAM, shards)
        yield KinesisService(server)


@final
class KinesisService:
    """A `DemoService` that is the embedded Kinesis.

    Args:
        server: The running server, with the stream created.
    """

    def __init__(self, server: KinesisProcess) -> None:
        self._server = server
        self.environment: Mapping[str, str] = server.environment
        self.settings = KinesisSettings(STREAM, server.endpoint_url, REGION, _SILENCE_TIMEOUT)

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[KinesisStream]:
        """Connect to the stream; see `DemoService.connect`."""
        # A call that is repeated after an error could store its records twice.
        config = pinned_config(attempts=1)
        session: Any = aioboto3.Session()
        async with session.client(
            "kinesis", **self._server.client_options, config=config
        ) as client:
            go_past_proxies(client)
            yield KinesisStream(self._server, client, STREAM)

    def faults(self) -> Mapping[str, int]:
        """Return the number of faults so far, by kind."""
        return self._server.statistics().faults


@final
class KinesisStream:
    """A `DemoStream` that is one of Kinesis.

    Args:
        server: Carries out the actions.
        client: An open aioboto3 client that calls the service once.
        name: The stream's name.
    """

    def __init__(self, server: KinesisProcess, client: Any, name: str) -> None:
        self._server = server
        self._client = client
        self._name = name

    async def put(self, records: Sequence[Record]) -> Sequence[SentRecord]:
        """Send up to 500 records, and rejected ones again, until the service has accepted all.

        Returns:
            The records with their sequence numbers, in the order in which they were accepted.
        """
        accepted = []
        while True:
            answer = await self._client.put_records(
                StreamName=self._name,
                Records=[{"Data": record.data, "PartitionKey": record.key} for record in records],
            )
            rejected = []
            for record, result in zip(records, answer["Records"], strict=True):
                if "ErrorCode" in result:
                    rejected.append(record)
                else:
                    accepted.append(_placed(record, result))
            if not rejected:
                return accepted
            records = rejected
            await asyncio.sleep(_REJECTED_PAUSE)

    async def perform(self, action: Action) -> ActionResult:
        """Carry out one action on the shards that are open now."""
        shards = await self._open_shards()
        names = [shard["ShardId"] for shard in shards]
        match action.kind:
            case Kind.SPLIT:
                return await self._split(action.choose(names))
            case Kind.SPLIT_AGAIN:
                return await self._split(
                    action.choose([s["ShardId"] for s in shards if _has_parent(s)])
                )
            case Kind.MERGE:
                return await self._merge(*action.choose(list(pairwise(names))))
            case Kind.MERGE_AGAIN:
                neighbours = [
                    (left["ShardId"], right["ShardId"])
                    for left, right in pairwise(shards)
                    if _has_parent(left) or _has_parent(right)
                ]
                return await self._merge(*action.choose(neighbours))
            case Kind.CUT | Kind.STALL | Kind.ERROR:
                return await self._inject(action.kind, action.choose(names))
            case _:
                raise ValueError(f"Kinesis cannot {action.kind.value}")

    async def parents(self) -> Mapping[str, Sequence[str]]:
        """Return the parents of every shard that the service lists."""
        names = ("ParentShardId", "AdjacentParentShardId")
        return {
            shard["ShardId"]: [shard[name] for name in names if name in shard]
            for shard in await self._list_shards()
        }

    async def _split(self, shard: str) -> ActionResult:
        children = await asyncio.to_thread(self._server.split_shard, self._name, shard)
        return ActionResult(f"split {shard} into {' and '.join(children)}", (shard,), children)

    async def _merge(self, left: str, right: str) -> ActionResult:
        child = await asyncio.to_thread(self._server.merge_shards, self._name, left, right)
        return ActionResult(f"merge {left} and {right} into {child}", (left, right), (child,))

    async def _inject(self, kind: Kind, shard: str) -> ActionResult:
        fault, description = _FAULTS[kind]
        await asyncio.to_thread(self._server.inject, fault(shard=shard, event=None))
        return ActionResult(description.format(shard))

    async def _open_shards(self) -> list[Any]:
        """Return the open shards by their hash keys, so that neighbours are adjacent."""
        shards = [
            shard
            for shard in await self._list_shards()
            if "EndingSequenceNumber" not in shard["SequenceNumberRange"]
        ]
        shards.sort(key=lambda shard: int(shard["HashKeyRange"]["StartingHashKey"]))
        return shards

    async def _list_shards(self) -> list[Any]:
        shards: list[Any] = (await self._client.list_shards(StreamName=self._name))["Shards"]
        return shards


def _has_parent(shard: Any) -> bool:
    """Return whether a reshard has created the shard."""
    return "ParentShardId" in shard


def _placed(record: Record, result: Any) -> SentRecord:
    return SentRecord(
        number=record.number,
        key=record.key,
        split=result["ShardId"],
        sequence=int(result["SequenceNumber"]),
        digest=digest(record.data),
    )
