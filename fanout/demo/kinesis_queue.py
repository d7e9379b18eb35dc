"""The demo on a queue of the embedded Kinesis: calls are throttled, refused and cut."""

from __future__ import annotations

import asyncio
from contextlib import closing, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final, final

import boto3

from fanout.demo.options import QUEUE, STREAM
from fanout.demo.plan import ActionResult, Kind
from fanout.demo.verification import SentRecord
from fanout.testing.faults import GoAwayAtCall, RefuseCall
from fanout.testing.kinesis.api_model import extend_model
from fanout.testing.kinesis.process import KinesisProcess

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from fanout.demo.plan import Action
    from fanout.testing.faults import Fault
    from fanout.testing.trials.records import Record

_RECEIVE, _ACKNOWLEDGE = "ReceiveQueueRecords", "AcknowledgeQueueRecords"
_FAULTS: Final[dict[Kind, Fault]] = {
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
def start_queue(shards: int) -> Iterator[KinesisQueueStream]:
    """Run an embedded Kinesis while the block lasts, with a stream and a queue on it."""
    with KinesisProcess() as server:
        yield KinesisQueueStream(server, shards)


@final
class KinesisQueueStream:
    """A new on-demand stream of the embedded Kinesis, and a queue that begins at its beginning."""

    def __init__(self, server: KinesisProcess, shards: int) -> None:
        server.create_stream(STREAM, shards)
        self._server = server
        self.environment: Mapping[str, str] = server.environment
        self.address = server.endpoint_url
        with closing(boto3.client("kinesis", **server.client_options)) as client:
            _create_queue(client)

    def connect(self) -> AbstractAsyncContextManager[None]:
        """Let records be put while the block runs; nothing is to be done for that."""
        return nullcontext()

    async def put(self, records: Sequence[Record]) -> Sequence[SentRecord]:
        """Send records, and return their places in the same order; a queue tells no shards."""
        placed = await asyncio.to_thread(
            self._server.put_records, STREAM, [(each.key, each.value) for each in records]
        )
        return [SentRecord("", number) for _, number in placed]

    async def perform(self, action: Action) -> ActionResult:
        """Let the next calls of some operation fail."""
        await asyncio.to_thread(self._server.inject, _FAULTS[action.kind])
        return ActionResult(action.kind.value)

    def faults(self) -> Mapping[str, int]:
        """Return the number of faults so far, by kind."""
        return self._server.statistics().faults


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
    queue = {"QueueARN": created["QueueDescription"]["QueueARN"]}
    while call("DescribeQueue", queue)["QueueDescription"]["QueueStatus"] != "ACTIVE":
        pass
