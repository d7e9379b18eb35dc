"""How long a record takes from its put until the consumer has it, at a steady rate.

Records of 1 KB are put into 4 shards or partitions by another process, each with the time of its
put. In asyncio, `fanout.open` is measured against a plain aioboto3 loop on the embedded Kinesis,
and against a plain aiokafka loop on the real broker: the time ends where the consumer has a batch.
On Spark, `foreach_batch` and the streaming DataFrame are measured against Spark's own Kafka source
on the real broker: it ends where the handler has counted the records of its batch, as Spark reads
them no sooner. Queries start the next batch as soon as the one before it is over.

Server, producer and reader share the machine, whose other work shows in p95 and p99 first.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import aioboto3
import numpy as np
import pyarrow as pa
from aiokafka import AIOKafkaConsumer, TopicPartition

import fanout
from benchmarks.consume_kafka import AIOKAFKA, kafka_source
from benchmarks.consume_kinesis import CREDENTIALS
from benchmarks.harness import (
    Measurement,
    Report,
    median_row,
    own_cpu_seconds,
    own_peak_rss_bytes,
    run_apart,
)
from benchmarks.kafka_topic import PARTITIONS, TOPIC
from benchmarks.paced import RECORD_BYTES, SHARDS, STAMP_BYTES, STREAM, paced
from benchmarks.spark_contender import BRIEF_FACTOR, compare
from benchmarks.turns import take_turns, tell
from fanout.kinesis import KinesisSource

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from benchmarks.harness import Row

__all__ = ("latencies", "measured", "run_kafka", "run_kinesis")

FANOUT, LOOP = "fanout", "aioboto3"
FOREACH_BATCH, DATA_FRAME, SPARK = "foreach_batch", "DataFrame", "Spark's own source"
RATES: Final = (10, 1000, 20_000)
SECONDS: Final = 10
# Python reads up to so many stamps in less time than Arrow. Arrow would take as long as a loop that
# delivers them, and the meter runs in the process of its contender.
_FEW: Final = 64
# What is put while connections open and code is loaded.
SKIPPED_SECONDS: Final = 3


def latencies(data: pa.ChunkedArray | pa.Array) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the seconds since the puts of records.

    Args:
        data: What was put, or the beginning of it, as binary.
    """
    now = time.time_ns()
    if len(data) <= _FEW:
        stamps = [int(value[:STAMP_BYTES]) for value in data.to_pylist()]
        return (now - np.array(stamps, np.int64)) / 1e9
    text = pa.compute.binary_slice(data, 0, STAMP_BYTES).cast(pa.string())
    sent: np.ndarray[Any, np.dtype[np.int64]] = text.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return (now - sent) / 1e9


def measured(
    parts: Sequence[np.ndarray[Any, np.dtype[np.float64]]], seconds: float, cpu: float
) -> Measurement:
    """Return the figures of a run.

    Args:
        parts: The latencies of its records.
        seconds: How long it took.
        cpu: The CPU seconds that it took.
    """
    every = np.concatenate(parts)
    middle, slow, slowest = np.percentile(every, [50, 95, 99])
    return Measurement(
        len(every) / seconds,
        cpu / len(every) * 1e6,
        own_peak_rss_bytes(),
        (float(middle), float(slow), float(slowest)),
    )


async def _by_fanout(url: str) -> AsyncGenerator[pa.Array, None]:
    source = KinesisSource(
        stream=STREAM,
        consumer=f"fanout-{uuid.uuid4().hex}",
        start="LATEST",
        endpoint_url=url,
        session=aioboto3.Session(**CREDENTIALS),
        deregister="on_close",
    )
    async with fanout.open(source) as stream:
        async for batch in stream:
            yield batch.records.column("data")


async def _by_hand(url: str) -> AsyncGenerator[pa.Array, None]:
    """Read as a loop over `response["EventStream"]` does: a task for each shard."""
    arrived: asyncio.Queue[pa.Array] = asyncio.Queue(1)
    session = aioboto3.Session(**CREDENTIALS)

    async def read(client: Any, consumer: str, shard: str) -> None:
        response = await client.subscribe_to_shard(
            ConsumerARN=consumer, ShardId=shard, StartingPosition={"Type": "LATEST"}
        )
        events = response["EventStream"]
        try:
            async for event in events:
                records = event["SubscribeToShardEvent"]["Records"]
                if records:
                    await arrived.put(pa.array([record["Data"] for record in records]))
        finally:
            events.close()

    async with session.client("kinesis", endpoint_url=url) as client:
        stream = (await client.describe_stream_summary(StreamName=STREAM))[
            "StreamDescriptionSummary"
        ]["StreamARN"]
        name = f"hand-{uuid.uuid4().hex}"
        made = await client.register_stream_consumer(StreamARN=stream, ConsumerName=name)
        consumer = made["Consumer"]["ConsumerARN"]
        shards = (await client.list_shards(StreamName=STREAM))["Shards"]
        tasks = [asyncio.create_task(read(client, consumer, one["ShardId"])) for one in shards]
        try:
            while True:
                yield await arrived.get()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await client.deregister_stream_consumer(ConsumerARN=consumer)


