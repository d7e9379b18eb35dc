"""Write rejected records to the dead letter topic, with the reason."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, final

import pyarrow as pa

from fanout.errors import ServiceError
from fanout.kafka.protocol.cluster_metadata import fetch_metadata
from fanout.kafka.protocol.error_codes import raise_if_refused
from fanout.kafka.writing.producer_id import Idempotent
from fanout.kafka.writing.writer import open_writer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from fanout.kafka.protocol.connections import Connections
    from fanout.kafka.share.options import ShareOptions
    from fanout.kafka.writing.writer import KafkaWriter

_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@asynccontextmanager
async def open_dead_letters(
    options: ShareOptions, connections: Connections, topic: str
) -> AsyncIterator[DeadLetters]:
    """Open a writer to the dead letter topic, or raise KafkaError where it may not be described."""
    (found,) = (await fetch_metadata(connections, [topic])).topics
    raise_if_refused(found.error_code, topic, topic=topic, operation="DESCRIBE and WRITE")
    async with open_writer(options.cluster.named("dead-letters"), mode=Idempotent()) as writer:
        yield DeadLetters(writer, topic, len(found.leaders), options.group_id)


@final
class DeadLetters:
    """Write records to the dead letter topic, to the partition with the number of their own."""

    def __init__(self, writer: KafkaWriter, topic: str, partitions: int, group: str) -> None:
        self._writer = writer
        self._topic = topic
        self._partitions = partitions
        self._group = group
        self._lock = asyncio.Lock()

    async def write(self, records: pa.RecordBatch, reasons: Sequence[str]) -> None:
        """Write records of a share group, each with its reason, and wait until the topic has them.

        An error that it raises is raised by every later call as well. A cancelled call may have
        written some of the records.
        """
        rows = zip(records.to_pylist(), reasons, strict=True)
        headers = [self._headers(row, reason) for row, reason in rows]
        numbers = [number % self._partitions for number in records.column("partition").to_pylist()]
        letters = pa.RecordBatch.from_arrays(
            [
                pa.repeat(self._topic, records.num_rows),
                pa.array(numbers, pa.int32()),
                records.column("key"),
                records.column("value"),
                pa.array(headers, _HEADERS),
                records.column("timestamp"),
            ],
            names=["topic", "partition", "key", "value", "headers", "timestamp"],
        )
        async with self._lock:
            try:
                await self._writer.write(letters)
                await self._writer.flush()
            except ValueError as error:
                raise ServiceError(
                    f"{self._topic} cannot take a rejected record: {error}"
                ) from error

    def _headers(self, row: dict[str, object], reason: str) -> list[tuple[str, bytes | None]]:
        own = row["headers"]
        assert isinstance(own, list)
        added = {
            "reason": reason,
            "group": self._group,
            "topic": row["topic"],
            "partition": row["partition"],
            "offset": row["offset"],
            "deliveryCount": row["deliveryCount"],
        }
        return [
            *((header["key"], header["value"]) for header in own),
            *((f"fanout.{name}", str(value).encode()) for name, value in added.items()),
        ]
