"""Segments in memory: what landers write, and when it is durable."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from fanout.landing.segments.segments import Segment, SplitPart
from fanout.testing.virtual_time.loop import running_loop
from tests.provers.simulation.randomness import happens, stream_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from fanout.core.checkpoint import Checkpoint
    from fanout.core.drain import Drained
    from tests.provers.simulation.landers.plan import LandersPlan

__all__ = ("MemorySegmentLog", "MemoryStorage", "Row")

T = TypeVar("T")

Row = tuple[str, int]
"""The split and the sequence number of a record."""

_BYTES: Final = 16


@final
class MemoryStorage:
    """A `Storage` for segments alone.

    Args:
        plan: Of the run.

    Attributes:
        files: The rows of each file by its name.
        slow_until: Until when calls take seconds.
        refuses: How many of the next files it refuses.
        refused: How many it has refused.
        filled: For each run and split the last record that was put into a segment.
    """

    location = "memory"

    def __init__(self, plan: LandersPlan) -> None:
        self.files: dict[str, tuple[Row, ...]] = {}
        self.slow_until = 0.0
        self.refuses = 0
        self.refused = 0
        self.filled: dict[tuple[int, str], int] = {}
        self._scratch: dict[Path, tuple[Row, ...]] = {}
        self._random = stream_of(plan.seed, "storage")

    def work(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Make a call that blocks, in virtual time."""
        loop = running_loop()
        done: asyncio.Future[T] = loop.create_future()
        slow = loop.time() < self.slow_until

        def finish() -> None:
            try:
                done.set_result(call())
            except Exception as error:  # noqa: BLE001 - raised where it is awaited
                done.set_exception(error)

        if slow or happens(self._random, 0.2):
            loop.call_later(self._random.uniform(0.0, 8.0 if slow else 0.1), finish)
        else:
            loop.call_soon(finish)
        return done

    def scratch(self) -> Path:
        """Return where segments are written."""
        return Path("scratch")

    def write(self, path: Path, rows: tuple[Row, ...]) -> None:
        """Write a file that is not published yet."""
        self._scratch[path] = rows

    def publish(self, path: Path, name: str) -> None:
        """Give a file its name.

        Raises:
            FileExistsError: It is taken.
            OSError: The storage refuses.
        """
        if self.refuses:
            self.refuses -= 1
            self.refused += 1
            raise OSError("the storage refuses")
        if name in self.files:
            raise FileExistsError(name)
        self.files[name] = self._scratch.pop(path)

    def close(self) -> None:
        """Do nothing."""


@final
@dataclass
class _MemorySegment:
    """An `OpenSegment` in memory."""

    storage: MemoryStorage
    path: Path
    run: int
    max_records: int
    rows: int = 0
    positions: Checkpoint | None = None
    watermark: int | None = None
    parts: dict[str, SplitPart] = field(default_factory=dict)
    _rows: list[Row] = field(default_factory=list)

    bad = ()
    room_bytes = 1 << 30
    row_group_ready = False

    @property
    def good(self) -> int:
        return self.rows

    @property
    def room_records(self) -> int:
        return self.max_records - self.rows

    @property
    def full(self) -> bool:
        return self.room_records < 1

    def add(self, drained: Drained) -> None:
        for batch in drained.batches:
            columns = batch.records.to_pydict()
            self._rows += zip(columns["split"], columns["sequence"], strict=True)
            split_id, count = batch.split.id, batch.num_records
            if count:
                self.storage.filled[self.run, split_id] = columns["sequence"][-1]
            before = self.parts.get(split_id, SplitPart(0, None))
            self.parts[split_id] = SplitPart(before.records + count, batch.watermark)
        self.rows = len(self._rows)
        self.positions = drained.positions

    def seal(self) -> Segment:
        self.storage.write(self.path, tuple(self._rows))
        return Segment(self.path, self.rows, self.rows * _BYTES)

    def discard(self) -> None:
        """Do nothing."""


@final
class MemorySegmentLog:
    """A `SegmentLog` in memory, with the names of the real one.

    Args:
        storage: Where segments are written.
        run: The number of the run.
        session: The number of the session.
        max_records: The most records in a segment.
    """

    def __init__(
        self, storage: MemoryStorage, run: int, *, session: int, max_records: int, **_: Any
    ) -> None:
        self._storage = storage
        self._run = run
        self._prefix = f"run-{run:06}-{session:06}"
        self._max_records = max_records
        self._count = 0

    def open(self) -> _MemorySegment:
        """Open the next segment."""
        self._count += 1
        path = self._storage.scratch() / f"{self._prefix}-{self._count:08}.parquet"
        return _MemorySegment(self._storage, path, self._run, self._max_records)
