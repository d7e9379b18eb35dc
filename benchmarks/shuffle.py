"""Records through the topic of a shuffle and back, against the same records without frames.

All write the same keys and values, record batches of 10,000, to 4 partitions of the real broker by
Kafka's own hash of the key, wait for the broker's confirmation after each ten, and read them back
into Arrow, committed ones only. `plain` is fanout's own writer and source without a shuffle: the
difference is the cost of frames, event times and watermarks. aiokafka is the usual alternative: a
producer that is given one record after the other, and a loop over `getmany`. All are idempotent,
and none compresses.

A contender's rate is that of writing and reading back one after the other; the table has a row for
each half.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from itertools import cycle, islice
from random import Random
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import pyarrow as pa
from aiokafka import AIOKafkaProducer

import fanout
from benchmarks.consume_kafka import kafka_source, read_by_aiokafka, read_by_fanout
from benchmarks.harness import (
    Measurement,
    Report,
    measure,
    median_row,
    own_cpu_seconds,
    own_peak_rss_bytes,
    run_apart,
)
from benchmarks.kafka_topic import PARTITIONS
from benchmarks.turns import take_turns
from fanout.kafka import Security, ShuffleSource, open_shuffle_writer
from fanout.kafka.cluster import Cluster
from fanout.kafka.shuffle.writer_options import ShuffleWriterOptions
from fanout.kafka.writing.partitioner import partitions_of
from fanout.kafka.writing.producer_id import Idempotent
from fanout.kafka.writing.writer import open_writer
from fanout.testing.kafka.broker import KafkaBroker

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping

    from benchmarks.harness import Row

__all__ = ("READERS", "WRITERS", "batches", "run")

SHUFFLE, PLAIN, AIOKAFKA = "shuffle", "plain", "aiokafka"
# Records of a topic, and what part of them the slowest one writes and reads; its rate is steady.
RECORDS: Final = {1024: 600_000, 100: 2_000_000}
SHARE: Final = {SHUFFLE: 1.0, PLAIN: 1.0, AIOKAFKA: 0.2}
BATCH: Final = 10_000
_HALVES: Final = ("written", "read")
_BEFORE_COMMIT: Final = 10
_DIFFERENT: Final = 8
_KEYS: Final = 10_000
_HERE: Final = Security(protocol="PLAINTEXT")
_BEGIN: Final = 1_700_000_000_000


def batches(record_bytes: int, records: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows to write: the columns key, value and at.

    Args:
        record_bytes: Bytes of a value.
        records: How many records there are.
    """
    random = Random(record_bytes)  # noqa: S311 - reproducible, not secret
    size = min(BATCH, records)
    made = [_batch(random, record_bytes, size, number) for number in range(_DIFFERENT)]
    return islice(cycle(made), records // size)


def _batch(random: Random, record_bytes: int, size: int, number: int) -> pa.RecordBatch:
    keys = [b"user-%d" % random.randrange(_KEYS) for _ in range(size)]
    values = [random.randbytes(record_bytes) for _ in range(size)]
    times = range(_BEGIN + number * size, _BEGIN + (number + 1) * size)
    return pa.record_batch(
        {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "at": pa.array(times, pa.timestamp("ms", "UTC")),
        }
    )


async def write_shuffle(servers: str, topic: str, given: Iterable[pa.RecordBatch]) -> Measurement:
    """Write as a user of a shuffle does."""
    async with open_shuffle_writer(
        ShuffleWriterOptions(
            cluster=Cluster(servers, security=_HERE),
            topic=topic,
            timestamp="at",
            out_of_orderness=5.0,
            delivery_guarantee="at_least_once",
        )
    ) as writer:
        return await _timed(given, writer.write, writer.commit)


async def write_plain(servers: str, topic: str, given: Iterable[pa.RecordBatch]) -> Measurement:
    """Write the same keys and values as they are."""
    async with open_writer(Cluster(servers, security=_HERE), mode=Idempotent()) as writer:

        async def write(records: pa.RecordBatch) -> None:
            columns = {
                "topic": pa.repeat(topic, records.num_rows),
                "partition": partitions_of(records["key"], PARTITIONS),
                "key": records["key"],
                "value": records["value"],
            }
            await writer.write(pa.RecordBatch.from_arrays([*columns.values()], names=[*columns]))

        return await _timed(given, write, writer.flush)


async def write_aiokafka(servers: str, topic: str, given: Iterable[pa.RecordBatch]) -> Measurement:
    """Write as a loop over records does; batches are as large as ours may be."""
    producer = AIOKafkaProducer(
        bootstrap_servers=servers, enable_idempotence=True, max_batch_size=1 << 20, linger_ms=5
    )
    await producer.start()
    try:

        async def write(records: pa.RecordBatch) -> None:
            keys, values = records["key"].to_pylist(), records["value"].to_pylist()
            for key, value in zip(keys, values, strict=True):
                await producer.send(topic, value, key)

        return await _timed(given, write, producer.flush)
    finally:
        await producer.stop()


async def _timed(
    given: Iterable[pa.RecordBatch],
    write: Callable[[pa.RecordBatch], Awaitable[None]],
    confirm: Callable[[], Awaitable[object]],
) -> Measurement:
    """Write everything; the clock starts when the first batch is confirmed."""
    rest = iter(given)
    await write(next(rest))
    await confirm()
    counted, started, cpu = 0, time.perf_counter(), own_cpu_seconds()
    for number, records in enumerate(rest, 1):
        await write(records)
        counted += records.num_rows
        if number % _BEFORE_COMMIT == 0:
            await confirm()
    await confirm()
    seconds, cpu = time.perf_counter() - started, own_cpu_seconds() - cpu
    return Measurement(counted / seconds, cpu / counted * 1e6, own_peak_rss_bytes())


async def read_shuffle(servers: str, topic: str) -> AsyncGenerator[pa.RecordBatch, None]:
    """Read as a user of a shuffle does."""
    async with fanout.open(ShuffleSource(kafka_source(servers, topic))) as stream:
        async for batch in stream:
            yield batch.records


WRITERS: Mapping[str, Callable[[str, str, Iterable[pa.RecordBatch]], Awaitable[Measurement]]] = {
    SHUFFLE: write_shuffle,
    PLAIN: write_plain,
    AIOKAFKA: write_aiokafka,
}
READERS: Mapping[str, Callable[[str, str], AsyncGenerator[pa.RecordBatch, None]]] = {
    SHUFFLE: read_shuffle,
    PLAIN: read_by_fanout,
    AIOKAFKA: read_by_aiokafka,
}


def run(rounds: int, records: Mapping[int, int] = RECORDS) -> Report:
    """Measure all contenders with each size of records.

    Args:
        rounds: How often each is run; the rate is the median.
        records: For each size of a record's value how many there are.
    """
    rows: list[Row] = []
    ratios: dict[str, float] = {}
    for size, count in records.items():
        with KafkaBroker(fast=True) as broker:
            contenders = {name: partial(_on_a_topic, broker, name, size, count) for name in WRITERS}
            taken = take_turns(f"shuffle, {size} B", contenders, rounds)
        rates = {}
        for name, readings in taken.items():
            written, read = (
                median_row(f"{name}, {half}", of_half, record_bytes=size, shards=PARTITIONS)
                for half, of_half in zip(_HALVES, zip(*readings, strict=True), strict=True)
            )
            rows += [written, read]
            rates[name] = 1 / (1 / written.records_per_second + 1 / read.records_per_second)
        for peer in (AIOKAFKA, PLAIN):
            ratios[f"shuffle/kafka/{size}/vs_{peer}"] = rates[SHUFFLE] / rates[peer]
    return Report(scenario="shuffle", rows=rows, ratios=ratios)


def _on_a_topic(
    broker: KafkaBroker, name: str, record_bytes: int, count: int
) -> tuple[Measurement, Measurement]:
    topic = f"{name}-{uuid4().hex}"
    broker.create_topic(topic, PARTITIONS)
    some = max(int(count * SHARE[name]), 2 * BATCH)
    work = partial(_there_and_back, name, broker.bootstrap_servers, topic)
    try:
        return run_apart(partial(work, record_bytes, some))
    finally:
        broker.delete_topic(topic)


def _there_and_back(
    name: str, servers: str, topic: str, record_bytes: int, records: int
) -> tuple[Measurement, Measurement]:
    return asyncio.run(_measure(name, servers, topic, list(batches(record_bytes, records))))


async def _measure(
    name: str, servers: str, topic: str, given: list[pa.RecordBatch]
) -> tuple[Measurement, Measurement]:
    written = await WRITERS[name](servers, topic, given)
    records = sum(batch.num_rows for batch in given)
    return written, await measure(READERS[name](servers, topic), records)
