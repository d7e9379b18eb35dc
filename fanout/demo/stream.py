"""The stream of the demo: how it is changed, and how records are put into it at a rate."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeAlias, final

import msgspec

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from fanout.demo.kafka import KafkaStream
    from fanout.demo.kinesis import KinesisStream
    from fanout.testing.trials.records import RecordProducer

STREAM: Final = "orders"
"""The name of the stream or topic."""

# The limit of one PutRecords call (AWS API reference); it fits Kafka as well.
MAX_CALL_RECORDS: Final = 500

_CALLS_PER_SECOND = 10


@final
class SentRecord(msgspec.Struct, frozen=True, array_like=True):
    """Where the service has stored a record."""

    split: str
    sequence: str
    time: int | None = None  # of its event, in milliseconds since the Unix epoch


@final
class ActionResult(msgspec.Struct, frozen=True):
    """The result of actions: a description for people, and the splits that were closed and created.

    A split that was created and closed again is in both.
    """

    description: str
    ended: tuple[str, ...] = ()
    born: tuple[str, ...] = ()


DemoStream: TypeAlias = "KinesisStream | KafkaStream"
"""A stream of a service that runs on this machine for one run of the demo."""


async def produce(
    stream: DemoStream, producer: RecordProducer, count: int, *, rate: float
) -> AsyncGenerator[Sequence[SentRecord], None]:
    """Send records at a rate per second, and yield the places of those of each call."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    size = min(MAX_CALL_RECORDS, max(1, round(rate / _CALLS_PER_SECOND)))
    while producer.total < count:
        records = producer.make(min(size, count - producer.total))
        stored = await stream.put(records)
        producer.taken(records)
        yield stored
        await asyncio.sleep(begun + producer.total / rate - loop.time())
