"""When the time of a record begins, and what a shard that is busy with others does to it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from fanout.core.backoff import Backoff, FullJitter
from fanout.errors import WriteTimeoutError
from fanout.kinesis.aws.api import MAX_HASH_KEY, HashRange, PutResult, ShardDescription
from fanout.kinesis.writer import KinesisWriter
from fanout.kinesis.writing.sender import PutSender
from fanout.kinesis.writing.shard_queues import OpenShards, ShardQueues
from fanout.kinesis.writing.stream_settings import StreamSettings
from fanout.kinesis.writing.write_options import KinesisWriteOptions
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

MIB = 1 << 20
OPTIONS = KinesisWriteOptions(stream="orders")
SHARD = "shardId-000000000000"
RECORD = bytes(50_000)
LATENCY = 0.02


class BusyShard:
    """A shard that takes 1 MiB a second from all who put into it, and refuses the rest."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.rate = MIB
        self._room = float(MIB)
        self._filled_at = 0.0

    async def put_records(self, records: Sequence[Mapping[str, Any]]) -> list[PutResult]:
        await asyncio.sleep(LATENCY)
        now = asyncio.get_running_loop().time()
        self._room = min(self.rate, self._room + (now - self._filled_at) * self.rate)
        self._filled_at = now
        return [self._put(record) for record in records]

    def _put(self, record: Mapping[str, Any]) -> PutResult:
        nbytes = len(record["Data"])
        if nbytes > self._room:
            return PutResult(None, "ProvisionedThroughputExceededException", "Rate exceeded")
        self._room -= nbytes
        self.keys.append(record["PartitionKey"])
        return PutResult(SHARD)


@asynccontextmanager
async def writing(shard: BusyShard, seed: int = 0) -> AsyncIterator[KinesisWriter]:
    client: Any = shard
    shards = OpenShards([ShardDescription(SHARD, (), 1, None, HashRange(0, MAX_HASH_KEY))])
    settings = StreamSettings(client, "orders")
    jitter = FullJitter(Backoff(base=0.1, cap=5.0), Random(seed))
    sender = PutSender(
        client,
        ShardQueues(shards, aggregate=False),
        settings,
        max_bytes=OPTIONS.max_bytes_in_flight,
        delivery_timeout=OPTIONS.delivery_timeout,
        jitter=jitter,
    )
    async with sender.running():
        writer = KinesisWriter(sender, OPTIONS)
        yield writer
        await writer.flush()


async def write(shard: BusyShard, task: int, count: int) -> None:
    async with writing(shard, task) as writer:
        await writer.write([{"partitionKey": f"{task}-{n}", "data": RECORD} for n in range(count)])


@pytest.mark.fault("Many writers fill one shard for longer than the timeout")
@pytest.mark.long
@in_virtual_time
async def test_many_tasks_that_fill_one_shard_for_longer_than_the_timeout_all_get_through() -> None:
    shard = BusyShard()
    # What eight tasks may have waiting takes 256 seconds, and delivery_timeout is 120.
    count = OPTIONS.max_bytes_in_flight // len(RECORD)
    async with asyncio.TaskGroup() as tasks:
        for task in range(8):
            tasks.create_task(write(shard, task, count))
    assert asyncio.get_running_loop().time() > 2 * OPTIONS.delivery_timeout
    assert sorted(shard.keys) == sorted(f"{task}-{n}" for task in range(8) for n in range(count))


@in_virtual_time
async def test_the_time_of_a_record_begins_with_its_first_attempt() -> None:
    shard = BusyShard()
    clock = asyncio.get_running_loop().time
    with pytest.raises(WriteTimeoutError, match="within delivery_timeout"):  # noqa: PT012 - leaving the block flushes
        async with writing(shard) as writer:
            await writer.write([{"partitionKey": f"{n}", "data": RECORD} for n in range(100)])
            await writer.flush()
            shard.rate, began = 0, clock()
            await writer.write([{"partitionKey": "late", "data": RECORD}])
    assert 120 <= clock() - began < 126, "and the last wait"
