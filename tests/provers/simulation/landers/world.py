"""Everything around the drivers and landers of a run."""

from __future__ import annotations

import asyncio
from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, final

from fanout.testing.virtual_time.loop import running_loop
from tests.provers.simulation.errors import OracleError
from tests.provers.simulation.landers.bucket import Bucket
from tests.provers.simulation.landers.network import Network
from tests.provers.simulation.landers.oracle import EntryOracle
from tests.provers.simulation.landers.process import holding
from tests.provers.simulation.landers.splits import SimSource, draw_logs
from tests.provers.simulation.landers.storage import MemoryStorage

if TYPE_CHECKING:
    from pathlib import Path

    from fanout.landing.log.entries import BatchEntry
    from tests.provers.simulation.landers.plan import LandersPlan
    from tests.provers.simulation.landers.process import LanderProcess
    from tests.provers.simulation.landers.storage import Row

__all__ = ("LandersSometimes", "World")


@final
class LandersSometimes(StrEnum):
    """Name a coincidence, and say in a sentence what has happened when it is met."""

    HELD_TWICE = "two processes read one split at the same time"
    ORPHANED = "a segment is published, and no entry names it"
    PARTS_LEFT = "files of partitions are published, and no entry names them"
    STAGED_LEFT = "bad records of a lander are in no entry"
    BAD_LEFT = "a file of bad records is published, and no entry names it"


@final
class World:
    """What outlives the drivers and landers.

    Args:
        plan: The plan.
        root: A directory for files of a landing that are being written.

    Attributes:
        stored: The positions of the newest entry; None without an entry.
        excused: How many refusals of the storage have ended a run.
    """

    def __init__(self, plan: LandersPlan, root: Path) -> None:
        self.plan = plan
        self.network = Network(plan)
        self.bucket = Bucket(plan, root, self._entered) if plan.lands else None
        self.storage = self.bucket or MemoryStorage(plan)
        self.logs = draw_logs(plan)
        self.source = SimSource(plan, self.logs, holding)
        self.oracle = EntryOracle(self.logs, self.storage.files, plan.landers)
        self.processes: list[LanderProcess] = []
        self.stored: str | None = None
        self.excused = 0
        self.entry_written = asyncio.Event()
        self.faults: Counter[str] = Counter()
        self.moments: Counter[str] = Counter()
        self._attempts = 0
        self._ends: list[asyncio.Task[None]] = []

    def next_attempt(self) -> int:
        """Return a number that no attempt of a lander has had."""
        self._attempts += 1
        return self._attempts

    def end_later(self, process: LanderProcess, seconds: float) -> None:
        """Kill a process that goes on although another one is in its place."""
        self._ends.append(asyncio.create_task(self._end(process, seconds)))

    async def end_all(self) -> None:
        """Kill all processes."""
        for end in self._ends:
            end.cancel()
        for process in self.processes:
            await process.kill(silently=False)
        if self._ends:
            await asyncio.wait(self._ends)

    def check(self) -> None:
        """Check all processes.

        Raises:
            OracleError: If a promise is broken.
        """
        for process in self.processes:
            process.check()
        for broken in self.bucket.broken if self.bucket else ():
            raise broken
        held = Counter(split_id for process in self.processes for split_id in process.held)
        self.moments[LandersSometimes.HELD_TWICE] += any(count > 1 for count in held.values())
        self.processes = [process for process in self.processes if not process.task.done()]

    def look_back(self) -> None:
        """Count what can be seen at the end."""
        orphans = self.storage.files.keys() - self.oracle.named
        self.moments[LandersSometimes.ORPHANED] += bool(orphans)
        left = self.bucket.left() if self.bucket else {}
        parts = [name for name in orphans if "=" in name]
        self.moments[LandersSometimes.PARTS_LEFT] += bool(parts)
        self.moments[LandersSometimes.STAGED_LEFT] += bool(left.get("staged"))

    def check_swept(self) -> None:
        """Check that a run that went on after all others has deleted what these left.

        Raises:
            OracleError: If a file stays, or one of another landing is gone.
        """
        assert self.bucket is not None
        self.check()
        for where, names in self.bucket.left().items():
            if names:
                raise OracleError(f"left behind: {names} of {where} are in no entry")
        self.moments[LandersSometimes.BAD_LEFT] += bool(self.bucket.swept)
        if gone := self.bucket.theirs - self.bucket.objects.keys():
            raise OracleError(f"lost: {gone} of another landing")

    def _entered(self, entry: BatchEntry, bad: tuple[Row, ...]) -> None:
        self.oracle.check_entry(entry.segments, entry.positions, entry.watermark, bad)
        self.entry_written.set()

    async def _end(self, process: LanderProcess, seconds: float) -> None:
        await asyncio.sleep(seconds)
        running_loop().note(f"{process} is killed at last")
        await process.kill(silently=False)
