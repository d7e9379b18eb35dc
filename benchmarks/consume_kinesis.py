"""A stream over real sockets to Arrow: `fanout.open` against a plain aioboto3 loop.

Both read the same encoded events from the same server in another process. The clock of a run
starts at its first event, so the cost of loading botocore and of connecting is left out of both.

Memory is measured in a run of its own: a consumer that takes nothing until every shard is stalled,
and then everything. The memory that it took since before it opened, divided by shards and by the
bytes of an event, is the events that a shard held; three of them are the floor: one in the slot,
one in the subscriber, one being assembled.
"""

from __future__ import annotations

import asyncio
import gc
import resource
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import aioboto3
from aiobotocore.config import AioConfig

import fanout
from benchmarks.decode import columns
from benchmarks.harness import Report, measure, median_row, own_peak_rss_bytes, run_apart
from benchmarks.kinesis_replay import CONSUMER_ARN, Replay, replay_server, shard_ids
from benchmarks.turns import take_turns
from fanout.kinesis import KinesisSource

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    import pyarrow as pa

    from benchmarks.harness import Measurement, Row

__all__ = (
    "CREDENTIALS",
    "kinesis_source",
    "read_by_fanout",
    "read_by_hand",
    "resident_bytes",
    "run",
)

FANOUT, METERED, PEER = "fanout", "fanout with metrics", "aioboto3"
SIZES: Final = (1024, 100)
SHARDS: Final = (1, 4, 64)
# Events of all shards together; the peer stops after a fraction of them, as its rate is steady.
EVENTS: Final = {1024: 768, 100: 192}
PEER_SHARE: Final = 0.25
FLOOR_EVENTS: Final = 3
CREDENTIALS: Final = {
    "aws_access_key_id": "benchmark",
    "aws_secret_access_key": "benchmark",
    "region_name": "us-east-1",
}


def kinesis_source(port: int) -> KinesisSource:
    """Return the source that a server on this port replays."""
    return KinesisSource(
        stream="orders",
        consumer=CONSUMER_ARN,
        start="TRIM_HORIZON",
        endpoint_url=f"http://127.0.0.1:{port}",
        session=aioboto3.Session(**CREDENTIALS),
    )


async def read_by_fanout(port: int, _shards: int) -> AsyncGenerator[pa.RecordBatch, None]:
    """Read as a user of fanout does."""
    async with fanout.open(kinesis_source(port)) as stream:
        async for batch in stream:
            yield batch.records


async def read_with_metrics(port: int, _shards: int) -> AsyncGenerator[pa.RecordBatch, None]:
    """Read while metrics are collected once a second, which is more often than operators do."""
    # Its libraries would take memory from all that is measured here.
    from benchmarks.collected_metrics import collected_metrics  # noqa: PLC0415

    async with fanout.open(kinesis_source(port)) as stream:
        with collected_metrics() as metrics, metrics.watch(stream):
            async for batch in stream:
                yield batch.records


async def read_by_hand(port: int, shards: int) -> AsyncGenerator[pa.RecordBatch, None]:
    """Read as a loop over `response["EventStream"]` does: a task for each shard.

    It keeps no positions and resubscribes to nothing, to its advantage.
    """
    session = aioboto3.Session(**CREDENTIALS)
    config = AioConfig(max_pool_connections=shards)
    # Like a slot: a shard that is ahead waits until its batch was taken.
    batches: asyncio.Queue[pa.RecordBatch] = asyncio.Queue(1)

    async def read(client: Any, shard_id: str) -> None:
        response = await client.subscribe_to_shard(
            ConsumerARN=CONSUMER_ARN, ShardId=shard_id, StartingPosition={"Type": "TRIM_HORIZON"}
        )
        stream = response["EventStream"]
        try:
            async for event in stream:
                records = event["SubscribeToShardEvent"]["Records"]
                await batches.put(columns(records, shard_id))
        finally:
            stream.close()

    url = f"http://127.0.0.1:{port}"
    async with session.client("kinesis", endpoint_url=url, config=config) as client:
        tasks = [asyncio.create_task(read(client, shard_id)) for shard_id in shard_ids(shards)]
        try:
            while True:
                yield await batches.get()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


