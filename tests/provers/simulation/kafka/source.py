"""Kafka sources whose requests a simulated cluster answers."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, final

from fanout.kafka.cluster import Cluster
from fanout.kafka.reading.kafka_source import KafkaSource, open_kafka_connection
from fanout.kafka.security import Security
from fanout.kafka.shuffle.source import open_shuffle
from tests.provers.simulation.service_clock import EPOCH_MILLIS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from random import Random

    import pyarrow as pa

    from fanout.core.event_time import CarriedWatermarks, EventTime
    from fanout.core.events import Batch
    from fanout.core.positions import Cursor
    from fanout.kafka.reading.kafka_source import KafkaConnection
    from fanout.kafka.shuffle.source import ShuffleConnection, ShuffleSource
    from tests.provers.simulation.kafka.plan import KafkaPlan
    from tests.provers.simulation.kafka.transport import KafkaSimTransport


__all__ = ("KafkaSimSource", "ShuffleSimSource", "kafka_options")


# As little memory as any plan has; batches are smaller, and sometimes far larger.
_TIGHT: Final = 32 * 1024
_TIGHT_EVENT: Final = 16 * 1024


@final
@dataclass(frozen=True, slots=True)
class KafkaSimSource:
    """A Kafka source whose requests a simulated cluster answers.

    Args:
        kafka: The source that the user declares.
        transport: Makes the calls of one connection.
        random: The source of randomness for waits.
    """

    kafka: KafkaSource
    transport: Callable[[], KafkaSimTransport]
    random: Random

    @property
    def schema(self) -> pa.Schema:
        """The columns of a record."""
        return self.kafka.schema

    @property
    def event_time(self) -> EventTime | None:
        """The event time of a record."""
        return self.kafka.event_time

    @asynccontextmanager
    async def connect(self, *, available_now: bool = False) -> AsyncIterator[KafkaConnection]:
        """Connect as the real source does, over the simulated transport."""
        transport = self.transport()
        opening = open_kafka_connection(
            self.kafka, transport, self.random, available_now=available_now
        )
        async with transport.watched(), opening as connection:
            yield connection

    def cursor(self, batch: Batch, row: int) -> Cursor:
        """Return the position after one row."""
        return self.kafka.cursor(batch, row)

    def arrival(self, records: pa.RecordBatch, row: int) -> int | None:
        """Return the timestamp of a row."""
        return self.kafka.arrival(records, row)


def kafka_options(plan: KafkaPlan) -> KafkaSource:
    """Return what the user of a plan's job asks for.

    Args:
        plan: The plan.
    """
    topics = sorted({partition.topic for partition in plan.at_first})
    chosen: dict[str, Any] = {"topics": topics}
    match plan.selection:
        case "pattern":
            chosen = {"pattern": "[tu]"}
        case "partitions":
            chosen = {"partitions": [str(partition) for partition in plan.at_first]}
        case _:
            pass
    memory: dict[str, Any] = {}
    if plan.tight and not plan.large:
        memory = {"max_event_bytes": _TIGHT_EVENT, "max_bytes_in_flight": _TIGHT}
    began = datetime.fromtimestamp(EPOCH_MILLIS / 1000, UTC)
    return KafkaSource(
        cluster=Cluster("127.0.0.1:9092", security=Security(protocol="PLAINTEXT")),
        start=began if plan.start == "timestamp" else plan.start,
        on_data_loss=plan.on_data_loss,
        isolation_level=plan.isolation_level,
        group_id="g" if plan.group else None,
        discovery_interval=plan.listing_every,
        consumer_options={
            "fetch.max.wait.ms": round(plan.max_wait * 1000),
            "max.partition.fetch.bytes": plan.fetch_bytes,
        },
        **chosen,
        **memory,
    )


@final
@dataclass(frozen=True, slots=True)
class ShuffleSimSource:
    """A shuffle whose requests a simulated cluster answers.

    Args:
        shuffle: The source that the user declares.
        transport: Makes the calls of one connection.
        random: The source of randomness for waits.
    """

    shuffle: ShuffleSource
    transport: Callable[[], KafkaSimTransport]
    random: Random

    @property
    def schema(self) -> pa.Schema:
        """The columns of a record."""
        return self.shuffle.schema

    @property
    def event_time(self) -> CarriedWatermarks:
        """Say that watermarks come with the records."""
        return self.shuffle.event_time

    @asynccontextmanager
    async def connect(self, *, available_now: bool = False) -> AsyncIterator[ShuffleConnection]:
        """Connect as the real source does, over the simulated transport."""
        transport = self.transport()
        opening = open_shuffle(self.shuffle, transport, self.random, available_now=available_now)
        async with transport.watched(), opening as connection:
            yield connection

    def cursor(self, batch: Batch, row: int) -> Cursor:
        """Return the position after one row."""
        return self.shuffle.cursor(batch, row)

    def arrival(self, records: pa.RecordBatch, row: int) -> int | None:
        """Return the timestamp of a row."""
        return self.shuffle.arrival(records, row)
