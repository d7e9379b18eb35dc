"""A queue of Kinesis to Arrow: `KinesisQueueSource` against boto3 in threads.

Both have as many calls under way, from a server in another process whose answers are made before,
build the same columns, and acknowledge what each call brought. Each record comes once.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from contextlib import closing
from datetime import UTC
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import aioboto3
import boto3
import pyarrow as pa
from botocore.config import Config

import fanout
from benchmarks.consume_kinesis import CREDENTIALS
from benchmarks.harness import Report, measure, median_row, run_apart
from benchmarks.queue_replay import QUEUE_ARN, STREAM_ARN, replay_queue
from benchmarks.turns import take_turns
from fanout.kinesis import KinesisQueueSource
from fanout.testing.kinesis.api_model import extend_model

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from benchmarks.harness import Measurement, Row

__all__ = ("read_by_boto3", "read_by_fanout", "run")

# Records that are read of each size of their data.
RECORDS: Final = {1024: 40_000, 100: 40_000}
RECEIVERS: Final = 16
FANOUT, PEER = "fanout", "boto3"
_ARRIVAL: Final = pa.timestamp("us", "UTC")


async def read_by_fanout(url: str, receivers: int) -> AsyncGenerator[pa.RecordBatch, None]:
    """Read as a user of fanout does."""
    source = KinesisQueueSource(
        stream=STREAM_ARN,
        queue=QUEUE_ARN,
        receivers=receivers,
        endpoint_url=url,
        session=aioboto3.Session(**CREDENTIALS),
    )
    async with fanout.open(source) as stream:
        async for batch in stream:
            await stream.acknowledge(batch)
            yield batch.records


async def read_by_boto3(url: str, receivers: int) -> AsyncGenerator[pa.RecordBatch, None]:
    """Read as a loop in each of some threads does: receive, make columns, acknowledge."""
    batches: queue.Queue[pa.RecordBatch] = queue.Queue(receivers)
    ended = threading.Event()
    config = Config(max_pool_connections=receivers)
    with closing(boto3.client("kinesis", endpoint_url=url, config=config, **CREDENTIALS)) as client:
        extend_model(client.meta.service_model)

        def call(operation: str, **arguments: Any) -> Any:
            return client._make_api_call(operation, {"QueueARN": QUEUE_ARN, **arguments})  # noqa: SLF001 - botocore has no method yet

        def read() -> None:
            while not ended.is_set():
                asked = {"Limit": 10, "WaitTimeSeconds": 15, "VisibilityTimeoutSeconds": 60}
                records = call("ReceiveQueueRecords", **asked)["QueueRecords"]
                taken = _columns(records)
                entries = [{"ReceiptHandle": each["ReceiptHandle"]} for each in records]
                call("AcknowledgeQueueRecords", Entries=entries)
                batches.put(taken)

        threads = [threading.Thread(target=read) for _ in range(receivers)]
        for thread in threads:
            thread.start()
        try:
            while True:
                # It blocks, as nothing else has to run.
                yield batches.get()
        finally:
            ended.set()
            while any(thread.is_alive() for thread in threads):
                _empty(batches)
                for thread in threads:
                    thread.join(0.01)


def _empty(batches: queue.Queue[pa.RecordBatch]) -> None:
    while not batches.empty():
        batches.get()


def _columns(records: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    size = len(records)
    arrivals = [each["ApproximateArrivalTimestamp"].astimezone(UTC) for each in records]
    return pa.RecordBatch.from_pydict(
        {
            "partitionKey": pa.array([each.get("PartitionKey") for each in records], pa.string()),
            "data": pa.array([each["Data"] for each in records], pa.binary()),
            "stream": ["orders"] * size,
            "queue": ["work"] * size,
            "recordId": [each["RecordId"] for each in records],
            "approximateArrivalTimestamp": pa.array(arrivals, _ARRIVAL),
            "receiveCount": pa.array([each["ReceiveCount"] for each in records], pa.int32()),
        }
    )


READERS: Final = {FANOUT: read_by_fanout, PEER: read_by_boto3}


def run(rounds: int, records: Mapping[int, int] = RECORDS, receivers: int = RECEIVERS) -> Report:
    """Measure both with as many calls under way.

    Args:
        rounds: How often each is run; the rate is the median.
        records: For each size of a record's data how many are read.
        receivers: How many calls are under way.
    """
    rows: list[Row] = []
    ratios: dict[str, float] = {}
    for size, wanted in records.items():
        with replay_queue(size) as port:
            contenders = {
                name: partial(run_apart, partial(_read, name, port, receivers, wanted))
                for name in READERS
            }
            what = f"consume from a queue, {size} B, {receivers} calls at once"
            readings = take_turns(what, contenders, rounds)
        of_size = {
            name: median_row(name, taken, record_bytes=size, shards=receivers)
            for name, taken in readings.items()
        }
        rows += of_size.values()
        ratios[f"consume/kinesis-queue/{size}/vs_boto3"] = (
            of_size[FANOUT].records_per_second / of_size[PEER].records_per_second
        )
    return Report(scenario="consume", rows=rows, ratios=ratios)


def _read(name: str, port: int, receivers: int, wanted: int) -> Measurement:
    batches = READERS[name](f"http://127.0.0.1:{port}", receivers)
    return asyncio.run(measure(batches, wanted))
