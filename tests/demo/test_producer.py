from __future__ import annotations

from contextlib import aclosing
from typing import Any

from fanout.demo.producer import MAX_CALL_RECORDS, produce, put
from fanout.demo.records import Record, digest, generate
from fanout.demo.verification import SentRecord


class RejectingKinesis:
    """Take records as PutRecords does, but reject some keys the first time they come."""

    def __init__(self, *rejected: str) -> None:
        self.calls: list[list[str]] = []
        self._rejected = set(rejected)

    async def put_records(self, *, StreamName: str, Records: list[Any]) -> Any:  # noqa: N803 - boto's names
        assert StreamName == "orders"
        self.calls.append([record["PartitionKey"] for record in Records])
        return {"Records": [self._answer(record["PartitionKey"]) for record in Records]}

    def _answer(self, key: str) -> dict[str, str]:
        if key in self._rejected:
            self._rejected.remove(key)
            return {"ErrorCode": "ProvisionedThroughputExceededException", "ErrorMessage": "slow"}
        return {"ShardId": "shardId-000000000000", "SequenceNumber": str(len(self.calls))}


def record(number: int) -> Record:
    return Record(number, str(number), b"data")


async def test_rejected_records_are_sent_again_alone() -> None:
    client = RejectingKinesis("1")
    await put(client, "orders", [record(0), record(1), record(2)])
    assert client.calls == [["0", "1", "2"], ["1"]]


async def test_each_record_is_logged_once_with_the_place_where_it_was_accepted() -> None:
    placed = await put(RejectingKinesis("0"), "orders", [record(0), record(1)])
    shard = "shardId-000000000000"
    assert placed == [
        SentRecord(1, "1", shard, 1, digest(b"data")),
        SentRecord(0, "0", shard, 2, digest(b"data")),
    ]


async def test_a_call_carries_no_more_than_the_service_takes() -> None:
    client = RejectingKinesis()
    async with aclosing(produce(client, "orders", generate(1_200, 1), rate=1e9)) as calls:
        assert sum([len(accepted) async for accepted in calls]) == 1_200
    assert max(len(call) for call in client.calls) == MAX_CALL_RECORDS
