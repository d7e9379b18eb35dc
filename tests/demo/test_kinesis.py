from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import aioboto3
import pytest

from fanout.demo.kinesis import KinesisStream
from fanout.demo.plan import Action, Kind
from fanout.demo.records import Record, SentRecord, digest
from fanout.demo.service import ActionResult
from fanout.testing.kinesis.process import KinesisProcess

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


async def created(server: KinesisProcess, client: Any, name: str, shards: int) -> KinesisStream:
    await asyncio.to_thread(server.create_stream, name, shards)
    return KinesisStream(server, client, name)


async def test_a_shard_is_split(server: KinesisProcess, client: Any) -> None:
    stream = await created(server, client, "split", 2)
    done = await stream.perform(Action(1, Kind.SPLIT, 0.9))
    told = f"split {SECOND} into {THIRD} and {FOURTH}"
    assert done == ActionResult(told, ended=(SECOND,), born=(THIRD, FOURTH))


async def test_neighbours_are_merged_even_after_a_split(
    server: KinesisProcess, client: Any
) -> None:
    stream = await created(server, client, "merge", 2)
    await stream.perform(Action(1, Kind.SPLIT, 0.0))
    done = await stream.perform(Action(1, Kind.MERGE, 0.9))
    child = "shardId-000000000004"
    told = f"merge {FOURTH} and {SECOND} into {child}"
    assert done == ActionResult(told, ended=(FOURTH, SECOND), born=(child,))


async def test_what_is_done_while_nobody_reads_splits_and_merges_children(
    server: KinesisProcess, client: Any
) -> None:
    stream = await created(server, client, "again", 3)
    first, second = (await stream.perform(Action(1, Kind.SPLIT, 0.9))).born
    split = await stream.perform(Action(1, Kind.SPLIT_AGAIN, 0.0))
    merge = await stream.perform(Action(1, Kind.MERGE_AGAIN, 0.9))
    left, right, merged = (f"shardId-{index:012}" for index in (5, 6, 7))
    assert (split.ended, split.born) == ((first,), (left, right))
    assert (merge.ended, merge.born) == ((right, second), (merged,))
    assert (await stream.parents())[merged] == [right, second]


@pytest.mark.long
@pytest.mark.parametrize("merge", [0.0, 0.5, 0.99])
async def test_shards_of_the_beginning_are_merged_again_only_with_a_new_neighbour(
    server: KinesisProcess, client: Any, merge: float
) -> None:
    stream = await created(server, client, f"neighbours-{merge}", 8)
    children = (await stream.perform(Action(1, Kind.SPLIT, 0.0))).born
    split = await stream.perform(Action(1, Kind.SPLIT_AGAIN, 0.9))
    merged = await stream.perform(Action(1, Kind.MERGE_AGAIN, merge))
    assert split.ended == (children[1],)
    assert set(merged.ended) & {*children, *split.born}


async def test_one_child_is_enough_to_be_split_and_merged_again(
    server: KinesisProcess, client: Any
) -> None:
    stream = await created(server, client, "one", 2)
    (child,) = (await stream.perform(Action(1, Kind.MERGE, 0.0))).born
    split = await stream.perform(Action(1, Kind.SPLIT_AGAIN, 0.5))
    merge = await stream.perform(Action(1, Kind.MERGE_AGAIN, 0.5))
    assert split.ended == (child,)
    assert merge.ended == split.born


async def test_parents_are_those_that_the_service_lists(
    server: KinesisProcess, client: Any
) -> None:
    stream = await created(server, client, "parents", 1)
    await stream.perform(Action(1, Kind.SPLIT, 0.0))
    await stream.perform(Action(1, Kind.MERGE, 0.0))
    assert await stream.parents() == {
        FIRST: [],
        SECOND: [FIRST],
        THIRD: [FIRST],
        FOURTH: [SECOND, THIRD],
    }


@pytest.mark.long
@pytest.mark.parametrize("kind", [Kind.CUT, Kind.STALL, Kind.ERROR])
async def test_a_fault_names_an_open_shard(server: KinesisProcess, client: Any, kind: Kind) -> None:
    stream = await created(server, client, kind.name, 1)
    await stream.perform(Action(1, Kind.SPLIT, 0.0))
    assert SECOND in (await stream.perform(Action(1, kind, 0.0))).description


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
        return {"ShardId": FIRST, "SequenceNumber": str(len(self.calls))}


def record(number: int) -> Record:
    return Record(number, str(number), b"data")


async def test_rejected_records_are_sent_again_alone(server: KinesisProcess) -> None:
    client = RejectingKinesis("1")
    await KinesisStream(server, client, "orders").put([record(0), record(1), record(2)])
    assert client.calls == [["0", "1", "2"], ["1"]]


async def test_each_record_is_told_once_with_the_place_where_it_was_accepted(
    server: KinesisProcess,
) -> None:
    stream = KinesisStream(server, RejectingKinesis("0"), "orders")
    assert await stream.put([record(0), record(1)]) == [
        SentRecord(1, "1", FIRST, 1, digest(b"data")),
        SentRecord(0, "0", FIRST, 2, digest(b"data")),
    ]
