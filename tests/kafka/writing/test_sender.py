"""What the sender does while a request is under way."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from fanout.core.backoff import Backoff, FullJitter
from fanout.kafka.partitions import Partition
from fanout.kafka.writing.encoding import encode_record_batch
from fanout.kafka.writing.producer_id import NO_PRODUCER_ID
from fanout.kafka.writing.row_batches import prepare_rows
from fanout.kafka.writing.sender import Sender
from fanout.kafka.writing.write_options import ProducerOptions
from tests.support.kafka.writing import records

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.kafka.writing.produce_requests import ProduceBatch

PARTITION = Partition("t", 0)


class Requests:
    """Encode as the real ones do, and wait until the test lets the broker answer."""

    sent = sent_again = throttled = 0

    def __init__(self) -> None:
        self.answers = asyncio.Semaphore(0)

    async def send(
        self, _: int, batches: Mapping[Partition, ProduceBatch]
    ) -> Mapping[Partition, None]:
        for batch in batches.values():
            arguments = (batch.rows, "none", NO_PRODUCER_ID, -1, batch.records)
            batch.attempts += 1
            batch.data, batch.records = encode_record_batch(*arguments), None
        await self.answers.acquire()
        return dict.fromkeys(batches)

    async def settle(self) -> None:
        pass


class Metadata:
    cluster_id = "scripted"

    def leader(self, _: Partition) -> int:
        return 1


async def test_the_next_batch_is_encoded_while_the_one_before_is_sent() -> None:
    rows = prepare_rows(records("t", [b"a" * 60]), datetime.now(UTC))
    encoded: list[int] = []

    def encoder(number: int) -> Any:
        def encode() -> pa.Buffer:
            encoded.append(number)
            return pa.py_buffer(b"r")

        return encode

    requests = Requests()
    jitter = FullJitter(Backoff(), Random(1))
    options = ProducerOptions(batch_size=100)
    sender = Sender(cast("Any", requests), cast("Any", Metadata()), options=options, jitter=jitter)
    async with sender.running():
        await sender.locate([PARTITION])
        buffers = sender.begin_write(1000, 300)
        for number in range(3):
            await sender.put(
                PARTITION, rows, 100, delivery=None, buffers=buffers, records=encoder(number)
            )
        flushed = asyncio.create_task(sender.flush())
        found = []
        for _ in range(3):
            for _ in range(5):
                await asyncio.sleep(0)
            found.append(max(encoded, default=0))
            requests.answers.release()
        await flushed
    assert found == [1, 2, 2]
    assert sender.rows == 3
