"""The demo on the embedded Kinesis: shards are split and merged, connections cut and silenced.

Those who read a queue meet other faults: their calls are throttled, refused and cut.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import closing, contextmanager, nullcontext
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, final

import boto3

from fanout.demo.options import QUEUE, STREAM
from fanout.demo.plan import ActionResult, Kind
from fanout.demo.verification import SentRecord
from fanout.testing.faults import CutConnection, GoAwayAtCall, RaiseInStream, RefuseCall, Stall
from fanout.testing.kinesis.api_model import extend_model
from fanout.testing.kinesis.process import KinesisProcess
from fanout.testing.kinesis.rules import KinesisRules

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from fanout.demo.plan import Action
    from fanout.testing.faults import Fault
    from fanout.testing.trials.records import Record

_SHARD_FAULTS = {Kind.CUT: CutConnection, Kind.STALL: Stall, Kind.ERROR: RaiseInStream}

_RECEIVE, _ACKNOWLEDGE = "ReceiveQueueRecords", "AcknowledgeQueueRecords"
_CALL_FAULTS: Final[dict[Kind, Fault]] = {
    Kind.THROTTLE: RefuseCall(
        action=_RECEIVE, code="ProvisionedThroughputExceededException", times=8
    ),
    Kind.REFUSE: RefuseCall(
        action=_ACKNOWLEDGE, status=500, code="InternalFailureException", times=4
    ),
    Kind.CUT_RECEIVE: GoAwayAtCall(action=_RECEIVE),
    Kind.CUT_ACKNOWLEDGE: GoAwayAtCall(action=_ACKNOWLEDGE),
}


@contextmanager
def start_kinesis(shards: int, *, queue: bool) -> Iterator[KinesisStream | KinesisQueueStream]:
    """Run an embedded Kinesis while the block lasts, with a stream that begins with some shards."""
    # The service's own figures, except for more frequent heartbeats.
    with KinesisProcess(KinesisRules(heartbeat=1.0)) as server:
        yield KinesisQueueStream(server, shards) if queue else KinesisStream(server, STREAM, shards)


class _EmbeddedStream:
    """A new stream of the embedded Kinesis, and what is put into it."""

    def __init__(self, server: KinesisProcess, name: str, shards: int) -> None:
        server.create_stream(name, shards)
        self._server = server
        self._name = name
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

    def faults(self) -> Mapping[str, int]:
        """Return the number of faults so far, by kind."""
        return self._server.statistics().faults


@final
class KinesisStream(_EmbeddedStream):
    """A new stream of the embedded Kinesis."""

    def __init__(self, server: KinesisProcess, name: str, shards: int) -> None:
        super().__init__(server, name, shards)
        # By their hash keys, so that neighbours are adjacent.
        self._open = [f"shardId-{index:012}" for index in range(shards)]
        self._born: set[str] = set()

    async def perform(self, action: Action) -> ActionResult:
        """Carry out one action on the shards that are open now."""
        again = action.kind in {Kind.SPLIT_AGAIN, Kind.MERGE_AGAIN}
        chosen = self._born if again else set(self._open)  # one of these is to be changed
        match action.kind:
            case Kind.SPLIT | Kind.SPLIT_AGAIN:
                shard = action.choose([shard for shard in self._open if shard in chosen])
                children = await asyncio.to_thread(self._server.split_shard, self._name, shard)
                return self._replaced(f"split {shard} into", (shard,), children)
            case Kind.MERGE | Kind.MERGE_AGAIN:
                left, right = action.choose(
                    [both for both in pairwise(self._open) if chosen.intersection(both)]
                )
                child = await asyncio.to_thread(self._server.merge_shards, self._name, left, right)
                return self._replaced(f"merge {left} and {right} into", (left, right), (child,))
            case _:
                shard = action.choose(self._open)
                fault = _SHARD_FAULTS[action.kind](shard=shard, event=None)
                await asyncio.to_thread(self._server.inject, fault)
                return ActionResult(action.kind.value.format(shard))

    def _replaced(self, done: str, ended: tuple[str, ...], born: tuple[str, ...]) -> ActionResult:
        first = self._open.index(ended[0])
        self._open[first : first + len(ended)] = born
        self._born.update(born)
        return ActionResult(f"{done} {' and '.join(born)}", ended, born)


@final
class KinesisQueueStream(_EmbeddedStream):
    """A new on-demand stream of the embedded Kinesis, and a queue that begins at its beginning."""

    def __init__(self, server: KinesisProcess, shards: int) -> None:
        super().__init__(server, STREAM, shards)
        with closing(boto3.client("kinesis", **server.client_options)) as client:
            _create_queue(client)

    async def put(self, records: Sequence[Record]) -> Sequence[SentRecord]:
        """Send records, and return their places in the same order; a queue tells no shards."""
        return [SentRecord("", sent.sequence) for sent in await super().put(records)]

    async def perform(self, action: Action) -> ActionResult:
        """Let the next calls of some operation fail."""
        await asyncio.to_thread(self._server.inject, _CALL_FAULTS[action.kind])
        return ActionResult(action.kind.value)


def _create_queue(client: Any) -> None:
    # The client has no method for an operation that its botocore does not know.
    call = client._make_api_call  # noqa: SLF001
    extend_model(client.meta.service_model)
    summary = call("DescribeStreamSummary", {"StreamName": STREAM})
    arn = summary["StreamDescriptionSummary"]["StreamARN"]
    mode = {"StreamMode": "ON_DEMAND"}
    call("UpdateStreamMode", {"StreamARN": arn, "StreamModeDetails": mode})
    start = {"StreamARN": arn, "StartingPosition": {"Type": "TRIM_HORIZON"}}
    created = call("CreateQueue", {"QueueName": QUEUE, "StreamConfigurationList": [start]})
    arn = created["QueueDescription"]["QueueARN"]
    while call("DescribeQueue", {"QueueARN": arn})["QueueDescription"]["QueueStatus"] != "ACTIVE":
        time.sleep(0.05)  # a queue does not tell when it is active
