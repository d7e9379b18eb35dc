"""The segments that landers publish, as a test sees them come."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, final

import pyarrow.parquet as pq

from tests.support.spark.harness import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Segment(NamedTuple):
    """A segment, and when it was first seen."""

    session: int
    seen_at: float
    splits: frozenset[str]


@final
class Segments:
    """All segments that landers have published; the files go when batches are old.

    Args:
        directory: That of the job.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "checkpoint" / "fanout" / "segments"
        self._seen: dict[str, Segment] = {}

    def of(self, session: int) -> list[Segment]:
        """Return those of a session; the sessions of a run are numbered from 1 as they connect."""
        return [one for one in self._look() if one.session == session]

    def stop_of(self, session: int, strike: Callable[[], None]) -> list[float]:
        """Strike a lander, and wait until other sessions have landed records of all its splits.

        Returns:
            After how many seconds each of the splits had records again, the first one first.
        """
        eventually(lambda: len(self.of(session)) > 2, "segments of the lander")
        splits = {split for one in self.of(session) for split in one.splits}
        strike()
        struck_at = time.monotonic()
        again: dict[str, float] = {}

        def look() -> bool:
            for one in self._look():
                if one.seen_at > struck_at and one.session != session:
                    for split in splits & one.splits:
                        again.setdefault(split, one.seen_at - struck_at)
            return again.keys() == splits

        eventually(look, "records of all splits of the lander")
        return sorted(again.values())

    def _look(self) -> list[Segment]:
        for file in sorted(self._directory.glob("run-*.parquet")):
            if file.name not in self._seen:
                now = time.monotonic()
                with suppress(FileNotFoundError):
                    shards = pq.read_table(file, columns=["shardId"]).column(0).to_pylist()
                    session = int(file.name.split("-")[2])
                    self._seen[file.name] = Segment(session, now, frozenset(shards))
        return list(self._seen.values())
