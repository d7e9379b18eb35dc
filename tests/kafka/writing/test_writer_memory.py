"""The memory of a writer while one partition cannot be written to."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from aiokafka.errors import KafkaConnectionError

from fanout.kafka.partitions import Partition
from fanout.kafka.writing.produce_requests import ProduceRequests
from tests.support.kafka.brokers import create
from tests.support.kafka.writing import read, records, writing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiokafka.errors import KafkaError

    from fanout.kafka.writing.produce_requests import ProduceBatch
    from fanout.testing.kafka.broker import KafkaBroker

pytestmark = pytest.mark.long

PARTITIONS = 4
WRITES = 40
BUFFER = 2 << 20


def given(number: int) -> list[bytes]:
    """Return a record for each partition; that of the first one is small."""
    sizes = [4_000, *[500_000] * (PARTITIONS - 1)]
    return [b"%d " % number + bytes(size) for size in sizes]


@pytest.mark.fault("A partition has no leader while others are written")
async def test_what_waits_keeps_no_memory_of_what_was_confirmed(
    kafka_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(kafka_broker, "w-memory", PARTITIONS)
    send = ProduceRequests.send
    stuck = Partition("w-memory", 0)
    is_back = asyncio.Event()

    async def without_leader(
        self: ProduceRequests, broker: int, batches: Mapping[Partition, ProduceBatch]
    ) -> Mapping[Partition, KafkaError | None]:
        if is_back.is_set() or stuck not in batches:
            return await send(self, broker, batches)
        await self._encode(stuck, batches[stuck])  # it may have arrived, and stays as it is
        others = {each: batch for each, batch in batches.items() if each != stuck}
        answers = await send(self, broker, others) if others else {}
        return {**answers, stuck: KafkaConnectionError("it is gone")}

    async with writing(kafka_broker, buffer_memory=BUFFER) as writer:
        monkeypatch.setattr(ProduceRequests, "send", without_leader)
        before = pa.total_allocated_bytes()
        for number in range(WRITES):
            await writer.write(records("w-memory", given(number), range(PARTITIONS)))
        pinned = pa.total_allocated_bytes() - before
        waiting = writer.statistics().waiting_bytes
        is_back.set()
        await writer.flush()
        assert writer._sender._retained.nbytes == 0
    assert waiting > (WRITES - 1) * 4_000
    # A write has 1.5 MB. Beyond what may wait there are as much again, and the last two writes.
    assert pinned < 2 * BUFFER + 2 * 1_600_000
    found = await read(kafka_broker, "w-memory", PARTITIONS)
    for partition in range(PARTITIONS):
        expected = [given(number)[partition] for number in range(WRITES)]
        assert [each.value for each in found[partition]] == expected
