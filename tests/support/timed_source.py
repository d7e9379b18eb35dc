"""A source whose records have a time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from fanout.core.events import Batch, End
from tests.support.manual_source import SCHEMA, ManualSource

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from fanout.core.events import Split
    from fanout.core.positions import Position

DAY = 86_400_000


class TimedSource(ManualSource):
    """Records whose data is their time, in milliseconds since the Unix epoch."""

    schema = pa.schema([*SCHEMA, ("time", pa.timestamp("ms", "UTC"))])

    async def events(self, split: Split, position: Position) -> AsyncGenerator[Batch | End]:
        async for event in super().events(split, position):
            if isinstance(event, Batch):
                times = pa.array(map(int, event.records.column("data").to_pylist()), pa.int64())
                timed = [*event.records.columns, times.cast(pa.timestamp("ms", "UTC"))]
                records = pa.record_batch(timed, schema=self.schema)
                yield replace(event, records=records)
            else:
                yield event
