"""A user's job as it might be written: read, process, acknowledge, store the positions."""

from __future__ import annotations

import asyncio
import math
from functools import partial
from typing import TYPE_CHECKING, Final, final

from fanout.core.checkpoint import Checkpoint
from fanout.core.drain import Drained
from fanout.core.events import Batch
from fanout.core.opening import open_stream, resolve_start
from fanout.errors import FanOutError, PositionError
from fanout.testing.virtual_time.loop import running_loop
from tests.provers.simulation.kinesis.faults import KinesisFaultKind, KinesisFaultSite
from tests.provers.simulation.kinesis.oracle.failure_check import check_stays_failed
from tests.provers.simulation.randomness import happens

if TYPE_CHECKING:
    from fanout.core.fan_out import FanOut
    from fanout.core.source import Source
    from tests.provers.simulation.job.process_run import ProcessRun
    from tests.provers.simulation.job.world import SourceReading, SourceWorld

__all__ = ("SimJob",)

# A read that will be cancelled as something comes waits no longer than this, in seconds.
_UNTIL_SOMETHING_COMES: Final = 300.0
_ON_READING: Final = {
    KinesisFaultKind.SLOW,
    KinesisFaultKind.BLOCKED,
    KinesisFaultKind.CANCELLED,
    KinesisFaultKind.RAISES,
}


class _ReaderError(Exception):
    """The job itself has failed."""


