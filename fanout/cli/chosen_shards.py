"""Read chosen shards of a stream of Kinesis, and the shards that replace them."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from fanout.kinesis.chosen_shards import ChosenConnection, ShardChoice

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    import pyarrow as pa

    from fanout.core.event_time import CarriedWatermarks, EventTime
    from fanout.core.events import Batch
    from fanout.core.positions import Cursor
    from fanout.core.source import Connection, Source


@final
@dataclass(frozen=True, slots=True)
class ChosenShards:
    """Read some shards of a source, and their children after a reshard.

    Unlike with the option `shards` of a source, a child of a merge is read with either parent. A
    shard is named by its id or its number. Where several streams are read, that names a shard of
    each of them, unless the name of a stream and a slash are before it.
    """

    source: Source
    shards: Sequence[str]

    @property
    def schema(self) -> pa.Schema:
        """The schema of the records in a batch."""
        return self.source.schema

    @property
    def event_time(self) -> EventTime | CarriedWatermarks | None:
        """What watermarks are taken from."""
        return self.source.event_time

    @asynccontextmanager
    async def connect(self, *, available_now: bool = False) -> AsyncIterator[Connection]:
        """Open the connection of the source."""
        ids = {f"shardId-{one:0>12}" if one.isdecimal() else one for one in self.shards}
        async with self.source.connect(available_now=available_now) as connection:
            yield ChosenConnection(connection, ShardChoice(ids, any_parent=True))

    def cursor(self, batch: Batch, row: int) -> Cursor:
        """Return the position after one row of a batch."""
        return self.source.cursor(batch, row)

    def arrival(self, records: pa.RecordBatch, row: int) -> int | None:
        """Return when one row arrived, in milliseconds since the Unix epoch."""
        return self.source.arrival(records, row)
