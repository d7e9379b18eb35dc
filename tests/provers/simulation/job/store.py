"""Where a simulated job keeps its positions: it may be slow, refuse, or break in a write."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, final

from tests.provers.simulation.kinesis.faults.faults import Kind, Site

if TYPE_CHECKING:
    from tests.provers.simulation.job.life import Life
    from tests.provers.simulation.kinesis.faults.armed import Armed
    from tests.provers.simulation.kinesis.faults.faults import Fault

__all__ = ("Store",)


@final
class Store:
    """Keep the newest positions and those before: a write may be torn, but never both.

    Whoever writes last wins, also where that is the older one of two processes.

    Args:
        armed: What goes wrong.
    """

    def __init__(self, armed: Armed[Fault]) -> None:
        self._armed = armed
        self._versions: list[str] = []
        self._whole: list[str] = []

    @property
    def versions(self) -> list[str]:
        """What a restart finds, the newest first."""
        return self._versions[::-1]

    async def save(self, positions: str, life: Life) -> None:
        """Store positions.

        Args:
            positions: What is stored.
            life: Who stores it; what a dead process stores reaches nobody.

        Raises:
            OSError: The store refuses them.

        Cancellation: they may be stored or not.
        """
        fault = self._armed.strike(Site.STORE, asyncio.get_running_loop().time())
        kind = None if fault is None else fault.kind
        if kind is Kind.STORE_FAILS:
            raise OSError("simulated")
        if fault is not None and kind is Kind.STORE_SLOW:
            await asyncio.sleep(fault.seconds)
        if not life.dead:
            # A write takes the place of the older version, or of a torn one.
            torn = kind is Kind.STORE_TORN
            self._versions = [*self._whole, positions[: len(positions) // 2] if torn else positions]
            self._whole = self._whole if torn else [positions]
        if kind is Kind.STORE_TORN:
            raise OSError("simulated: the store broke in the middle of a write")
