"""One simulated run of a coordinator and landers."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, final
from unittest import mock

from fanout.landers import lander as lander_module
from fanout.landers import task as task_module
from fanout.testing.virtual_time.loop import SimLoop, running_loop, simulate
from fanout.testing.virtual_time.trace import Trace
from tests.provers.simulation.errors import OracleError, SimulationError
from tests.provers.simulation.landers.bucket import (
    BAD,
    HOST,
    LANDING,
    LATEST,
    Bucket,
    BucketStorage,
)
from tests.provers.simulation.landers.driver import FINISH, Driver
from tests.provers.simulation.landers.landing import LandingDriver
from tests.provers.simulation.landers.landing import stand_ins as landing_stand_ins
from tests.provers.simulation.landers.plan import LanderFaultKind, draw_landers_plan
from tests.provers.simulation.landers.process import connect_stand_in
from tests.provers.simulation.landers.splits import FlakyError
from tests.provers.simulation.landers.storage import MemorySegmentLog
from tests.provers.simulation.landers.world import World
from tests.provers.simulation.outcome import RunOutcome
from tests.provers.simulation.randomness import happens, stream_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.provers.simulation.landers.plan import LanderFault, LandersPlan

__all__ = ("run_landers_plan", "run_landers_seed")

# After so many seconds without faults everything is read again: a lander without its coordinator
# tries for a minute, and a subscription may be silent for 20 s.
_RECOVERY: Final = 150.0
_LOOK: Final = 0.25
_KILLS: Final = {LanderFaultKind.KILLED, LanderFaultKind.DRIVER_KILLED}
_UNTIL_PUT: Final = 3.0
# How long the last run of a landing may take to delete what is left.
_SWEEP: Final = 60.0


def run_landers_seed(seed: int) -> RunOutcome:
    """Run the plan of a seed; see `run_landers_plan`."""
    return run_landers_plan(draw_landers_plan(seed))


def run_landers_plan(plan: LandersPlan, trace: Trace | None = None) -> RunOutcome:
    """Run a plan.

    Args:
        plan: What happens.
        trace: Where it is noted; None for nowhere.

    Raises:
        SimulationError: If a promise was broken.
    """
    trace = trace or Trace()

    def loop() -> SimLoop:
        return SimLoop(schedule=plan.task_order(), trace=trace)

    try:
        with TemporaryDirectory() as root:
            return simulate(_Run(plan, trace, Path(root)).conduct, loop_factory=loop)
    except Exception as error:  # noqa: BLE001 - it is the cause of what is raised
        raise SimulationError(f"{_text(error)}\n{plan.to_json()}") from _innermost(error)


def _stand_ins(world: World) -> Iterator[tuple[Any, str, Any]]:
    """Yield what takes the place of what a lander opens."""
    steps = Random(world.plan.seed)
    yield task_module, "connect", connect_stand_in
    yield lander_module, "Random", lambda: Random(steps.random())
    storage = world.storage
    if isinstance(storage, Bucket):
        yield task_module, "open_storage", lambda *_: BucketStorage(storage, HOST.get(), LANDING)
        yield from landing_stand_ins(storage, steps)
        return
    yield task_module, "open_storage", lambda *_: storage
    yield (
        task_module,
        "SegmentLog",
        lambda _, run, __, **options: MemorySegmentLog(storage, run, **options),
    )


def _innermost(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def _text(error: Exception) -> str:
    found = _innermost(error)
    return f"{type(found).__name__}: {found}"


@final
class _Run:
    world: World
    _driver: Driver

    def __init__(self, plan: LandersPlan, trace: Trace, root: Path) -> None:
        self._plan = plan
        self._root = root
        self._trace = trace
        self._random = stream_of(plan.seed, "faults")
        self._runs = 0
        self._repaired = False
        self._deadline = 0.0

    async def conduct(self) -> RunOutcome:
        """Let faults strike, repair everything, and wait until all records have arrived.

        Raises:
            OracleError: If a promise is broken.
        """
        loop = running_loop()
        world = self.world = World(self._plan, self._root)
        loop.workers = world.storage.work
        with ExitStack() as patches:
            for owner, name, stand_in in _stand_ins(world):
                patches.enter_context(mock.patch.object(owner, name, stand_in))
            recovered = await self._run_to_the_end()
            world.look_back()
            restarts, attempts = self._runs - 1, world.next_attempt() - 1
            if self._plan.lands:
                await self._sweep()
        return RunOutcome(
            seed=self._plan.seed,
            digest=self._trace.digest,
            steps=self._trace.steps,
            seconds=loop.time(),
            records=world.oracle.records,
            replayed=0,
            restarts=restarts,
            calls={"attempts of landers": attempts},
            faults=dict(world.faults),
            moments=dict(world.moments),
            recovery=recovered,
            close=0.0,
        )

    async def _run_to_the_end(self) -> float:
        driving = asyncio.create_task(self._drive())
        striking = asyncio.create_task(self._strike())
        try:
            return await self._watch(driving, striking)
        finally:
            striking.cancel()
            driving.cancel()
            await asyncio.wait([driving, striking])
            await self.world.end_all()

    async def _sweep(self) -> None:
        """Let one more run of a landing delete what all before it have left."""
        await asyncio.sleep(LATEST)
        self._driver = self._new_driver()
        await asyncio.sleep(_SWEEP)
        self._driver.stop(at_once=False)
        await self._driver.task
        await self.world.end_all()
        self.world.check_swept()

    def _new_driver(self) -> Driver:
        self._runs += 1
        running_loop().note(f"run {self._runs} begins")
        self.world.look_back()
        return (LandingDriver if self._plan.lands else Driver)(self.world, self._runs)

    async def _watch(self, *tasks: asyncio.Task[None]) -> float:
        """Wait for the end, and check meanwhile; return how long the recovery took."""
        loop, world = running_loop(), self.world
        while not (self._repaired and world.oracle.complete) or self._driver.finishing:
            await asyncio.sleep(_LOOK)
            world.check()
            self._driver.check()
            for task in tasks:
                if task.done():
                    task.result()
            if self._repaired and loop.time() > self._deadline:
                raise OracleError(f"stuck: never came: {world.oracle.missing}")
        return max(0.0, loop.time() - self._plan.seconds)

    async def _drive(self) -> None:
        """Start a driver after the other."""
        try:
            while True:
                self._driver = self._new_driver()
                await asyncio.wait([self._driver.task])
                if not self._driver.task.cancelled():
                    with suppress(FlakyError):  # the service could not be listed at the start
                        self._driver.task.result()
                await asyncio.sleep(self._pause)
        finally:
            if not self._driver.task.done():
                self._driver.stop()
                with suppress(asyncio.CancelledError):
                    await self._driver.task

    @property
    def _pause(self) -> float:
        return self._random.choice((0.5, 5.0))

    async def _strike(self) -> None:
        loop = running_loop()
        for fault in self._plan.faults:
            await asyncio.sleep(max(0.0, fault.at - loop.time()))
            loop.note(str(fault))
            self.world.faults[fault.kind] += 1
            if fault.kind in _KILLS and self.world.bucket and happens(self._random, 0.7):
                location = LANDING if fault.kind is LanderFaultKind.KILLED else BAD
                await self._until_put(self.world.bucket.putting[location])
            await self._let(replace(fault, lander=fault.lander % self._plan.landers))
        await asyncio.sleep(max(0.0, self._plan.seconds - loop.time()))
        loop.note("repaired")
        world = self.world
        world.network.repair()
        world.source.flaky = 0.0
        world.storage.refuses = 0
        world.storage.slow_until = self._driver.slow_until = 0.0
        self._repaired = True
        # What one lander takes that hands over a full segment with each batch.
        plan = self._plan
        batches = sum(world.oracle.missing.values()) / plan.max_records + len(world.logs)
        told = 0.0 if plan.min_records == 1 else 1.0  # how often landers tell what they hold
        of_a_batch = plan.handling + plan.max_wait + told + 6 * plan.latency + 0.5
        self._deadline = loop.time() + _RECOVERY + batches * of_a_batch
        if any(fault.kind is LanderFaultKind.DRIVER_FINISHES for fault in plan.faults):
            self._deadline += FINISH

    async def _until_put(self, putting: asyncio.Event) -> None:
        """Wait until a file is being published, so that a kill leaves something."""
        putting.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(_UNTIL_PUT):
                await putting.wait()
        await asyncio.sleep(self._random.choice((0.0, 0.01, 0.1)))

    async def _let(self, fault: LanderFault) -> None:
        """Let a fault happen."""
        lander, seconds, driver = fault.lander, fault.seconds, self._driver
        until = running_loop().time() + seconds
        match fault.kind:
            case LanderFaultKind.KILLED | LanderFaultKind.MACHINE_LOST as kind:
                if (process := driver.current(lander)) is not None:
                    await process.kill(silently=kind is LanderFaultKind.MACHINE_LOST)
            case LanderFaultKind.ZOMBIE:
                driver.take_for_ended(lander, seconds)
            case LanderFaultKind.TWIN:
                driver.twin(lander, seconds)
            case LanderFaultKind.STORE_SLOW:
                self.world.storage.slow_until = until
            case LanderFaultKind.STORE_REFUSES:
                self.world.storage.refuses += 1
            case LanderFaultKind.BATCHES_SLOW:
                driver.slow_until = until
            case LanderFaultKind.DRIVER_KILLED:
                await driver.kill(silently=happens(self._random, 0.5))
            case LanderFaultKind.DRIVER_STOPPED | LanderFaultKind.DRIVER_FINISHES as kind:
                driver.stop(at_once=kind is LanderFaultKind.DRIVER_STOPPED)
            case _:
                self._let_network(fault)

    def _let_network(self, fault: LanderFault) -> None:
        """Let a fault of the network happen."""
        random, process = self._random, self._driver.current(fault.lander)
        connections = [] if process is None else process.connections
        match fault.kind:
            case LanderFaultKind.SLOW_NETWORK:
                self.world.network.slow(fault.lander, fault.seconds)
            case LanderFaultKind.BROKEN:
                for connection in connections:
                    connection.break_off(random.uniform(0.0, 9.0), random.uniform(0.0, 9.0))
            case LanderFaultKind.LOST:
                up = happens(random, 0.7)
                for connection in connections:
                    connection.lose(up=up, down=not up or happens(random, 0.5))
            case kind:
                up = kind is not LanderFaultKind.CUT_TO_LANDER
                down = kind is not LanderFaultKind.CUT_TO_COORDINATOR
                self.world.network.cut(fault.lander, fault.seconds, up=up, down=down)
