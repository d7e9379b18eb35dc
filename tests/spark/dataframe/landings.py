"""Landings that a test fills as it wishes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

import fanout
from fanout.core.checkpoint import Checkpoint
from fanout.landing.log.columns import give_identity
from fanout.landing.log.entries import BatchEntry, encode_entry, entry_name
from fanout.landing.segments.segments import SegmentFile
from fanout.landing.storage.local_storage import LocalStorage
from tests.support.manual_source import ManualSource

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from fanout.landing.log.followed import LandedEntry


class FilledLanding:
    """A landing on the disk; its records have the sequence numbers 1, 2 and so on.

    Args:
        path: Where it is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.location = str(path)
        self.count = 0
        self._source = ManualSource()

    def put(self, records: int, **options: Any) -> list[LandedEntry]:
        """Land records, ten in an entry; each run begins with an entry without records."""
        first = self.count
        self.count += records
        self._source.put(*(b"%d" % number for number in range(first, self.count)))
        return asyncio.run(self._land(options))

    async def _land(self, options: dict[str, Any]) -> list[LandedEntry]:
        chosen = {"max_wait": 0.0, "max_records": 10, "available_now": True} | options
        async with fanout.land(self._source, self.location, **chosen) as landing:
            return [entry async for entry in landing]

    def sequences(self) -> list[int]:
        """Return the sequence numbers of all records."""
        return list(range(1, self.count + 1))


def write_landing(path: Path, table: pa.Table) -> None:
    """Write a landing of one entry with these rows."""
    storage = LocalStorage(path)
    give_identity(storage, table.schema)
    file = storage.scratch() / "run-000001-00000001.parquet"
    pq.write_table(table, file)
    segment = SegmentFile(f"segments/{file.name}", table.num_rows, file.stat().st_size)
    storage.publish(file, segment.name)
    entry = BatchEntry(0, "", (segment,), Checkpoint("manual:one"))
    storage.create(entry_name(0), encode_entry(entry, run=1))
