"""One simulated run: faults, repair, and the proof that everything arrived once and in order."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, final

from fanout.errors import FanOutError
from fanout.kinesis.registration import DEREGISTRATION_TIMEOUT
from fanout.testing.simulation.armed import Armed
from fanout.testing.simulation.bounds import Hands
from fanout.testing.simulation.faults import Kind, Site
from fanout.testing.simulation.job import Job, World
from fanout.testing.simulation.judge import judge_failure
from fanout.testing.simulation.life import Life
from fanout.testing.simulation.loop import SimLoop, simulate
from fanout.testing.simulation.oracle import Oracle, OracleError
from fanout.testing.simulation.plan import draw_plan, stream_of
from fanout.testing.simulation.service import SimService
from fanout.testing.simulation.source import options_of
from fanout.testing.simulation.store import Store
from fanout.testing.simulation.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.testing.simulation.faults import Fault
    from fanout.testing.simulation.plan import Plan

__all__ = ("Outcome", "SimulationError", "run_plan", "run_seed")

# How long everything may take to arrive once nothing goes wrong any more, in virtual seconds. The
# longest chain is a wait for a person (60 s and jitter), a subscribe call that hangs (60 s) and a
# silent subscription (35 s), for each generation of shards.
_RECOVERY: Final = 900.0
_CLOSE_GRACE: Final = 5.0
# A job that is told to leave may just be storing its positions, and its store may be slow.
_STORE_GRACE: Final = 300.0
_OF_THE_PROCESS: Final = {Kind.CRASH, Kind.CLOSE, Kind.DEPLOYED}


class SimulationError(AssertionError):
    """A run has shown a defect; the text has the plan that shows it again."""


@final
@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run was.

    Args:
        seed: Its seed.
        digest: The hash of its trace.
        steps: The task steps that ran.
        seconds: The virtual seconds that it took.
        records: The records that were checked.
        replayed: Those that came again after a restart.
        restarts: How often the job began anew.
        calls: The calls to the service, by name.
        faults: What went wrong, by kind.
        recovery: The virtual seconds from the repair until everything had arrived.
        close: The virtual seconds that the slowest close took.
    """

    seed: int
    digest: str
    steps: int
    seconds: float
    records: int
    replayed: int
    restarts: int
    calls: Mapping[str, int]
    faults: Mapping[str, int]
    recovery: float
    close: float


def run_seed(seed: int) -> Outcome:
    """Run the plan of a seed; see `run_plan`."""
    return run_plan(draw_plan(seed))


def run_plan(plan: Plan, trace: Trace | None = None) -> Outcome:
    """Run a plan.

    Args:
        plan: What happens.
        trace: Where it is noted; None for nowhere.

    Raises:
        SimulationError: If a promise of the library was broken.
    """
    trace = trace or Trace()

    def loop() -> SimLoop:
        return SimLoop(schedule=plan.task_order(), trace=trace)

    try:
        return simulate(_Run(plan, trace).conduct, loop_factory=loop)
    except Exception as error:
        raise SimulationError(f"{type(error).__name__}: {error}\n{plan}") from error


@dataclass(slots=True, eq=False)
class _Process:
    """One process of the job, from its start to its end.

    Args:
        life: What the service knows of it.
        job: What it does.
        task: Runs it.
        leaves_at: When it has to leave, because another one has taken its place.
    """

    life: Life
    job: Job
    task: asyncio.Task[None]
    leaves_at: float = field(default=float("inf"))


