"""A Kinesis source whose calls a simulated service answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from fanout.kinesis.source import KinesisSource, open_connection

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from random import Random

    import pyarrow as pa

    from fanout.core.positions import Cursor
    from fanout.kinesis.connection import KinesisConnection
    from fanout.testing.simulation.transport import SimTransport

__all__ = ("SimSource",)


@final
@dataclass(frozen=True, slots=True)
class SimSource:
    """A Kinesis source whose calls a simulated service answers.

    Args:
        kinesis: What the user wrote down.
        transport: The calls.
        random: The source of randomness for the wait until a consumer is ACTIVE.
    """

    kinesis: KinesisSource
    transport: SimTransport
    random: Random

    @property
    def schema(self) -> pa.Schema:
        """The columns of a record."""
        return self.kinesis.schema

    def connect(self) -> AbstractAsyncContextManager[KinesisConnection]:
        """Connect as the real source does, over the simulated transport."""
        return open_connection(self.kinesis, self.transport, self.random)

    def cursor(self, records: pa.RecordBatch, row: int) -> Cursor:
        """Return the position after one row."""
        return self.kinesis.cursor(records, row)

    def arrival(self, records: pa.RecordBatch, row: int) -> int | None:
        """Return when a row arrived at the service."""
        return self.kinesis.arrival(records, row)
