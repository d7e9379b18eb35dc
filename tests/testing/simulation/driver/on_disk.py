"""Run blocking code on a simulated disk, without a query."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, TypeVar
from unittest import mock

from fanout.spark.checkpoint import local
from fanout.testing.simulation import SimLoop, simulate
from fanout.testing.simulation.driver.files import DiskOs, DiskPath
from fanout.testing.simulation.driver.process import Machine, Process, current_process
from fanout.testing.simulation.driver.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fanout.testing.simulation.driver.faults import Fault

T = TypeVar("T")


def on_disk(machine: Machine, work: Callable[[], T], faults: Sequence[Fault] = ()) -> T:
    """Run a function in a process of its own on a machine.

    Raises:
        asyncio.CancelledError: If the process was killed.
    """
    loop = SimLoop()
    process = Process("test", machine, Threads(loop), Random(1), faults)

    async def main() -> T:
        current_process.set(process)
        return await process.scheduler.start(process, work)

    with mock.patch.multiple(local, os=DiskOs, Path=DiskPath):
        return simulate(main, loop_factory=lambda: loop)
