"""A source whose records have the columns that a test says."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from fanout.core.events import Batch, End
from tests.support.manual_source import SCHEMA, ManualSource

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from fanout.core.events import Split
    from fanout.core.positions import Position


class ShapedSource(ManualSource):
    """Records as those of `ManualSource`, with other columns.

    Args:
        schema: The columns; those that `ManualSource` lacks have one value.
        values: The value of each such column.
    """

    def __init__(self, schema: pa.Schema = SCHEMA, **values: object) -> None:
        super().__init__()
        self.schema = schema
        self._values: Mapping[str, object] = values

    async def events(self, split: Split, position: Position) -> AsyncGenerator[Batch | End]:
        async for event in super().events(split, position):
            if isinstance(event, Batch):
                given, rows = event.records, event.records.num_rows
                columns = [
                    given.column(field.name)
                    if field.name in given.schema.names
                    else pa.array([self._values[field.name]] * rows, field.type)
                    for field in self.schema
                ]
                yield replace(event, records=pa.record_batch(columns, schema=self.schema))
            else:
                yield event
