"""Queues of the embedded server, as boto3 uses them: each record is lent until acknowledged."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from botocore.config import Config

from tests.testing.conftest import ONCE
from tests.testing.test_stream_rules import call, on_demand, refusal

if TYPE_CHECKING:
    from collections.abc import Callable

START = {"Type": "TRIM_HORIZON"}


class Queue:
    def __init__(self, kinesis: Any, stream: str = "events", name: str = "work") -> None:
        self.kinesis = kinesis
        self.stream = on_demand(kinesis, stream)
        self.name = stream
        self.arn = self.create(name)["QueueARN"]

    def create(self, name: str, start: Any = START, **options: Any) -> dict[str, Any]:
        answer = call(
            self.kinesis,
            "CreateQueue",
            QueueName=name,
            StreamConfigurationList=[{"StreamARN": self.stream, "StartingPosition": start}],
            **options,
        )
        described: dict[str, Any] = answer["QueueDescription"]
        return described

    def put(self, *data: bytes) -> None:
        self.kinesis.server.put_records(self.name, [(f"key-{each!r}", each) for each in data])

    def receive(self, limit: int = 10, *, dead: bool = False, **options: Any) -> list[Any]:
        operation = "ReceiveDeadLetterQueueRecords" if dead else "ReceiveQueueRecords"
        options = {"WaitTimeSeconds": 1, "QueueARN": self.arn} | options
        answer = call(self.kinesis, operation, Limit=limit, **options)
        return list(answer["QueueRecords"])

    def settle(self, operation: str, *records: Any, **options: Any) -> tuple[int, list[str]]:
        entries = [{"ReceiptHandle": each["ReceiptHandle"], **options} for each in records]
        answer = call(self.kinesis, operation, QueueARN=self.arn, Entries=entries)
        return len(answer["Successful"]), [each["ErrorCode"] for each in answer["Failed"]]

    def update(self, **attributes: Any) -> None:
        call(self.kinesis, "UpdateQueue", QueueARN=self.arn, QueueAttributes=attributes)


@pytest.fixture
def queue(start: Callable[..., Any]) -> Queue:
    return Queue(start())


def data(records: list[Any]) -> set[bytes]:
    return {each["Data"] for each in records}


def test_each_record_is_lent_once_until_it_is_acknowledged(queue: Queue) -> None:
    queue.put(*(b"%d" % number for number in range(25)))
    taken = [queue.receive() for _ in range(3)]
    assert sorted(map(len, taken)) == [5, 10, 10]
    records = [each for some in taken for each in some]
    assert data(records) == {b"%d" % number for number in range(25)}
    assert {each["ReceiveCount"] for each in records} == {1}
    assert len({each["RecordId"] for each in records}) == 25
    assert queue.settle("AcknowledgeQueueRecords", *records[:10]) == (10, [])
    # A handle is good for one acknowledgement.
    failed = ["InvalidArgumentException"]
    assert queue.settle("AcknowledgeQueueRecords", records[0], records[10]) == (1, failed)
    assert queue.receive() == []


def test_a_record_comes_again_with_its_id_and_another_handle(queue: Queue) -> None:
    queue.put(b"a")
    (first,) = queue.receive(VisibilityTimeoutSeconds=0)
    (again,) = queue.receive(VisibilityTimeoutSeconds=30)
    assert again["RecordId"] == first["RecordId"]
    assert again["ReceiptHandle"] != first["ReceiptHandle"]
    assert (first["ReceiveCount"], again["ReceiveCount"]) == (1, 2)
    assert again["FirstReceiveTimestamp"] == first["FirstReceiveTimestamp"]
    assert queue.settle("AcknowledgeQueueRecords", first)[0] == 0
    assert queue.settle("UpdateQueueRecordsVisibility", again, VisibilityTimeoutSeconds=0) == (
        1,
        [],
    )
    assert len(queue.receive()) == 1


def test_a_longer_visibility_timeout_keeps_a_record(queue: Queue) -> None:
    queue.put(b"a")
    (record,) = queue.receive(VisibilityTimeoutSeconds=1)
    queue.settle("UpdateQueueRecordsVisibility", record, VisibilityTimeoutSeconds=30)
    time.sleep(1.1)
    assert queue.receive() == []
    assert queue.settle("AcknowledgeQueueRecords", record) == (1, [])


def test_a_record_that_came_too_often_is_a_dead_letter_until_restored(queue: Queue) -> None:
    queue.update(DeadLetterConfiguration={"TargetType": "BUILT_IN", "MaxReceiveCount": 2})
    queue.put(b"a", b"b")
    for _ in range(2):
        assert len(queue.receive(VisibilityTimeoutSeconds=0)) == 2
    assert queue.receive() == []
    dead = queue.receive(dead=True)
    assert data(dead) == {b"a", b"b"}
    assert queue.settle("AcknowledgeQueueRecords", dead[0])[0] == 0
    assert queue.settle("AcknowledgeDeadLetterQueueRecords", dead[0]) == (1, [])
    visible = {"VisibilityTimeoutSeconds": 0}
    assert queue.settle("UpdateDeadLetterQueueRecordsVisibility", dead[1], **visible)[0] == 1
    (dead_again,) = queue.receive(dead=True)
    assert queue.settle("RestoreDeadLetterQueueRecords", dead_again) == (1, [])
    assert queue.receive(dead=True) == []
    (restored,) = queue.receive()
    assert (restored["Data"], restored["ReceiveCount"]) == (dead[1]["Data"], 1)


def test_without_dead_letters_a_record_comes_for_ever(queue: Queue) -> None:
    queue.update(DeadLetterConfiguration={"TargetType": "NONE"})
    queue.put(b"a")
    for count in range(1, 9):
        (record,) = queue.receive(VisibilityTimeoutSeconds=0)
        assert record["ReceiveCount"] == count


def test_a_waiting_receiver_gets_what_is_put(queue: Queue) -> None:
    queue.kinesis.client = queue.kinesis.connect(ONCE.merge(Config(read_timeout=60)))
    got: list[Any] = []
    waiting = threading.Thread(target=lambda: got.extend(queue.receive(WaitTimeSeconds=20)))
    waiting.start()
    time.sleep(0.2)
    began = time.monotonic()
    queue.put(b"a")
    waiting.join()
    assert data(got) == {b"a"}
    assert time.monotonic() - began < 10


def test_a_queue_begins_where_it_is_told(queue: Queue) -> None:
    queue.put(b"old")
    arns = {
        kind: queue.create(kind, {"Type": kind})["QueueARN"] for kind in ("TRIM_HORIZON", "LATEST")
    }
    queue.put(b"new")
    assert data(queue.receive(QueueARN=arns["LATEST"])) == {b"new"}
    assert data(queue.receive(QueueARN=arns["TRIM_HORIZON"])) == {b"old", b"new"}


def test_queues_are_described_listed_tagged_and_deleted(queue: Queue) -> None:
    kinesis = queue.kinesis
    call(kinesis, "TagResource", ResourceARN=queue.arn, Tags={"team": "a"})
    assert call(kinesis, "ListTagsForResource", ResourceARN=queue.arn)["Tags"] == [
        {"Key": "team", "Value": "a"}
    ]
    described = call(kinesis, "DescribeQueue", QueueARN=queue.arn)["QueueDescription"]
    assert described["QueueStatus"] == "ACTIVE"
    assert described["QueueAttributes"] == {
        "VisibilityTimeoutSeconds": 30,
        "DeadLetterConfiguration": {"TargetType": "BUILT_IN", "MaxReceiveCount": 6},
    }
    second = queue.create("second", Tags={"team": "b"})["QueueARN"]
    page = call(kinesis, "ListQueues", MaxResults=1)
    (first,) = page["QueueSummaries"]
    (last,) = call(kinesis, "ListQueues", NextToken=page["NextToken"])["QueueSummaries"]
    assert [first["QueueARN"], last["QueueARN"]] == [queue.arn, second]
    assert last["Streams"][0]["StreamARN"] == queue.stream
    call(kinesis, "DeleteQueue", QueueARN=second)
    code, _ = refusal(kinesis, "DescribeQueue", QueueARN=second)
    assert code == "ResourceNotFoundException"


def test_what_the_service_refuses(queue: Queue) -> None:
    kinesis = queue.kinesis
    one = [{"StreamARN": queue.stream}]
    provisioned = [{"StreamARN": kinesis.stream_arn}]

    def code(operation: str, **options: Any) -> str:
        return refusal(kinesis, operation, **options)[0]

    assert code("CreateQueue", QueueName="work", StreamConfigurationList=one) == (
        "ResourceInUseException"
    )
    assert code("CreateQueue", QueueName="x", StreamConfigurationList=provisioned) == (
        "InvalidArgumentException"
    )
    assert code("CreateQueue", QueueName="x", StreamConfigurationList=one * 2) == (
        "InvalidArgumentException"
    )
    timed = [{"StreamARN": queue.stream, "StartingPosition": {"Type": "LATEST", "Timestamp": 1}}]
    assert code("CreateQueue", QueueName="x", StreamConfigurationList=timed) == (
        "ValidationException"
    )
    built_in = {"DeadLetterConfiguration": {"TargetType": "BUILT_IN"}}
    assert code("UpdateQueue", QueueARN=queue.arn, QueueAttributes=built_in) == (
        "InvalidArgumentException"
    )
    assert code("DeleteStream", StreamName="events") == "ResourceInUseException"
    mode = {"StreamMode": "PROVISIONED"}
    assert code("UpdateStreamMode", StreamARN=queue.stream, StreamModeDetails=mode) == (
        "ResourceInUseException"
    )


@pytest.mark.parametrize(
    ("operation", "options"),
    [
        ("ReceiveQueueRecords", {"Limit": 11}),
        ("ReceiveQueueRecords", {"WaitTimeSeconds": 21}),
        ("ReceiveQueueRecords", {"VisibilityTimeoutSeconds": 43_201}),
        ("AcknowledgeQueueRecords", {"Entries": []}),
        ("AcknowledgeQueueRecords", {"Entries": [{"ReceiptHandle": "x"}] * 11}),
        ("UpdateQueueRecordsVisibility", {"Entries": [{"ReceiptHandle": "x"}]}),
    ],
)
def test_what_breaks_a_bound_is_refused(queue: Queue, operation: str, options: Any) -> None:
    client = queue.kinesis.connect(ONCE.merge(Config(parameter_validation=False)))
    assert refusal(queue.kinesis, operation, client, QueueARN=queue.arn, **options)[0] == (
        "ValidationException"
    )


def test_a_queue_counts_as_a_consumer(queue: Queue) -> None:
    for number in range(19):
        queue.create(f"queue-{number}")
    code, _ = refusal(
        queue.kinesis, "RegisterStreamConsumer", StreamARN=queue.stream, ConsumerName="etl"
    )
    assert code == "LimitExceededException"


def test_a_queue_follows_a_reshard_and_drops_what_expires(queue: Queue) -> None:
    queue.put(b"before")
    stream = "events"
    (first, *_) = call(queue.kinesis, "ListShards", StreamName=stream)["Shards"]
    queue.kinesis.server.split_shard(stream, first["ShardId"])
    queue.put(*(b"%d" % number for number in range(8)))
    records = queue.receive()
    assert len(data(records)) == 9
    for each in records:
        queue.settle("UpdateQueueRecordsVisibility", each, VisibilityTimeoutSeconds=0)
    queue.kinesis.server.expire(stream)
    assert queue.receive() == []
