"""One process of a simulated job: how it starts and ends, and what it leaves behind."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final, final

from fanout.errors import FanOutError
from fanout.testing.virtual_time.loop import running_loop
from tests.provers.simulation.errors import OracleError
from tests.provers.simulation.job.job import SimJob
from tests.provers.simulation.job.process_run import ProcessRun
from tests.provers.simulation.kinesis.oracle.held_events import HeldEvents

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.provers.simulation.job.world import SourceWorld

__all__ = ("SimProcess",)

# A job that is asked to leave may just be storing its positions, and its store may be slow.
_STORE_GRACE: Final = 300.0
# What a generation of shards may have to wait for once nothing goes wrong any more, in seconds: a
# drain that had begun collects, twice; the rest is in the options of the stream.
_OF_A_DRAIN: Final = 40.0
# What was under way as it was repaired: a call or a write that hangs, and a consumer's creation.
_UNDER_WAY: Final = 120.0 + 60.0


@final
class SimProcess:
    """One process of the job; it starts when it is created.

    `leaves_at` is when it has to leave, because another one has taken its place.

    Args:
        world: The simulated world around it.
        number: Its number, from 1.
        note: Receives a line for each event of the process.
    """

    def __init__(self, world: SourceWorld, number: int, note: Callable[[str], None]) -> None:
        self.leaves_at = math.inf
        may_drain = world.plan.reading != "iterate"
        held = HeldEvents(world.pacing.max_bytes_in_flight, may_drain=may_drain)
        self.run = ProcessRun(number, held)
        self.job = SimJob(world, self.run)
        self._world = world
        self._note = note
        self._blocked_before = running_loop().blocked
        note(f"process {number} starts")
        self.task = asyncio.create_task(self.job.live(), name=f"process {number}")

    async def kill(self) -> None:
        """Kill it: cancelled code still runs, but reaches neither service nor store."""
        self.run.dead = True
        self.task.cancel()
        await asyncio.wait({self.task}, timeout=_STORE_GRACE)

    async def request_stop(self) -> None:
        """Ask it to leave, and wait until it has."""
        if not self.job.leave():
            self.task.cancel()
        await asyncio.wait({self.task}, timeout=_STORE_GRACE)

    async def end(self) -> None:
        """Cancel it, and wait until it is over."""
        self.task.cancel()
        await asyncio.wait({self.task})

    def look_back(self) -> FanOutError | None:
        """Check what it leaves after its end; return its failure.

        Raises:
            OracleError: If it leaves something, or has failed for nothing.
        """
        world, run = self._world, self.run
        self._note(f"process {run.number} is over")
        failure = None if self.task.cancelled() else self.task.exception()
        if failure is not None and not isinstance(failure, FanOutError):
            raise failure
        self.job.look_back()
        if left := world.live_of(run):
            raise OracleError(f"leaked: connections to {left} are left open")
        if self.job.closing_took > world.grace:
            raise OracleError(f"late: closing took {self.job.closing_took:g} s")
        if failure is None:
            return None
        self._note(f"failed: {failure}")
        # Another process may block the loop that they share.
        run.hindered |= running_loop().blocked > self._blocked_before
        world.judge(failure, run)
        return failure

    @property
    def recovery(self) -> float:
        """The seconds that all missing records may take to come, without faults."""
        pacing = self._world.pacing
        generation = (
            pacing.subscribe_timeout
            + pacing.silence_timeout
            + 2 * pacing.backoff.cap
            + pacing.slow
            + (pacing.discovery_interval or 0.0)
            + _OF_A_DRAIN
        )
        own = max(0.0, self.job.busy_until - self._world.now)
        return _UNDER_WAY + own + self.job.generations * generation
