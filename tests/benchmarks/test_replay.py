from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import closing
from typing import TYPE_CHECKING

import aioboto3
import pytest

from benchmarks.consume_kinesis import CREDENTIALS, kinesis_source, read_by_fanout, read_by_hand
from benchmarks.kinesis_replay import CONSUMER_ARN, Replay, replay_server, shard_ids
from fanout.core.opening import open_stream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator

    import pyarrow as pa

REPLAY = Replay(100_000, 3, 2)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with replay_server(REPLAY) as port:
        yield port


async def _numbers(batches: AsyncGenerator[pa.RecordBatch, None]) -> dict[str, list[int]]:
    numbers: dict[str, list[int]] = defaultdict(list)
    left = REPLAY.records
    async for batch in batches:
        for row in batch.select(["shardId", "sequenceNumber"]).to_pylist():
            numbers[row["shardId"]].append(int(row["sequenceNumber"]))
        left -= batch.num_rows
        if not left:
            break
    await batches.aclose()
    return dict(numbers)


def test_the_records_of_an_event_are_about_one_mib() -> None:
    assert Replay(1024, 1, 1).records_per_event == 1024
    assert Replay(100, 1, 1).records_per_event == 10_000
    assert Replay(2 << 20, 1, 1).records_per_event == 1


@pytest.mark.parametrize("read", [read_by_fanout, read_by_hand])
async def test_a_reader_gets_every_record_of_every_shard_in_order(
    port: int, read: Callable[[int, int], AsyncGenerator[pa.RecordBatch, None]]
) -> None:
    numbers = await _numbers(read(port, REPLAY.shards))
    assert sorted(numbers) == shard_ids(REPLAY.shards)
    for of_shard in numbers.values():
        assert len(of_shard) == REPLAY.records // REPLAY.shards
        assert of_shard == sorted(set(of_shard))


async def test_a_stream_that_is_resumed_gets_what_comes_after_its_positions(port: int) -> None:
    first: dict[str, int] = {}
    async with open_stream(kinesis_source(port)) as stream:
        while len(first) < REPLAY.shards:
            batch = await anext(stream)
            first[batch.split.id] = first.get(batch.split.id, 0) + batch.num_records
            await stream.acknowledge(batch)
        positions = stream.positions
    async with open_stream(kinesis_source(port), resume=positions) as stream:
        left = REPLAY.records - sum(first.values())
        while left > 0:
            left -= (await anext(stream)).num_records
        assert left == 0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):  # a shard is silent after its last event
                await anext(stream)
        assert stream.statistics().resubscriptions == 0


async def test_a_position_inside_an_event_is_followed_by_the_rest_of_it(port: int) -> None:
    everything = (await _numbers(read_by_hand(port, REPLAY.shards)))[shard_ids(1)[0]]
    inside = REPLAY.records_per_event + 3  # records into the second event
    position = {"Type": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": str(everything[inside - 1])}
    found: list[int] = []
    async with aioboto3.Session(**CREDENTIALS).client(
        "kinesis", endpoint_url=f"http://127.0.0.1:{port}"
    ) as client:
        response = await client.subscribe_to_shard(
            ConsumerARN=CONSUMER_ARN, ShardId=shard_ids(1)[0], StartingPosition=position
        )
        with closing(response["EventStream"]) as events:
            async for event in events:
                records = event.get("SubscribeToShardEvent", {}).get("Records", [])
                found += [int(record["SequenceNumber"]) for record in records]
                if len(found) >= len(everything) - inside:
                    break
    assert found == everything[inside:]