@final
class _Run:
    def __init__(self, plan: Plan, trace: Trace) -> None:
        self._plan = plan
        self._trace = trace
        self._log = plan.log()
        self._service = SimService(
            self._log, stream_of(plan.seed, "service"), heartbeat=plan.heartbeat
        )
        faults = [f for f in plan.faults if f.kind not in _OF_THE_PROCESS]
        self._armed = Armed(faults, self._note)
        self._oracle = Oracle(self._log, self._service)
        self._options = options_of(plan, self._service)
        self._world = World(
            plan,
            self._options,
            self._service,
            self._armed,
            self._oracle,
            Store(self._armed),
            stream_of(plan.seed, "job"),
            stream_of(plan.seed, "product"),
        )
        self._random = stream_of(plan.seed, "processes")
        self._ends = deque(f for f in plan.faults if f.kind in _OF_THE_PROCESS)
        self._predecessor: _Process | None = None
        self._lives = 0
        self._recovery = 0.0
        self._slowest_close = 0.0

    async def conduct(self) -> Outcome:
        """Run the job through its faults, then without, and look at what it leaves."""
        weather = asyncio.create_task(self._weather(), name="weather")
        try:
            while not await self._life():
                pass
            await self._dismiss()
        finally:
            weather.cancel()
            await asyncio.wait({weather})
        if self._service.violations:
            raise OracleError("; ".join(self._service.violations))
        return Outcome(
            seed=self._plan.seed,
            digest=self._trace.digest,
            steps=self._trace.steps,
            seconds=self._service.now,
            records=self._oracle.checked,
            replayed=self._oracle.replayed,
            restarts=self._lives - 1,
            calls=dict(self._service.calls),
            faults=dict(self._armed.struck),
            recovery=self._recovery,
            close=self._slowest_close,
        )

    async def _weather(self) -> None:
        """Let happen to the stream what happens to it."""
        for fault in list(self._armed.of(Site.SERVICE)):
            await asyncio.sleep(fault.at - self._service.now)
            self._armed.strikes(fault)
            self._service.befall(fault)

    async def _life(self) -> bool:
        """Run the job's process once; return whether there is nothing more to see."""
        process = self._start()
        try:
            pause = await self._watch(process)
            if process is self._predecessor:
                return False
        finally:
            if process is not self._predecessor:
                process.task.cancel()
                await asyncio.wait({process.task})
        failure = self._look_back(process)
        if self._service.gone or (process.job.done and failure is None and not process.life.dead):
            return True
        await asyncio.sleep(pause)
        return False

    def _start(self) -> _Process:
        self._lives += 1
        self._note(f"process {self._lives} starts")
        may_drain = self._plan.reading != "iterate"
        life = Life(self._lives, Hands(self._options.max_bytes_in_flight, may_drain=may_drain))
        job = Job(self._world, life)
        task = asyncio.create_task(job.live(), name=f"process {self._lives}")
        return _Process(life, job, task)

    async def _watch(self, process: _Process) -> float:
        """Wait until the process is over, or end it; return the pause before the next one."""
        while True:
            end = self._ends[0] if self._ends else None
            until = self._deadline if end is None else end.at
            if self._predecessor is not None:
                until = min(until, self._predecessor.leaves_at)
            await asyncio.wait({process.task}, timeout=max(0.0, until - self._service.now))
            if process.task.done():
                return 1.0
            if self._predecessor is not None and until == self._predecessor.leaves_at:
                await self._dismiss()
            elif end is not None:
                self._ends.popleft()
                return await self._end(process, end)
            elif self._armed.stopped:
                raise OracleError(f"stuck: rows that never came, by shard: {process.job.missing}")
            else:
                self._repair(process)

    async def _end(self, process: _Process, end: Fault) -> float:
        """Let happen to a process what happens to it; return the pause before the next one."""
        self._armed.strikes(end)
        match end.kind:
            case Kind.DEPLOYED:
                await self._dismiss()
                process.leaves_at = self._service.now + end.seconds
                self._predecessor = process
                return 0.0
            case Kind.CRASH:
                await self._kill(process)
            case _:
                await self._tell(process)
        return end.seconds

    async def _kill(self, process: _Process) -> None:
        # What is cancelled from here on still runs, but reaches neither service nor store.
        process.life.dead = True
        process.task.cancel()
        await asyncio.wait({process.task}, timeout=_STORE_GRACE)

    async def _tell(self, process: _Process) -> None:
        process.job.leave()
        await asyncio.wait({process.task}, timeout=_STORE_GRACE)

    async def _dismiss(self) -> None:
        """Let the process whose place another one has taken leave, or kill it."""
        process, self._predecessor = self._predecessor, None
        if process is None:
            return
        if self._random.random() < 0.5:  # noqa: PLR2004 - as often as not
            await self._kill(process)
        else:
            await self._tell(process)
        process.task.cancel()
        await asyncio.wait({process.task})
        self._look_back(process)

    def _look_back(self, process: _Process) -> FanOutError | None:
        """Look at what a process that is over leaves; return what it has failed of.

        Raises:
            OracleError: If it leaves something, or has failed for nothing.
        """
        life = process.life
        process.job.look_back()
        self._note(f"process {life.number} is over")
        if left := self._service.live_of(life):
            raise OracleError(f"connections to {left} are left open")
        deregisters = self._plan.deregister == "on_close"
        if process.job.closing_took > _CLOSE_GRACE + DEREGISTRATION_TIMEOUT * deregisters:
            raise OracleError(f"closing took {process.job.closing_took:g} s")
        self._slowest_close = max(self._slowest_close, process.job.closing_took)
        failure = None if process.task.cancelled() else process.task.exception()
        if failure is None:
            return None
        if not isinstance(failure, FanOutError):
            raise failure
        self._note(f"failed: {failure}")
        now, gone = self._service.now, self._service.gone
        judge_failure(failure, life, self._options, now, gone=gone)
        return failure

    @property
    def _deadline(self) -> float:
        return self._plan.seconds + (_RECOVERY if self._armed.stopped else 0.0)

    def _repair(self, process: _Process) -> None:
        """Let nothing go wrong any more, except with one shard."""
        self._note("repaired")
        self._armed.stop(self._plan.broken)
        if process.job.done:
            process.job.leave()

    def _note(self, event: str) -> None:
        self._trace.event(asyncio.get_running_loop().time(), event)