@final
class SimJob:
    """Read a stream as one process does.

    Args:
        world: The simulated world around it.
        run: The process.
    """

    def __init__(self, world: SourceWorld, run: ProcessRun) -> None:
        self.left_at = 0.0
        self.busy_until = 0.0
        self.closing_took = 0.0
        self._blocked_before = 0.0
        self._world = world
        self._run = run
        self._witness = world.witness(run)
        self._reading: SourceReading | None = None
        self._drained: Drained | None = None
        self._pending: list[Batch] = []
        self._leave: asyncio.Timeout | None = None

    def leave(self) -> bool:
        """Let the job close its stream and end; return whether it has one."""
        if self._leave is None:
            return False
        self._leave.reschedule(self._now)
        self._leave = None
        return True

    async def live(self) -> None:
        """Run from the stored positions until everything is read, or until asked to leave.

        Raises:
            FanOutError: The stream cannot be opened, or has failed.
        """
        source = self._world.source(self._run)
        positions = await self._begin(source)
        opening = open_stream(
            source,
            resume=positions,
            on_resubscribe=self._witness.resubscribes,
            random=self._world.product,
        )
        try:
            async with opening as stream:
                self._run.opened = True
                self._witness.opened(stream)
                await self._use(stream)
        except _ReaderError:
            return
        finally:
            if self.left_at:
                # Another process may block the loop that they share.
                blocked = running_loop().blocked - self._blocked_before
                self.closing_took = self._now - self.left_at - blocked

    def look_back(self) -> None:
        """Check what the process leaves, and what was reported to it.

        Raises:
            OracleError: If a promise is broken.
        """
        self._witness.closed()

    @property
    def missing(self) -> dict[str, int]:
        """The number of rows of each shard that are still to come."""
        if self._reading is None:
            return {"every shard": -1}
        return self._reading.missing(self._world.plan.broken)

    @property
    def generations(self) -> int:
        """The number of shards, one continuing the other, still to be read; at least one."""
        if self._reading is None:
            return self._world.oracle.generations
        return self._reading.generations()

    @property
    def done(self) -> bool:
        """Whether there is nothing left to wait for."""
        return self._world.armed.stopped and not self.missing

    @property
    def _now(self) -> float:
        return self._world.now

    async def _begin(self, source: Source) -> str:
        """Return where to go on; at the very first, resolve the start and store it."""
        oracle, store = self._world.oracle, self._world.store
        for positions in store.versions:
            try:
                self._reading = oracle.begin(positions, self._run)
            except PositionError:
                continue
            return positions
        positions = await resolve_start(source)
        self._reading = oracle.begin(positions, self._run, anew=True)
        while True:
            try:
                await store.save(positions, self._run)
            except OSError:
                await asyncio.sleep(1)
            else:
                return positions

    async def _use(self, stream: FanOut) -> None:
        """Read until there is nothing left to wait for, or until asked to leave."""
        try:
            async with asyncio.timeout(None) as leave:
                self._leave = leave
                await self._read(stream)
        except TimeoutError:
            if not leave.expired():
                raise
        finally:
            self._leave = None
            self.left_at, self._blocked_before = self._now, running_loop().blocked
            if self._reading is not None:
                self._witness.closing(self._reading)

    async def _read(self, stream: FanOut) -> None:
        reads = 0
        while not self.done:
            self._witness.looks()
            patience = await self._pause()
            try:
                async with asyncio.timeout(patience) as waiting:
                    if patience == _UNTIL_SOMETHING_COMES:
                        self._run.held.on_take = partial(self._interrupt, waiting)
                    batches = await self._next(stream)
            except TimeoutError:
                if not waiting.expired():
                    raise
                continue
            except FanOutError as error:
                await check_stays_failed(stream, error, self._run, self._world)
                raise
            finally:
                self._run.held.on_take = None
            for batch in batches:
                if not self._run.dead and self._reading is not None:
                    self._world.armed.note(f"got {batch.num_records} of {batch.split.id}")
                    self._reading.deliver(batch)
                    self._run.held.get(batch)
            await self._process()
            await self._acknowledge(stream, batches)
            reads += 1
            if reads % self._world.plan.checkpoint_every == 0:
                await self._checkpoint(stream)

    async def _pause(self) -> float:
        """Let what happens to a job happen; return how long it waits for records."""
        fault = self._world.armed.strike(KinesisFaultSite.JOB, self._now, kinds=_ON_READING)
        if fault is None:
            return self._world.random.uniform(1, 300)
        match fault.kind:
            case KinesisFaultKind.SLOW:
                self.busy_until = self._now + fault.seconds
                await asyncio.sleep(fault.seconds)
            case KinesisFaultKind.BLOCKED:
                running_loop().block(fault.seconds)
            case KinesisFaultKind.RAISES:
                raise _ReaderError
            case _ if happens(self._world.random, 0.5):
                return _UNTIL_SOMETHING_COMES
            case _:
                pass
        return fault.seconds

    def _interrupt(self, waiting: asyncio.Timeout) -> None:
        """Cancel a read at the moment in which there is something to read."""
        self._run.held.on_take = None
        waiting.reschedule(self._now)

    async def _process(self) -> None:
        """Take as long with records as a job may."""
        fault = self._world.armed.strike(
            KinesisFaultSite.JOB, self._now, kinds={KinesisFaultKind.SLOW}
        )
        if fault is not None:
            self.busy_until = self._now + fault.seconds
            await asyncio.sleep(fault.seconds)

    async def _next(self, stream: FanOut) -> tuple[Batch, ...]:
        random, reading = self._world.random, self._world.plan.reading
        self._drained = None
        if reading == "iterate" or (reading == "mixed" and happens(random, 0.5)):
            return (await anext(stream),)
        held = self._run.held
        held.drain_rows = random.choice((1, 2, 7, 1000))
        try:
            self._drained = await stream.drain(
                max_records=held.drain_rows,
                max_bytes=random.choice((1, 300, 1 << 20)),
                max_wait=random.choice((0.0, 0.01, 1.0, 20.0)),
                first_wait=math.inf,
            )
        except asyncio.CancelledError:
            held.excuse()
            raise
        finally:
            held.drain_rows = 0
        return self._drained.batches

    async def _acknowledge(self, stream: FanOut, batches: tuple[Batch, ...]) -> None:
        random = self._world.random
        match self._world.plan.acknowledging:
            case "each":
                for batch in batches:
                    await self._is_done_with(stream, batch)
            case "twice":
                for batch in (*batches, *batches):
                    await self._is_done_with(stream, batch)
            case "some":
                self._pending = [*self._pending[-9:], *batches]
                random.shuffle(self._pending)
                for _ in range(random.randrange(1 + len(self._pending))):
                    await self._is_done_with(stream, self._pending.pop())
            case "all":
                await self._is_done_with(stream, self._drained or stream.delivered)

    async def _is_done_with(self, stream: FanOut, what: Batch | Drained | Checkpoint) -> None:
        await stream.acknowledge(what)
        if self._reading is None:
            return
        match what:
            case Batch():
                self._reading.acknowledge({what.split.id: what.range.until})
            case Drained(positions=snapshot) | (Checkpoint() as snapshot):
                splits = snapshot.splits
                self._reading.acknowledge({id_: splits[id_].position for id_ in splits})

    async def _checkpoint(self, stream: FanOut) -> None:
        match self._world.plan.storing:
            case "positions":
                positions = stream.positions
                if self._reading is not None:
                    self._reading.check_acknowledged(positions)
            case "drained" if self._drained is not None:
                positions = self._drained.positions.to_json()
            case _:
                positions = stream.delivered.to_json()
        if not self._run.dead and self._reading is not None:
            self._reading.check_stored(positions)
        try:
            await self._world.store.save(positions, self._run)
        except OSError:
            return  # the next checkpoint stores these positions too
