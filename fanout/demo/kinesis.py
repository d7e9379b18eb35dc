"""The demo on the embedded Kinesis: shards are split and merged, connections cut and silenced."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from typing import TYPE_CHECKING, final

from fanout.demo.plan import Kind
from fanout.demo.stream import STREAM, ActionResult, SentRecord
from fanout.testing.faults import CutConnection, RaiseInStream, Stall
from fanout.testing.kinesis.process import KinesisProcess
from fanout.testing.kinesis.rules import KinesisRules

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from fanout.demo.plan import Action
    from fanout.testing.trials.records import Record

# The service's own figures, except for more frequent heartbeats.
_RULES = KinesisRules(heartbeat=1.0)

_FAULTS = {Kind.CUT: CutConnection, Kind.STALL: Stall, Kind.ERROR: RaiseInStream}


@contextmanager
def start_kinesis(shards: int) -> Iterator[KinesisStream]:
    """Run an embedded Kinesis while the block lasts, with a stream that begins with some shards."""
    with KinesisProcess(_RULES) as server:
        yield KinesisStream(server, STREAM, shards)


@final
class KinesisStream:
    """A new stream of the embedded Kinesis."""

    def __init__(self, server: KinesisProcess, name: str, shards: int) -> None:
        server.create_stream(name, shards)
        self._server = server
        self._name = name
        # By their hash keys, so that neighbours are adjacent.
        self._open = [f"shardId-{index:012}" for index in range(shards)]
        self._born: set[str] = set()
        self.environment: Mapping[str, str] = server.environment
        self.address = server.endpoint_url

    def connect(self) -> AbstractAsyncContextManager[None]:
        """Let records be put while the block runs; nothing is to be done for that."""
        return nullcontext()

    async def put(self, records: Sequence[Record]) -> Sequence[SentRecord]:
        """Send records, and return their places in the same order."""
        placed = await asyncio.to_thread(
            self._server.put_records, self._name, [(each.key, each.value) for each in records]
        )
        return [SentRecord(shard, number) for shard, number in placed]

    async def perform(self, action: Action) -> ActionResult:
        """Carry out one action on the shards that are open now."""
        neighbours = list(pairwise(self._open))
        match action.kind:
            case Kind.SPLIT:
                return await self._split(action.choose(self._open))
            case Kind.SPLIT_AGAIN:
                return await self._split(
                    action.choose([shard for shard in self._open if shard in self._born])
                )
            case Kind.MERGE:
                return await self._merge(action.choose(neighbours))
            case Kind.MERGE_AGAIN:
                return await self._merge(
                    action.choose([both for both in neighbours if self._born.intersection(both)])
                )
            case Kind.CUT | Kind.STALL | Kind.ERROR:
                return await self._inject(action.kind, action.choose(self._open))
            case _:
                raise ValueError(f"Kinesis cannot {action.kind.value}")

    def faults(self) -> Mapping[str, int]:
        """Return the number of faults so far, by kind."""
        return self._server.statistics().faults

    async def _split(self, shard: str) -> ActionResult:
        children = await asyncio.to_thread(self._server.split_shard, self._name, shard)
        self._replace((shard,), children)
        return ActionResult(f"split {shard} into {' and '.join(children)}", (shard,), children)

    async def _merge(self, both: tuple[str, str]) -> ActionResult:
        child = await asyncio.to_thread(self._server.merge_shards, self._name, *both)
        self._replace(both, (child,))
        return ActionResult(f"merge {' and '.join(both)} into {child}", both, (child,))

    def _replace(self, ended: tuple[str, ...], born: tuple[str, ...]) -> None:
        first = self._open.index(ended[0])
        self._open[first : first + len(ended)] = born
        self._born.update(born)

    async def _inject(self, kind: Kind, shard: str) -> ActionResult:
        await asyncio.to_thread(self._server.inject, _FAULTS[kind](shard=shard, event=None))
        return ActionResult(kind.value.format(shard))
