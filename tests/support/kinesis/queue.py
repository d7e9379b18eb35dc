"""An embedded queue for tests, what is put into it, and a source that reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import boto3

from fanout.kinesis import KinesisQueueSource
from fanout.testing.kinesis.api_model import extend_model
from fanout.testing.kinesis.rules import KinesisRules
from fanout.testing.kinesis.server import KinesisServer
from tests.support.kinesis.reading import session

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fanout.core.events import Batch

STREAM, QUEUE = "events", "work"


class EmbeddedWork:
    """A server with one on-demand stream and one queue that begins at its horizon."""

    def __init__(self, **attributes: Any) -> None:
        self.server = KinesisServer(KinesisRules.fast())
        self._attributes = attributes

    def __enter__(self) -> Self:
        self.server.__enter__()
        self._client = boto3.client("kinesis", **self.server.client_options)
        extend_model(self._client.meta.service_model)
        self.arn = self.create(STREAM, QUEUE)
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()
        self.server.close()

    def create(self, stream: str, queue: str = "") -> str:
        """Create a stream and a queue, of the same name if there is no other; return its ARN."""
        self.call("CreateStream", StreamName=stream, StreamModeDetails={"StreamMode": "ON_DEMAND"})
        summary = self.call("DescribeStreamSummary", StreamName=stream)
        arn = summary["StreamDescriptionSummary"]["StreamARN"]
        created = self.call(
            "CreateQueue",
            QueueName=queue or stream,
            StreamConfigurationList=[
                {"StreamARN": arn, "StartingPosition": {"Type": "TRIM_HORIZON"}}
            ],
            QueueAttributes=self._attributes,
        )
        return str(created["QueueDescription"]["QueueARN"])

    def call(self, operation: str, **arguments: Any) -> Any:
        return self._client._make_api_call(operation, arguments)

    def put(self, numbers: Iterable[int], stream: str = STREAM) -> None:
        self.server.put_records(stream, [(f"key-{n}", b"%d" % n) for n in numbers])

    def receive(self, *, dead: bool = False) -> list[Any]:
        operation = "ReceiveDeadLetterQueueRecords" if dead else "ReceiveQueueRecords"
        answer = self.call(
            operation, QueueARN=self.arn, WaitTimeSeconds=1, VisibilityTimeoutSeconds=0
        )
        return list(answer["QueueRecords"])

    def acknowledged(self) -> bool:
        """Whether nobody holds a record, and none is there to be received."""
        (queue,) = self.server._stream(STREAM).queues
        with queue.stream.lock:
            taken = queue.receive(10, 0, dead=False)
            return not taken and not queue._by_receipt

    def source(self, queue: str = QUEUE, **options: Any) -> KinesisQueueSource:
        return KinesisQueueSource(
            stream=STREAM,
            queue=queue,
            endpoint_url=self.server.endpoint_url,
            session=session(),
            **options,
        )


def numbers_of(batch: Batch) -> list[int]:
    return [int(data) for data in batch.records.column("data").to_pylist()]
