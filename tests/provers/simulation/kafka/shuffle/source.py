"""A shuffle whose requests a simulated cluster answers."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from fanout.kafka.shuffle.source import open_shuffle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from random import Random

    import pyarrow as pa

    from fanout.core.event_time import CarriedWatermarks
    from fanout.core.events import Batch
    from fanout.core.positions import Cursor
    from fanout.kafka.reading.transport import KafkaTransport
    from fanout.kafka.shuffle.connection import ShuffleConnection
    from fanout.kafka.shuffle.source import ShuffleSource

__all__ = ("ShuffleSimSource",)


@final
@dataclass(frozen=True, slots=True)
class ShuffleSimSource:
    """A shuffle whose requests a simulated cluster answers.

    Args:
        shuffle: What the user wrote down.
        transport: Makes the calls of one connection.
        random: The source of randomness for waits.
    """

    shuffle: ShuffleSource
    transport: Callable[[], KafkaTransport]
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
        opening = open_shuffle(
            self.shuffle, self.transport(), self.random, available_now=available_now
        )
        async with opening as connection:
            yield connection

    def cursor(self, batch: Batch, row: int) -> Cursor:
        """Return the position after one row."""
        return self.shuffle.cursor(batch, row)

    def arrival(self, records: pa.RecordBatch, row: int) -> int | None:
        """Return the timestamp of a row."""
        return self.shuffle.arrival(records, row)
