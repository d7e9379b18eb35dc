"""A topic of the real broker to Arrow: `fanout.open` against aiokafka and confluent-kafka.

`fanout.open` also reads as the only member of a group, where it acknowledges each batch.

All read the same records of 4 partitions, committed ones only, and build the same columns. All
fetch 2 MiB of a partition at once, the default of fanout: with 1 MiB, the default of the others,
aiokafka takes more processor time, and librdkafka no less. Each checks what it checks by default:
fanout and aiokafka the checksums of record batches, as Java's consumer does, and librdkafka none.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pyarrow as pa
from aiokafka import AIOKafkaConsumer, TopicPartition
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ConfluentPartition

import fanout
from benchmarks.harness import Report, measure, median_row, run_apart
from benchmarks.kafka_topic import PARTITIONS, TOPIC, filled_broker
from benchmarks.turns import take_turns
from fanout.kafka import ConsumerGroup, KafkaSource, Security
from fanout.kafka.cluster import Cluster
from fanout.kafka.reading.columns import SCHEMA
from fanout.kafka.reading.consumer_options import ConsumerOptions

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from aiokafka import ConsumerRecord
    from confluent_kafka import Message

    from benchmarks.harness import Measurement, Row

__all__ = (
    "AT_ONCE",
    "READERS",
    "columns_of_confluent",
    "kafka_source",
    "read_by_aiokafka",
    "read_by_fanout",
    "run",
)

FANOUT, GROUPED = "fanout", "fanout in a group"
AIOKAFKA, CONFLUENT = "aiokafka", "confluent"
# Records of the topic, and the part of them that peers read, whose rates are steady.
RECORDS: Final = {1024: 1_600_000, 100: 4_000_000}
SHARE: Final = {FANOUT: 1.0, GROUPED: 1.0, AIOKAFKA: 0.25, CONFLUENT: 0.4}
AT_ONCE: Final = 10_000
FETCHED: Final = ConsumerOptions().max_partition_fetch_bytes
_MILLISECONDS: Final = pa.timestamp("ms", tz="UTC")


def kafka_source(servers: str, topic: str = TOPIC) -> KafkaSource:
    """Return the source that reads a topic of a broker on this machine."""
    return KafkaSource(
        cluster=Cluster(servers, security=Security(protocol="PLAINTEXT")), topics=topic
    )


async def read_by_fanout(servers: str, topic: str = TOPIC) -> AsyncGenerator[pa.RecordBatch, None]:
    """Read as a user of fanout does."""
    async with fanout.open(kafka_source(servers, topic)) as stream:
        async for batch in stream:
            yield batch.records


async def read_in_a_group(servers: str) -> AsyncGenerator[pa.RecordBatch, None]:
    """Read as a member of a new group does, which stores how far it is."""
    group = ConsumerGroup(group_id=str(uuid4()))
    async with fanout.open(kafka_source(servers), group=group) as stream:
        async for batch in stream:
            yield batch.records
            await stream.acknowledge(batch)


async def read_by_aiokafka(
    servers: str, topic: str = TOPIC
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Read as a loop over `getmany` does."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=servers,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        max_partition_fetch_bytes=FETCHED,
    )
    await consumer.start()
    try:
        consumer.assign([TopicPartition(topic, number) for number in range(PARTITIONS)])
        while True:
            for partition, records in (await consumer.getmany(timeout_ms=1000)).items():
                yield _columns_of_aiokafka(partition, records)
    finally:
        await consumer.stop()


async def read_by_confluent(servers: str) -> AsyncGenerator[pa.RecordBatch, None]:
    """Read as a loop over `consume` does; it blocks, as nothing else has to run."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "benchmark",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "max.partition.fetch.bytes": FETCHED,
            # Its queue is full all the time, and it would pause for a second each time.
            "fetch.queue.backoff.ms": 1,
        }
    )
    try:
        consumer.assign([ConfluentPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
        while True:
            messages = consumer.consume(AT_ONCE, 1.0)
            if messages:
                yield columns_of_confluent(messages)
    finally:
        consumer.close()


def _columns_of_aiokafka(
    partition: TopicPartition, records: Sequence[ConsumerRecord]
) -> pa.RecordBatch:
    rows = len(records)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([record.key for record in records], pa.binary()),
            pa.array([record.value for record in records], pa.binary()),
            pa.repeat(partition.topic, rows),
            pa.repeat(pa.scalar(partition.partition, pa.int32()), rows),
            pa.array([record.offset for record in records], pa.int64()),
            _timestamps([record.timestamp for record in records]),
            pa.array([record.timestamp_type for record in records], pa.int32()),
            _headers([record.headers for record in records]),
        ],
        schema=SCHEMA,
    )


def columns_of_confluent(messages: Sequence[Message]) -> pa.RecordBatch:
    """Return the columns of messages."""
    stamps = [message.timestamp() for message in messages]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([message.key() for message in messages], pa.binary()),
            pa.array([message.value() for message in messages], pa.binary()),
            pa.array([message.topic() for message in messages], pa.string()),
            pa.array([message.partition() for message in messages], pa.int32()),
            pa.array([message.offset() for message in messages], pa.int64()),
            _timestamps([millis for _, millis in stamps]),
            pa.array([kind - 1 for kind, _ in stamps], pa.int32()),
            _headers([message.headers() for message in messages]),
        ],
        schema=SCHEMA,
    )


def _timestamps(millis: list[int]) -> pa.Array:
    return pa.array(millis, _MILLISECONDS).cast(SCHEMA.field("timestamp").type)


def _headers(headers: list[Any]) -> pa.Array:
    kind = SCHEMA.field("headers").type
    if any(headers):
        return pa.array([one or () for one in headers], kind)
    return pa.ListArray.from_arrays(
        pa.repeat(pa.scalar(0, pa.int32()), len(headers) + 1), pa.array([], kind.value_type)
    )


READERS: Mapping[str, Callable[[str], AsyncGenerator[pa.RecordBatch, None]]] = {
    FANOUT: read_by_fanout,
    GROUPED: read_in_a_group,
    AIOKAFKA: read_by_aiokafka,
    CONFLUENT: read_by_confluent,
}


def run(rounds: int, records: Mapping[int, int] = RECORDS) -> Report:
    """Measure all contenders with each size of records.

    Args:
        rounds: How often each is run; the rate is the median.
        records: For each size of a record's value how many the topic has.
    """
    rows: list[Row] = []
    ratios: dict[str, float] = {}
    for size, count in records.items():
        with filled_broker(size, count) as servers:
            contenders = {
                name: partial(run_apart, partial(_read, name, servers, int(count * SHARE[name])))
                for name in READERS
            }
            readings = take_turns(f"consume from Kafka, {size} B", contenders, rounds)
        of_size = {
            name: median_row(name, taken, record_bytes=size, shards=PARTITIONS)
            for name, taken in readings.items()
        }
        rows += of_size.values()
        ours = of_size[FANOUT].records_per_second
        ratios[f"consume/kafka/{size}/group_vs_none"] = of_size[GROUPED].records_per_second / ours
        for peer in (AIOKAFKA, CONFLUENT):
            ratios[f"consume/kafka/{size}/vs_{peer}"] = ours / of_size[peer].records_per_second
    return Report(scenario="consume", rows=rows, ratios=ratios)


def _read(name: str, servers: str, wanted: int) -> Measurement:
    return asyncio.run(measure(READERS[name](servers), wanted))
