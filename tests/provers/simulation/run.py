"""One simulated run: faults, repair, and the proof that everything arrived once and in order."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, final

from fanout.testing.virtual_time.loop import SimLoop, simulate
from fanout.testing.virtual_time.trace import Trace
from tests.provers.simulation.errors import OracleError, SimulationError
from tests.provers.simulation.job.process import SimProcess
from tests.provers.simulation.kafka.plan import KafkaPlan
from tests.provers.simulation.kafka.plan_draws import draw_kafka_plan
from tests.provers.simulation.kafka.world import KafkaWorld
from tests.provers.simulation.kinesis.faults import PROCESS_FAULTS, KinesisFaultKind
from tests.provers.simulation.kinesis.plan import KinesisPlan
from tests.provers.simulation.kinesis.plan_draws import draw_kinesis_plan
from tests.provers.simulation.kinesis.world import KinesisWorld
from tests.provers.simulation.landers.plan import LandersPlan
from tests.provers.simulation.landers.run import run_landers_plan
from tests.provers.simulation.outcome import RunOutcome
from tests.provers.simulation.randomness import happens, stream_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from fanout.errors import FanOutError
    from tests.provers.simulation.job.world import SourceWorld
    from tests.provers.simulation.kinesis.faults import KinesisFault
    from tests.provers.simulation.plans import AnyPlan

__all__ = ("RunOutcome", "run_kafka_seed", "run_kinesis_seed", "run_plan")


# Who looks after a process starts it again: at once, or later where it did not even begin.
_RESTART: Final = 1.0
_RESTART_AGAIN: Final = 15.0


def run_kafka_seed(seed: int) -> RunOutcome:
    """Run the plan of a seed over Kafka; see `run_plan`."""
    return run_plan(draw_kafka_plan(seed))


def run_kinesis_seed(seed: int) -> RunOutcome:
    """Run the plan of a seed; see `run_plan`."""
    return run_plan(draw_kinesis_plan(seed))


def run_plan(plan: AnyPlan, trace: Trace | None = None) -> RunOutcome:
    """Run a plan.

    Args:
        plan: What happens.
        trace: Where it is noted; None for nowhere.

    Raises:
        SimulationError: If a promise of the library was broken.
    """
    if isinstance(plan, LandersPlan):
        return run_landers_plan(plan, trace)
    trace = trace or Trace()

    def loop() -> SimLoop:
        return SimLoop(schedule=plan.task_order(), trace=trace)

    try:
        return simulate(_Run(plan, trace).conduct, loop_factory=loop)
    except Exception as error:
        raise SimulationError(f"{type(error).__name__}: {error}\n{plan.to_json()}") from error


def _world_of(plan: KinesisPlan | KafkaPlan, note: Callable[[str], None]) -> SourceWorld:
    match plan:
        case KafkaPlan():
            return KafkaWorld(plan, note)
        case KinesisPlan():
            return KinesisWorld(plan, note)


@final
class _Run:
    def __init__(self, plan: KinesisPlan | KafkaPlan, trace: Trace) -> None:
        self._plan = plan
        self._trace = trace
        self._world = _world_of(plan, self._note)
        self._random = stream_of(plan.seed, "processes")
        self._ends = deque(f for f in plan.faults if f.kind in PROCESS_FAULTS)
        self._predecessor: SimProcess | None = None
        self._runs = 0
        self._repaired_at = float("inf")
        self._allowed = 0.0
        self._recovery = 0.0
        self._slowest_close = 0.0

    async def conduct(self) -> RunOutcome:
        """Run the job through its faults, then without, and look at what it leaves."""
        self._strikes = asyncio.create_task(self._world.strike_service(), name="weather")
        try:
            with self._world.observed():
                while not await self._run_process():
                    pass
                await self._dismiss()
        finally:
            self._strikes.cancel()
            await asyncio.wait({self._strikes})
        world = self._world
        if world.violations:
            raise OracleError(f"broke a rule: {'; '.join(world.violations)}")
        return RunOutcome(
            seed=self._plan.seed,
            digest=self._trace.digest,
            steps=self._trace.steps,
            seconds=world.now,
            records=world.oracle.checked,
            replayed=world.oracle.replayed,
            restarts=self._runs - 1,
            calls=dict(world.calls),
            faults=dict(world.struck),
            moments={name: times for name, times in world.moments.items() if times},
            recovery=self._recovery,
            close=self._slowest_close,
        )

    async def _run_process(self) -> bool:
        """Run the job's process once; return whether there is nothing more to see."""
        self._runs += 1
        process = self._newest = SimProcess(self._world, self._runs, self._note)
        try:
            pause = await self._watch(process)
            if process is self._predecessor:
                return False
        finally:
            if process is not self._predecessor:
                await process.end()
        failure = self._look_back(process)
        if self._world.gone:
            return True
        if process.job.done and failure is None and not process.run.dead:
            self._recovery = max(0.0, process.job.left_at - self._repaired_at)
            return True
        await asyncio.sleep(pause)
        return False

    async def _watch(self, process: SimProcess) -> float:
        """Wait until the process is over, or end it; return the pause before the next one."""
        while True:
            end = self._ends[0] if self._ends else None
            until = self._deadline if end is None else end.at
            if self._predecessor is not None:
                until = min(until, self._predecessor.leaves_at)
            await asyncio.wait({process.task}, timeout=max(0.0, until - self._world.now))
            if process.task.done():
                return _RESTART if process.run.opened else _RESTART_AGAIN
            if self._predecessor is not None and until == self._predecessor.leaves_at:
                await self._dismiss()
            elif end is not None:
                self._ends.popleft()
                return await self._end(process, end)
            elif self._world.armed.stopped and (missing := process.job.missing):
                raise OracleError(f"stuck: rows that never came, by shard: {missing}")
            elif self._world.armed.stopped:
                process.job.leave()  # it waits for more, and there is nothing more
                self._allowed += _RESTART
            else:
                self._repair(process)

    async def _end(self, process: SimProcess, end: KinesisFault) -> float:
        """Let happen to a process what happens to it; return the pause before the next one."""
        self._world.armed.strikes(end)
        match end.kind:
            case KinesisFaultKind.DEPLOYED:
                await self._dismiss()
                process.leaves_at = self._world.now + end.seconds
                self._predecessor = process
                return 0.0
            case KinesisFaultKind.CRASH:
                await process.kill()
            case _:
                await process.request_stop()
        return end.seconds

    async def _dismiss(self) -> None:
        """Let the process whose place another one has taken leave, or kill it."""
        process, self._predecessor = self._predecessor, None
        if process is None:
            return
        if happens(self._random, 0.5):
            await process.kill()
        else:
            await process.request_stop()
        await process.end()
        self._look_back(process)

    def _look_back(self, process: SimProcess) -> FanOutError | None:
        """Look at what a process that is over leaves; return what it has failed of.

        Raises:
            OracleError: If it leaves something, or has failed for nothing.
        """
        self._slowest_close = max(self._slowest_close, process.job.closing_took)
        failure = process.look_back()
        self._check_left(process)
        return failure

    def _check_left(self, process: SimProcess) -> None:
        """Check that nothing is left of a process, where no other one runs at the same time.

        Raises:
            OracleError: If a task or a timer is.
        """
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        if self._predecessor is not None or process is not self._newest:
            return
        ours = [task for task in (asyncio.current_task(), self._strikes) if task is not None]
        tasks, timers = loop.left(ours)
        if tasks or len(timers) > (not self._strikes.done()):
            raise OracleError(f"leaked: process {process.run.number} leaves {tasks} and {timers}")

    @property
    def _deadline(self) -> float:
        repaired = self._world.armed.stopped
        return self._repaired_at + self._allowed if repaired else self._plan.seconds

    def _repair(self, process: SimProcess) -> None:
        """Let nothing go wrong any more, except with one shard."""
        self._note("repaired")
        self._world.repair()
        self._repaired_at = self._world.now
        self._allowed = process.recovery
        if process.job.done:
            process.job.leave()

    def _note(self, event: str) -> None:
        self._trace.event(asyncio.get_running_loop().time(), event)
