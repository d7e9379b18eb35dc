"""The process of a driver: every operation passes here, and it can end before any of them."""

from __future__ import annotations

import asyncio
import os
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from tests.provers.simulation.randomness import happens
from tests.provers.simulation.spark.disk import Disk
from tests.provers.simulation.spark.faults import (
    DiskRefusal,
    DriverKill,
    LostAnswer,
    PowerLoss,
    SlowOperation,
)
from tests.provers.simulation.spark.threads import ThreadKilled

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from tests.provers.simulation.spark.faults import DriverFault
    from tests.provers.simulation.spark.threads import SimThread, Threads

__all__ = ("SimDriverProcess", "SimJvm", "SimMachine", "current_process")

current_process: ContextVar[SimDriverProcess] = ContextVar("current process")

# Seconds that an operation takes on the average; enough for two drivers to change places.
_LATENCY = 0.0005
_STALL = 1.0


@final
@dataclass(slots=True, eq=False)
class SimJvm:
    """The JVM of a driver, which outlives its Python for a while."""

    alive: bool = True

    def end(self) -> None:
        """Let it be gone, and its locks with it."""
        self.alive = False


@final
@dataclass(eq=False)
class SimMachine:
    """A disk, and the processes that stop with it.

    Args:
        random: What survives a loss of power.
    """

    random: Random
    disk: Disk = field(default_factory=Disk)
    processes: list[SimDriverProcess] = field(default_factory=list)

    def lose_power(self) -> None:
        """End every process at once, and forget what was not fsynced."""
        for process in self.processes:
            process.jvm.alive = False
            process.end()
        self.disk.lose_power(self.random)


@final
@dataclass(eq=False)
class SimDriverProcess:
    """A driver's Python on a machine, with its JVM.

    Args:
        name: For the trace.
        machine: Where it runs.
        scheduler: Blocks and starts its threads.
        random: How long operations take.
        faults: What happens to it; each happens once.
        stalls: The share of operations that take seconds.
    """

    name: str
    machine: SimMachine
    scheduler: Threads
    random: Random
    faults: Sequence[DriverFault] = ()
    stalls: float = 0.0
    jvm: SimJvm = field(default_factory=SimJvm)
    alive: bool = True
    operations: int = 0
    effects: int = 0
    happened: list[DriverFault] = field(default_factory=list)
    threads: dict[SimThread, None] = field(default_factory=dict)
    tasks: dict[asyncio.Task[Any], None] = field(default_factory=dict)
    unexpected: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.machine.processes.append(self)

    @property
    def disk(self) -> Disk:
        """The machine's disk."""
        return self.machine.disk

    def check_alive(self) -> None:
        """Return while the process lives.

        Raises:
            Killed: If it does not.
        """
        if not self.alive:
            raise ThreadKilled

    def operation(
        self, name: str, target: str, *, effect: bool = True
    ) -> LostAnswer | SlowOperation | None:
        """Begin an operation; others may run before it is done.

        Args:
            name: What is done.
            target: To what.
            effect: Whether it changes something.

        Returns:
            What the caller has to do about it itself: answer with an error, or take its time.

        Raises:
            Killed: If the process is dead, or dies here.
            OSError: If the plan says that it is refused.
        """
        self.check_alive()
        stalled = happens(self.random, self.stalls)
        self.scheduler.sleep(self.random.expovariate(1 / (_STALL if stalled else _LATENCY)))
        self.operations += 1
        self.effects += effect
        self.scheduler.loop.note(f"{self.name} {name} {target}")
        left: LostAnswer | SlowOperation | None = None
        for fault in self.faults:
            match fault:
                case DriverKill(number) | PowerLoss(number) if effect and number == self.effects:
                    self._end_by(fault)
                    raise ThreadKilled
                case DiskRefusal(first, code, times) if first <= self.operations < first + times:
                    self.happened.append(fault)
                    raise OSError(code, os.strerror(code), target)
                case SlowOperation(number) | LostAnswer(number) if number == self.operations:
                    self.happened.append(fault)
                    left = fault
                case _:
                    pass
        return left

    async def request(self, name: str) -> None:
        """Ask a service for something, on the loop; the process may end before that."""
        await asyncio.sleep(self.random.expovariate(1 / _LATENCY))
        self.effects += 1
        self.scheduler.loop.note(f"{self.name} {name}")
        for fault in self.faults:
            if isinstance(fault, DriverKill | PowerLoss) and fault.effect == self.effects:
                self._end_by(fault)
                await (
                    self.scheduler.loop.create_future()
                )  # the tasks of a dead process are cancelled

    def slow_operation(self, name: str, target: str, *, effect: bool = True) -> None:
        """Begin an operation, and let it take as long as the plan says."""
        match self.operation(name, target, effect=effect):
            case SlowOperation(seconds=seconds):
                self.scheduler.sleep(seconds)
            case _:
                pass

    def _end_by(self, fault: DriverKill | PowerLoss) -> None:
        self.happened.append(fault)
        match fault:
            case DriverKill(linger=linger):
                self.end()
                self.scheduler.loop.call_later(linger, self.jvm.end)
            case PowerLoss():
                self.machine.lose_power()

    def end(self) -> None:
        """Let nothing of this process run any more; its `finally` blocks change nothing."""
        self.alive = False
        for thread in self.threads:
            thread.kill()
        for task in self.tasks:
            task.cancel()

    def abandon(self) -> None:
        """End what is left after a simulation that has failed, and whose loop is closed."""
        self.alive = False
        for thread in self.threads:
            thread.abandon()

    def note_end(self, done: asyncio.Future[Any]) -> None:
        """Remember what a thread raised that is not joined."""
        if not done.cancelled() and (error := done.exception()) is not None:
            self.unexpected.append(error)

    async def reap(self) -> None:
        """Wait until no thread and no task of a dead process is left."""
        while self.threads or self.tasks:
            if self.tasks:
                await asyncio.wait(self.tasks)
            await asyncio.sleep(0)