async def _kafka_by_fanout(servers: str) -> AsyncGenerator[pa.Array, None]:
    async with fanout.open(replace(kafka_source(servers), start="LATEST")) as stream:
        async for batch in stream:
            yield batch.records.column("value")


async def _kafka_by_hand(servers: str) -> AsyncGenerator[pa.Array, None]:
    """Read as a loop over `getmany` does."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=servers,
        enable_auto_commit=False,
        auto_offset_reset="latest",
        isolation_level="read_committed",
    )
    await consumer.start()
    try:
        consumer.assign([TopicPartition(TOPIC, number) for number in range(PARTITIONS)])
        while True:
            for records in (await consumer.getmany(timeout_ms=1000)).values():
                yield pa.array([record.value for record in records])
    finally:
        await consumer.stop()


READERS: Mapping[str, Mapping[str, Callable[[str], AsyncGenerator[pa.Array, None]]]] = {
    "kinesis": {FANOUT: _by_fanout, LOOP: _by_hand},
    "kafka": {FANOUT: _kafka_by_fanout, AIOKAFKA: _kafka_by_hand},
}


async def _read(service: str, name: str, url: str, rate: int, seconds: float) -> Measurement:
    async with aclosing(READERS[service][name](url)) as arriving:
        skipped = SKIPPED_SECONDS * rate
        while skipped > 0:
            skipped -= len(await anext(arriving))
        parts, started, cpu = [], time.perf_counter(), own_cpu_seconds()
        while (took := time.perf_counter() - started) < seconds:
            parts.append(latencies(await anext(arriving)))
        return measured(parts, took, own_cpu_seconds() - cpu)


def _read_apart(service: str, name: str, url: str, rate: int, seconds: float) -> Measurement:
    return asyncio.run(_read(service, name, url, rate, seconds))


def _run_asyncio(
    service: str, report: Report, rounds: int, rates: Sequence[int], seconds: float
) -> None:
    """Measure `fanout.open` and the loop on a service at each rate."""
    for rate in rates:
        with paced(service, rate) as url:
            contenders = {
                name: partial(run_apart, partial(_read_apart, service, name, url, rate, seconds))
                for name in READERS[service]
            }
            taken = take_turns(f"latency, {service}, {rate:,} records/s", contenders, rounds)
        ours, theirs = (
            replace(median_row(name, readings, record_bytes=RECORD_BYTES, shards=SHARDS), rate=rate)
            for name, readings in taken.items()
        )
        report.rows.extend((ours, theirs))
        report.ratios[f"latency/asyncio/{rate}/vs_{theirs.name}"] = _ratio(theirs, ours)


def run_kinesis(rounds: int, rates: Sequence[int] = RATES, seconds: float = SECONDS) -> Report:
    """Measure `fanout.open` and the loop at each rate.

    Args:
        rounds: How often each is run; a figure is the median of the rounds.
        rates: Records a second.
        seconds: How long a run is measured.
    """
    report = Report(scenario="latency", rows=[], ratios={})
    _run_asyncio("kinesis", report, rounds, rates, seconds)
    return report


def run_kafka(
    rounds: int,
    rates: Sequence[int] = RATES,
    seconds: float = SECONDS,
    *,
    brief: bool = False,
) -> Report:
    """Measure the loops of asyncio at each rate, and queries of Spark.

    Where Spark's source has no jars, the queries are ours alone.

    Args:
        rounds: As for `run_kinesis`, like the next two.
        rates: Records a second.
        seconds: How long a run is measured.
        brief: As for `compare`; the loops take a tenth of the seconds too.
    """
    report = Report(scenario="latency", rows=[], ratios={})
    _run_asyncio("kafka", report, rounds, rates, seconds / BRIEF_FACTOR if brief else seconds)
    for rate in rates:
        with paced("kafka", rate) as servers:
            measure = partial(
                compare,
                "kafka",
                servers,
                PARTITIONS,
                record_bytes=RECORD_BYTES,
                rounds=rounds,
                job="benchmarks.latency_job",
                brief=brief,
            )
            wanted = dict.fromkeys((SPARK, FOREACH_BATCH, DATA_FRAME), round(rate * seconds))
            try:
                rows = measure(records=wanted)
            except ChildProcessError as error:
                tell(f"Spark's own Kafka source is left out: {error}")
                del wanted[SPARK]
                rows = measure(records=wanted)
        report.rows.extend(replace(row, rate=rate) for row in rows)
        *theirs, ours, frames = rows
        for peer in theirs:
            report.ratios[f"latency/spark/{rate}/vs_spark_jvm"] = _ratio(peer, ours)
            report.ratios[f"latency/spark/{rate}/dataframe_vs_spark_jvm"] = _ratio(peer, frames)
        report.ratios[f"latency/spark/{rate}/dataframe_vs_foreach_batch"] = _ratio(ours, frames)
    return report


def _ratio(peer: Row, ours: Row) -> float:
    assert peer.latency is not None
    assert ours.latency is not None
    return peer.latency[0] / ours.latency[0]
