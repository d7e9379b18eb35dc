"""The store of a job's positions: it may be slow, refuse a write, or break in one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, final

from tests.provers.simulation.kinesis.faults import KinesisFaultKind, KinesisFaultSite

if TYPE_CHECKING:
    from tests.provers.simulation.armed_faults import ArmedFaults
    from tests.provers.simulation.job.process_run import ProcessRun
    from tests.provers.simulation.kinesis.faults import KinesisFault

__all__ = ("PositionStore",)


@final
class PositionStore:
    """Keep the newest positions and those before: a write may be torn, but never both.

    The last write wins, also where it is that of the older one of two processes.

    Args:
        armed: What goes wrong.
    """

    def __init__(self, armed: ArmedFaults[KinesisFault]) -> None:
        self._armed = armed
        self._versions: list[str] = []
        self._whole: list[str] = []

    @property
    def versions(self) -> list[str]:
        """The positions that a restart may find, the newest first."""
        return self._versions[::-1]

    async def save(self, positions: str, run: ProcessRun) -> None:
        """Store positions.

        Args:
            positions: What is stored.
            run: The process that stores it; what a dead process stores is not kept.

        Raises:
            OSError: The store refuses them.

        Cancellation: they may be stored or not.
        """
        fault = self._armed.strike(KinesisFaultSite.STORE, asyncio.get_running_loop().time())
        kind = None if fault is None else fault.kind
        if kind is KinesisFaultKind.STORE_FAILS:
            raise OSError("simulated")
        if fault is not None and kind is KinesisFaultKind.STORE_SLOW:
            await asyncio.sleep(fault.seconds)
        if not run.dead:
            # A write takes the place of the older version, or of a torn one.
            torn = kind is KinesisFaultKind.STORE_TORN
            self._versions = [*self._whole, positions[: len(positions) // 2] if torn else positions]
            self._whole = self._whole if torn else [positions]
        if kind is KinesisFaultKind.STORE_TORN:
            raise OSError("simulated: the store broke in the middle of a write")