READERS: Mapping[str, Callable[[int, int], AsyncGenerator[pa.RecordBatch, None]]] = {
    FANOUT: read_by_fanout,
    METERED: read_with_metrics,
    PEER: read_by_hand,
}


def run(
    rounds: int,
    sizes: Sequence[int] = SIZES,
    shards: Sequence[int] = SHARDS,
    events: Mapping[int, int] = EVENTS,
) -> Report:
    """Measure both contenders with each size of records and number of shards.

    The ratio of a size is the worst of those over the numbers of shards. What metrics cost is a
    ratio of CPU seconds: those without metrics by those with them.

    Args:
        rounds: How often each is run; the rate is the median.
        sizes: Bytes of data in a record.
        shards: How many shards are read at once.
        events: For each size the events of all shards together.
    """
    rows: list[Row] = []
    ratios: dict[str, float] = {}
    for size in sizes:
        worst = f"consume/kinesis/{size}/vs_aioboto3"
        for count in shards:
            replay = Replay(size, max(2, events[size] // count), count)
            ours, metered, theirs = _compare(replay, rounds)
            rows += [ours, metered, theirs]
            costs = ours.cpu_seconds_per_million, metered.cpu_seconds_per_million
            assert costs[0] is not None
            assert costs[1] is not None
            ratios[f"consume/kinesis/{size}/{count}_shards/metrics_vs_none"] = costs[0] / costs[1]
            ratio = ours.records_per_second / theirs.records_per_second
            ratios[f"consume/kinesis/{size}/{count}_shards/vs_aioboto3"] = ratio
            ratios[worst] = min(ratio, ratios.get(worst, ratio))
    return Report(scenario="consume", rows=rows, ratios=ratios)


def _compare(replay: Replay, rounds: int) -> tuple[Row, Row, Row]:
    what = f"consume from Kinesis, {replay.record_bytes} B, {replay.shards} shards"
    with replay_server(replay) as port:
        contenders = {
            name: partial(run_apart, partial(_read, name, port, replay)) for name in READERS
        }
        readings = take_turns(what, contenders, rounds)
        taken_by_shards = run_apart(partial(_held_bytes, port, replay))
    held = taken_by_shards / replay.shards / len(replay.template())
    above = {FANOUT: held - FLOOR_EVENTS}
    ours, metered, theirs = (
        median_row(
            name,
            taken,
            record_bytes=replay.record_bytes,
            shards=replay.shards,
            events_above_floor=above.get(name),
        )
        for name, taken in readings.items()
    )
    return ours, metered, theirs


def _read(name: str, port: int, replay: Replay) -> Measurement:
    wanted = int(replay.records * PEER_SHARE) if name == PEER else replay.records
    return asyncio.run(measure(READERS[name](port, replay.shards), wanted))


def _held_bytes(port: int, replay: Replay) -> int:
    """Return the most memory that the shards took while fanout's consumer was slow and then fast.

    Measurement one event first loads every library, so that they are not counted.
    """
    asyncio.run(_warm_up(port))
    gc.collect()
    before = resident_bytes()
    asyncio.run(_stall_and_read(port, replay))
    return own_peak_rss_bytes() - before


async def _warm_up(port: int) -> None:
    async with fanout.open(kinesis_source(port)) as stream:
        await anext(stream)


async def _stall_and_read(port: int, replay: Replay) -> None:
    async with fanout.open(kinesis_source(port)) as stream:
        reserved = -1
        while reserved != (now := stream.statistics().bytes_in_flight) or not now:
            reserved = now
            await asyncio.sleep(1)
        counted = 0
        while counted < replay.records:
            counted += (await anext(stream)).num_records


def resident_bytes() -> int:
    """Return the memory that this process has now; on Linux; elsewhere its peak so far."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return own_peak_rss_bytes()
    return int(statm.read_text().split()[1]) * resource.getpagesize()
