"""Produce the records that the pipelines read, at a steady pace during all strikes."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol, final

from fanout.testing.kafka.producer import open_producer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from aiokafka import AIOKafkaProducer

    from fanout.testing.kinesis.process import KinesisProcess
    from fanout.testing.trials.oracle import OutputOracle
    from fanout.testing.trials.records import Record, RecordProducer
    from tests.provers.crash.moments import Pipeline

__all__ = ("Input", "KafkaInput", "KinesisInput", "keep_producing", "open_kafka_input")

_PAUSE = 0.1
# So many wait for a job that is down, however slow the machine is.
_MOST_BEHIND = 3_000


class Input(Protocol):
    """The stream or topic of the records of a pipeline."""

    async def put(self, records: Sequence[Record]) -> None:
        """Put records, each exactly once, those of a key in order."""


@final
class KinesisInput:
    """A stream of the embedded Kinesis.

    Args:
        server: The server itself, which outlives its front.
        stream: The stream.
    """

    def __init__(self, server: KinesisProcess, stream: str) -> None:
        self._server = server
        self._stream = stream

    async def put(self, records: Sequence[Record]) -> None:
        """See `Input.put`."""
        pairs = [(record.key, record.value) for record in records]
        await asyncio.to_thread(self._server.put_records, self._stream, pairs)


@final
class KafkaInput:
    """A topic; made by `open_kafka_input`.

    Args:
        producer: A started idempotent producer.
        topic: The topic.
    """

    def __init__(self, producer: AIOKafkaProducer, topic: str) -> None:
        self._producer = producer
        self._topic = topic

    async def put(self, records: Sequence[Record]) -> None:
        """See `Input.put`."""
        sent = [
            await self._producer.send(self._topic, record.value, record.key.encode())
            for record in records
        ]
        await asyncio.gather(*sent)


@asynccontextmanager
async def open_kafka_input(bootstrap_servers: str, topic: str) -> AsyncIterator[KafkaInput]:
    """Run a producer while the block runs that repeats calls until each record is taken once."""
    async with open_producer(bootstrap_servers) as producer:
        yield KafkaInput(producer, topic)


async def keep_producing(
    pipeline: Pipeline,
    producer: RecordProducer,
    target: Input,
    oracles: Mapping[Pipeline, OutputOracle],
    stopping: asyncio.Event,
    *,
    per_call: int,
) -> None:
    """Put records until asked to stop, but never so many that the job falls behind for long.

    Args:
        pipeline: What reads them.
        producer: Makes them, and remembers what was taken.
        target: Takes them.
        oracles: Know what was read of them.
        stopping: Ends it, between two calls.
        per_call: How many are put ten times a second.
    """
    while not stopping.is_set():
        if producer.total - oracles[pipeline].distinct < _MOST_BEHIND:
            records = producer.make(per_call)
            await target.put(records)
            producer.taken(records)
        await asyncio.sleep(_PAUSE)
