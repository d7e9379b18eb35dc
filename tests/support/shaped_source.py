"""A source whose records have the columns that a test says."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

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
        values: The value of each such column, or a function that makes it of the payload.
    """

    def __init__(self, schema: pa.Schema = SCHEMA, **values: object) -> None:
        super().__init__()
        self.schema = schema
        self._values: Mapping[str, object] = values

    async def events(self, split: Split, position: Position) -> AsyncGenerator[Batch | End]:
        async for event in super().events(split, position):
            if isinstance(event, Batch):
                given = event.records
                columns = [
                    given.column(field.name)
                    if field.name in given.schema.names
                    else pa.array(self._column(field.name, given.column("data")), field.type)
                    for field in self.schema
                ]
                yield replace(event, records=pa.record_batch(columns, schema=self.schema))
            else:
                yield event

    def _column(self, name: str, data: pa.Array) -> list[Any]:
        value = self._values[name]
        if callable(value):
            return [value(each) for each in data.to_pylist()]
        return [value] * len(data)
