"""Landings that a test fills as it wishes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import fanout
from tests.spark.manual import ManualSource

if TYPE_CHECKING:
    from pathlib import Path

    from fanout.landing.landed_entry import LandedEntry


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
