"""Run blocking code on a simulated disk, without a query."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, TypeVar
from unittest import mock

from fanout.landing.storage import local_storage
from fanout.testing.virtual_time.loop import SimLoop, simulate
from tests.provers.simulation.spark.disk_stand_ins import DiskOs, DiskPath
from tests.provers.simulation.spark.process import SimDriverProcess, SimMachine, current_process
from tests.provers.simulation.spark.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.provers.simulation.spark.faults import DriverFault

T = TypeVar("T")


def on_disk(machine: SimMachine, work: Callable[[], T], faults: Sequence[DriverFault] = ()) -> T:
    """Run a function in a process of its own on a machine.

    Raises:
        asyncio.CancelledError: If the process was killed.
    """
    loop = SimLoop()
    process = SimDriverProcess("test", machine, Threads(loop), Random(1), faults)

    async def main() -> T:
        current_process.set(process)
        return await process.scheduler.start(process, work)

    with mock.patch.multiple(local_storage, os=DiskOs, Path=DiskPath):
        return simulate(main, loop_factory=lambda: loop)
