"""Records to a topic of the real broker: `fanout.kafka.open_writer` against other producers.

All write the same keys and values to 4 partitions by Kafka's own hash of the key, each idempotent,
with `acks=all` and without compression, in batches of up to 512 KiB, and wait at the end until the
broker has confirmed everything. Each gets its records in the form in which it takes them, made
before the clock starts: record batches of 10,000 for fanout, and for the others a bytes object for
each key and value. `fanout, rows` gets mappings, 1,000 at once, and makes columns of them.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer

from benchmarks.harness import (
    Measurement,
    Report,
    median_row,
    own_cpu_seconds,
    own_peak_rss_bytes,
    run_apart,
)
from benchmarks.kafka_topic import PARTITIONS
from benchmarks.shuffle import batches
from benchmarks.turns import take_turns
from fanout.kafka import Cluster, Security, open_writer
from fanout.kafka.writing.write_options import ProducerOptions
from fanout.testing.kafka.broker import KafkaBroker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    import pyarrow as pa

    from benchmarks.harness import Row

__all__ = ("WRITERS", "run")

FANOUT, ROWS, AIOKAFKA, CONFLUENT = "fanout", "fanout, rows", "aiokafka", "confluent"
# Records that are written, and what part of them each contender writes; their rates are steady.
RECORDS: Final = {1024: 600_000, 100: 2_000_000}
SHARE: Final = {FANOUT: 1.0, ROWS: 0.5, AIOKAFKA: 0.25, CONFLUENT: 0.5}
BATCH_SIZE: Final = ProducerOptions().batch_size
_AT_ONCE: Final = 1_000
_HERE: Final = Security(protocol="PLAINTEXT")
_PATIENCE: Final = 60.0


async def write_fanout(servers: str, topic: str, given: Sequence[pa.RecordBatch]) -> Measurement:
    """Write as a user of fanout does who has record batches."""
    first, *rest = [batch.select(["key", "value"]) for batch in given]
    async with open_writer(Cluster(servers, security=_HERE), topic) as writer:
        await writer.write(first)
        await writer.flush()
        timed = _Clock()
        for batch in rest:
            await writer.write(batch)
        await writer.flush()
        return timed.read(sum(batch.num_rows for batch in rest))


async def write_rows(servers: str, topic: str, given: Sequence[pa.RecordBatch]) -> Measurement:
    """Write as a user of fanout does who has rows."""
    first, *rest = [
        [{"key": key, "value": value} for key, value in _pairs(piece)]
        for batch in given
        for piece in (batch.slice(at, _AT_ONCE) for at in range(0, batch.num_rows, _AT_ONCE))
    ]
    async with open_writer(Cluster(servers, security=_HERE), topic) as writer:
        await writer.write(first)
        await writer.flush()
        timed = _Clock()
        for rows in rest:
            await writer.write(rows)
        await writer.flush()
        return timed.read(sum(map(len, rest)))


async def write_aiokafka(servers: str, topic: str, given: Sequence[pa.RecordBatch]) -> Measurement:
    """Write as a loop over `send` does."""
    first, *rest = [_pairs(batch) for batch in given]
    producer = AIOKafkaProducer(
        bootstrap_servers=servers, enable_idempotence=True, max_batch_size=BATCH_SIZE, linger_ms=5
    )
    await producer.start()
    try:
        for key, value in first:
            await producer.send(topic, value, key)
        await producer.flush()
        timed = _Clock()
        for pairs in rest:
            for key, value in pairs:
                await producer.send(topic, value, key)
        await producer.flush()
        return timed.read(sum(map(len, rest)))
    finally:
        await producer.stop()


async def write_confluent(servers: str, topic: str, given: Sequence[pa.RecordBatch]) -> Measurement:
    """Write as a loop over `produce` does; it blocks, as nothing else has to run."""
    first, *rest = [_pairs(batch) for batch in given]
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "batch.size": BATCH_SIZE,
            "linger.ms": 5,
        }
    )
    _produce(producer, topic, first)
    timed = _Clock()
    for pairs in rest:
        _produce(producer, topic, pairs, flush=False)
    _produce(producer, topic, [])
    return timed.read(sum(map(len, rest)))


def _produce(
    producer: Producer, topic: str, pairs: Sequence[tuple[bytes, bytes]], *, flush: bool = True
) -> None:
    for key, value in pairs:
        while True:
            try:
                producer.produce(topic, value, key)
            except BufferError:  # the queue is full
                producer.poll(0.1)
            else:
                break
        producer.poll(0)
    if flush:
        assert producer.flush(_PATIENCE) == 0, "the broker does not confirm"


def _pairs(batch: pa.RecordBatch) -> list[tuple[bytes, bytes]]:
    columns: tuple[Any, Any] = (batch["key"].to_pylist(), batch["value"].to_pylist())
    return list(zip(*columns, strict=True))


class _Clock:
    """The time and the CPU seconds from its making on."""

    def __init__(self) -> None:
        self._started, self._cpu = time.perf_counter(), own_cpu_seconds()

    def read(self, records: int) -> Measurement:
        """Return the figures of so many records."""
        seconds, cpu = time.perf_counter() - self._started, own_cpu_seconds() - self._cpu
        return Measurement(records / seconds, cpu / records * 1e6, own_peak_rss_bytes())


WRITERS: Mapping[str, Callable[[str, str, Sequence[pa.RecordBatch]], Awaitable[Measurement]]] = {
    FANOUT: write_fanout,
    ROWS: write_rows,
    AIOKAFKA: write_aiokafka,
    CONFLUENT: write_confluent,
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
            taken = take_turns(f"writer, {size} B", contenders, rounds)
        of_size = {
            name: median_row(name, readings, record_bytes=size, shards=PARTITIONS)
            for name, readings in taken.items()
        }
        rows += of_size.values()
        for ours, suffix in ((FANOUT, ""), (ROWS, "_rows")):
            for peer in (AIOKAFKA, CONFLUENT):
                ratios[f"writer/kafka/{size}{suffix}/vs_{peer}"] = (
                    of_size[ours].records_per_second / of_size[peer].records_per_second
                )
    return Report(scenario="writer", rows=rows, ratios=ratios)


def _on_a_topic(broker: KafkaBroker, name: str, record_bytes: int, count: int) -> Measurement:
    topic = f"writer-{uuid4().hex}"
    broker.create_topic(topic, PARTITIONS)
    some = int(count * SHARE[name])
    try:
        return run_apart(partial(_apart, name, broker.bootstrap_servers, topic, record_bytes, some))
    finally:
        broker.delete_topic(topic)


def _apart(name: str, servers: str, topic: str, record_bytes: int, records: int) -> Measurement:
    async def measure() -> Measurement:
        return await WRITERS[name](servers, topic, list(batches(record_bytes, records)))

    return asyncio.run(measure())
