"""One simulated run: faults, repair, and the proof that everything arrived once and in order."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from fanout.errors import FanOutError
from fanout.testing.simulation.armed import Armed
from fanout.testing.simulation.faults import Kind, Site
from fanout.testing.simulation.job import Job
from fanout.testing.simulation.life import Life
from fanout.testing.simulation.loop import SimLoop, simulate
from fanout.testing.simulation.oracle import Oracle, OracleError
from fanout.testing.simulation.plan import draw_plan, stream_of
from fanout.testing.simulation.service import SimService
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
_OF_THE_PROCESS: Final = {Kind.CRASH, Kind.CLOSE}
_DAMAGE_LIMIT: Final = 3
_UNKNOWN_LIMIT: Final = 40


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
        self._job = Job(plan, self._service, self._armed, self._oracle)
        self._ends = deque(f for f in plan.faults if f.kind in _OF_THE_PROCESS)
        self._lives = 0
        self._recovery = 0.0

    async def conduct(self) -> Outcome:
        """Run the job through its faults, then without, and look at what it leaves."""
        weather = asyncio.create_task(self._weather(), name="weather")
        try:
            while not await self._life():
                pass
        finally:
            weather.cancel()
            await asyncio.wait({weather})
        if self._service.violations:
            raise OracleError("; ".join(self._service.violations))
        if self._job.slowest_close > _CLOSE_GRACE:
            raise OracleError(f"closing took {self._job.slowest_close:g} s")
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
            close=self._job.slowest_close,
        )

    async def _weather(self) -> None:
        """Let happen to the stream what happens to it."""
        for fault in list(self._armed.of(Site.SERVICE)):
            await asyncio.sleep(fault.at - self._service.now)
            self._armed.strikes(fault)
            self._service.befall(fault)

    async def _life(self) -> bool:
        """Run the job's process once; return whether there is nothing more to see."""
        self._lives += 1
        life = Life(self._lives)
        self._note(f"process {self._lives} starts")
        struck_before = self._armed.struck.total()
        process = asyncio.create_task(self._job.live(life), name=f"process {self._lives}")
        try:
            pause = await self._watch(process, life)
        finally:
            process.cancel()
            await asyncio.wait({process})
        self._note(f"process {self._lives} is over")
        if left := self._service.live_of(life):
            raise OracleError(f"connections to {left} are left open")
        failure = None if process.cancelled() else process.exception()
        if failure is not None:
            struck = self._armed.struck.total() > struck_before
            self._judge(failure, life, struck=struck)
        if self._service.gone or (self._job.done and failure is None and not life.dead):
            return True
        await asyncio.sleep(pause)
        return False

    async def _watch(self, process: asyncio.Task[None], life: Life) -> float:
        """Wait until the process is over, or end it; return the pause before the next one."""
        while True:
            end = self._ends[0] if self._ends else None
            until = self._deadline if end is None else end.at
            await asyncio.wait({process}, timeout=max(0.0, until - self._service.now))
            if process.done():
                return 1.0
            if end is not None:
                self._ends.popleft()
                await self._end(process, life, end)
                return end.seconds
            if self._job.finishing:
                missing = self._oracle.missing(self._plan.broken)
                raise OracleError(f"stuck: rows that never came, by shard: {missing}")
            self._repair()

    async def _end(self, process: asyncio.Task[None], life: Life, end: Fault) -> None:
        self._armed.strikes(end)
        if end.kind is Kind.CRASH:
            # What is cancelled from here on still runs, but reaches neither service nor store.
            life.dead = True
            process.cancel()
        else:
            self._job.leave()
        await asyncio.wait({process}, timeout=_STORE_GRACE)

    @property
    def _deadline(self) -> float:
        return self._plan.seconds + (_RECOVERY if self._job.finishing else 0.0)

    def _repair(self) -> None:
        """Let nothing go wrong any more, except with one shard."""
        self._note("repaired")
        self._armed.stop(self._plan.broken)
        self._job.finishing = True
        if self._job.done:
            self._job.leave()

    def _judge(self, failure: BaseException, life: Life, *, struck: bool) -> None:
        """Check that a stream that has failed had a reason to.

        Raises:
            OracleError: If everything that went wrong would have passed.
        """
        if not isinstance(failure, FanOutError):
            raise failure
        self._note(f"failed: {failure}")
        if self._service.gone or (struck and not life.opened):
            return
        if any(times >= _DAMAGE_LIMIT for times in life.damage.values()):
            return
        if any(times >= _UNKNOWN_LIMIT for times in life.unknown.values()):
            return
        raise OracleError(f"failed for nothing: {failure}") from failure

    def _note(self, event: str) -> None:
        self._trace.event(asyncio.get_running_loop().time(), event)
