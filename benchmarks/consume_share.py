"""A topic through a share group to Arrow: `KafkaShareSource` against a bare ShareConsumer loop.

Both have the same client of confluent-kafka underneath, read the records of 4 partitions as members
of a group of their own, which is new each time, build the same columns, and accept what each poll
brought before the next one. Beside one consumer against one, fanout is measured with more of them.
"""

from __future__ import annotations

import asyncio
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from confluent_kafka import ShareConsumer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

import fanout
from benchmarks.consume_kafka import columns_of_confluent
from benchmarks.harness import Report, measure, median_row, run_apart
from benchmarks.kafka_topic import PARTITIONS, TOPIC, filled_broker
from benchmarks.turns import take_turns
from fanout.kafka import KafkaShareSource, Security
from fanout.kafka.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from benchmarks.harness import Measurement, Row

__all__ = ("MEMBERS", "read_by_confluent", "read_by_fanout", "run")

# Records that are read of each size of their values; the topic has some more.
RECORDS: Final = {1024: 150_000, 100: 300_000}
MEMBERS: Final = (1, 2, 4, 8)
_AT_ONCE: Final = 500
# Brokers lock records for 30 s by default; those of tests have another setting.
_SETTINGS: Final = {
    "share.auto.offset.reset": "earliest",
    "share.record.lock.duration.ms": "30000",
}


async def read_by_fanout(
    servers: str, group: str, members: int = 1
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Read as a user of fanout does."""
    source = KafkaShareSource(
        cluster=Cluster(servers, security=Security(protocol="PLAINTEXT")),
        topics=TOPIC,
        group_id=group,
        consumers=members,
        max_poll_records=_AT_ONCE,
        group_settings=_SETTINGS,
    )
    async with fanout.open(source) as stream:
        async for batch in stream:
            await stream.acknowledge(batch)
            yield batch.records


async def read_by_confluent(servers: str, group: str) -> AsyncGenerator[pa.RecordBatch, None]:
    """Read as a loop over `poll` does; it blocks, as nothing else has to run."""
    _set_up(servers, group)
    consumer = ShareConsumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
            "max.poll.records": _AT_ONCE,
        }
    )
    try:
        consumer.subscribe([TOPIC])
        while True:
            messages = list(consumer.poll(1.0))
            if not messages:
                continue
            counts = pa.array([message.delivery_count() for message in messages], pa.int32())
            records = columns_of_confluent(messages).append_column("deliveryCount", counts)
            for message in messages:
                consumer.acknowledge(message)
            consumer.commit_sync()
            yield records
    finally:
        consumer.close()


def _set_up(servers: str, group: str) -> None:
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in _SETTINGS.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    client: Any = AdminClient({"bootstrap.servers": servers})
    for future in client.incremental_alter_configs([resource]).values():
        future.result(10)


def run(
    rounds: int, records: Mapping[int, int] = RECORDS, members: Sequence[int] = MEMBERS
) -> Report:
    """Measure one consumer against one, and fanout with several.

    Args:
        rounds: How often each is run; the rate is the median.
        records: For each size of a record's value how many are read.
        members: How many consumers fanout has; 1 is among them.
    """
    rows: list[Row] = []
    ratios: dict[str, float] = {}
    for size, count in records.items():
        # Records that were delivered in advance are not all read.
        with filled_broker(size, count * 5 // 4) as servers:
            contenders = {
                _name(number): partial(run_apart, partial(_read, servers, number, count))
                for number in (0, *members)
            }
            readings = take_turns(f"consume from a share group, {size} B", contenders, rounds)
        of_size = {
            number: median_row(
                _name(number), readings[_name(number)], record_bytes=size, shards=PARTITIONS
            )
            for number in (0, *members)
        }
        rows += of_size.values()
        rates = {number: row.records_per_second for number, row in of_size.items()}
        ratios[f"consume/kafka-share/{size}/vs_confluent"] = rates[1] / rates[0]
        for number in members:
            if number > 1:
                name = f"consume/kafka-share/{size}/{number}_consumers/vs_1_consumer"
                ratios[name] = rates[number] / rates[1]
    return Report(scenario="consume", rows=rows, ratios=ratios)


def _name(members: int) -> str:
    if not members:
        return "bare loop"
    return "fanout, 1 consumer" if members == 1 else f"fanout, {members} consumers"


def _read(servers: str, members: int, wanted: int) -> Measurement:
    group = f"benchmark-{uuid.uuid4()}"
    if members:
        return asyncio.run(measure(read_by_fanout(servers, group, members), wanted))
    return asyncio.run(measure(read_by_confluent(servers, group), wanted))
