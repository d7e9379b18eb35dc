"""The driver: a coordinator, the batches that take what it has, and the jobs of its landers."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

from fanout.core.checkpoint import Checkpoint
from fanout.core.opening import ResumePoint, open_lineage
from fanout.errors import CheckpointError, FanOutError
from fanout.landers.assignment import Assignment
from fanout.landers.coordinator import Coordinator
from fanout.landers.task import LanderTask
from fanout.landing.log.reading import BatchLimits
from fanout.landing.segments.segment_filler import NoRecords, Stopped
from fanout.landing.segments.segments import LandedBatch
from fanout.testing.virtual_time.loop import running_loop
from tests.provers.simulation.errors import OracleError
from tests.provers.simulation.landers.bucket import Host
from tests.provers.simulation.landers.process import LanderProcess
from tests.provers.simulation.randomness import happens, stream_of

if TYPE_CHECKING:
    from fanout.core.progress import Progress
    from fanout.landers.channel import Channel
    from fanout.landing.segments.segments import SegmentFile
    from tests.provers.simulation.landers.world import World

__all__ = ("FINISH", "Driver")

FINISH: Final = 200.0
"""The most seconds for what was read to land: a few segments, by a slow storage and batches."""

# What the processes of a driver that has died may live on.
_ORPHANED: Final = 30.0


class Driver(Host):
    """One run of the query, from its last entry on.

    Args:
        world: Everything around it.
        number: The number of the run.
    """

    def __init__(self, world: World, number: int) -> None:
        super().__init__()
        self.number = number
        self.coordinator: Coordinator | None = None
        self.filled_as = number  # the number of the run in the names of segments
        self.slow_until = 0.0
        self._world = world
        self._random = stream_of(world.plan.seed, f"driver {number}")
        self._current: dict[int, LanderProcess] = {}
        self._processes: list[LanderProcess] = []
        self._jobs: dict[int, asyncio.Task[None]] = {}
        self._stopping = False
        self._finishing_since: float | None = None
        self._read = 0  # how many splits landers have, since then
        self._filled: dict[str, int] = {}  # what was in segments then
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        """Read until it is stopped or fails."""
        world = self._world
        stored = None if world.stored is None else Checkpoint.from_json(world.stored)
        random = stream_of(self.number, "jitter")
        opening = open_lineage(cast("Any", world.source), ResumePoint(stored), random=random)
        async with opening as opened, asyncio.TaskGroup() as tasks:
            coordinator = self.coordinator = Coordinator(
                opened.connection,
                opened.progress,
                opened.lineage,
                Assignment(world.plan.landers),
                min_records=world.plan.min_records,
                lifecycle=opened.lifecycle,
            )

            def accept(channel: Channel) -> None:
                tasks.create_task(coordinator.serve(channel))

            world.network.listen(self.number, accept)
            try:
                running = tasks.create_task(coordinator.run())
                for lander in range(world.plan.landers):
                    self._jobs[lander] = tasks.create_task(self._keep(lander))
                await self._take_batches(coordinator, opened.progress)
                await coordinator.close()
                for job in self._jobs.values():
                    job.cancel()
                await self._end_processes()
                running.cancel()
            finally:
                world.network.listen_no_longer(self.number)

    def stop(self, *, at_once: bool = True) -> None:
        """Let it end as `query.stop()` does; or as `Landing.stop()` where processes read."""
        if not at_once:
            self._finish()
            return
        self._stopping = True
        if self.coordinator is None:
            self.task.cancel()
        else:
            self.coordinator.stop()

    def _finish(self) -> None:
        if self.coordinator is None or self._finishing_since is not None:
            return
        self._finishing_since = running_loop().time()
        filled = self._world.storage.filled
        self._filled = {
            split: last for (run, split), last in filled.items() if run == self.filled_as
        }
        self._read = sum(lander.splits for lander in self.coordinator.statistics().landers)
        self._read_no_more()

    def _read_no_more(self) -> None:
        assert self.coordinator is not None
        self.coordinator.finish()

    @property
    def finishing(self) -> bool:
        """Whether it reads no more, and has not ended."""
        return self._finishing_since is not None and not self.task.done()

    def check(self) -> None:
        """Check that it ends soon when it reads no more, and gives no split to a lander.

        Raises:
            OracleError: If it does not.
        """
        since = self._finishing_since
        if since is None or self.coordinator is None or self.task.done():
            return
        read = sum(lander.splits for lander in self.coordinator.statistics().landers)
        if read > self._read:
            raise OracleError(f"read on: {read} splits are read after {self._read}")
        self._read = read
        if running_loop().time() - since > FINISH:
            raise OracleError(f"stuck: run {self.number} reads no more, and does not end")

    async def kill(self, *, silently: bool) -> None:
        """End it at once; its landers notice it now, or never where its machine is lost too."""
        for process in self._processes:
            for connection in process.connections:
                if silently:
                    connection.lose(up=True, down=True)
                else:
                    connection.break_off(self._random.uniform(0.0, 1.0), 0.0)
        self._world.network.listen_no_longer(self.number)
        self.end_threads()
        await self._end_task()
        for process in self._processes:
            self._world.end_later(process, self._random.uniform(0.0, _ORPHANED))

    async def _end_task(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])

    # Batches.

    async def _take_batches(self, coordinator: Coordinator, progress: Progress) -> None:
        """Write an entry for what has landed, handle it, and acknowledge it, again and again."""
        world = self._world
        while True:
            try:
                taken = await coordinator.next(self._random.choice((0.5, 5.0, 20.0)))
            except FanOutError as error:
                self._excuse(error)
                return
            match taken:
                case Stopped():
                    return
                case LandedBatch(segments, positions, watermark):
                    await self._write(segments, positions, watermark)
                    if self._slow:
                        await asyncio.sleep(self._random.uniform(0.0, 8.0))
                    await asyncio.sleep(self._random.uniform(0.0, world.plan.handling))
                    progress.acknowledge({id_: at.position for id_, at in positions.splits.items()})
                case NoRecords(positions):
                    if happens(self._random, 0.5):
                        await self._write((), positions)
                    if taken.finished:
                        self._check_finished(coordinator)
                        return

    def _excuse(self, error: FanOutError) -> None:
        """Check that a run fails as the storage has refused a file."""
        world = self._world
        # Its text may have the name of a temporary directory.
        running_loop().note(f"run {self.number} fails: {type(error).__name__}")
        if world.storage.refused <= world.excused or not isinstance(error, CheckpointError):
            raise OracleError(f"failed for nothing: {error!r}") from error
        world.excused = world.storage.refused

    def _check_finished(self, coordinator: Coordinator) -> None:
        """Check that all that was read has landed, unless a lander was lost with it."""
        if self._finishing_since is None:
            raise OracleError("finished: nobody has asked for that")
        if coordinator.orphans._last:
            return
        for split_id, last in self._filled.items():
            if (landed := self._world.oracle.landed(split_id)) < last:
                raise OracleError(
                    f"not landed: {split_id} ends at {landed}, and record {last} was read"
                )

    async def _write(
        self,
        segments: tuple[SegmentFile, ...],
        positions: Checkpoint,
        watermark: int | None = None,
    ) -> None:
        await asyncio.sleep(self._random.uniform(0.0, 4.0 if self._slow else 0.05))
        self._world.oracle.check_entry(segments, positions, watermark)
        self._world.stored = positions.to_json()
        self._world.entry_written.set()

    @property
    def _slow(self) -> bool:
        return running_loop().time() < self.slow_until

    # Jobs of landers.

    async def _keep(self, lander: int) -> None:
        """Run the job of a lander again and again, as Spark and the driver do."""
        assert self.coordinator is not None
        while True:
            await asyncio.sleep(self._random.uniform(0.0, 1.0))
            process = self._start(lander)
            await asyncio.wait([process.task])
            while (current := self._current[lander]) is not process:
                process = current  # a twin, or what Spark has started in its place
                await asyncio.wait([process.task])
            await asyncio.sleep(self._random.uniform(0.0, 3.0))
            if self._current[lander] is not process:
                continue
            if happens(self._random, 0.5):  # otherwise Spark starts the task of the job again
                self.coordinator.task_ended(lander, None)

    def _start(self, lander: int) -> LanderProcess:
        world = self._world
        attempt = world.next_attempt()
        process = LanderProcess(self._work(), world.network, lander=lander, attempt=attempt)
        world.processes.append(process)
        self._processes.append(process)
        self._current[lander] = process
        return process

    def _work(self) -> LanderTask:
        plan = self._world.plan
        return LanderTask(
            source=cast("Any", self._world.source),
            location="memory",
            storage_options=None,
            run=self.number,
            limits=BatchLimits(plan.max_records, 1 << 20, plan.max_wait),
            available_now=False,
            address=("driver", self.number),
            secret=b"",
        )

    def current(self, lander: int) -> LanderProcess | None:
        """Return the newest attempt of a lander."""
        return self._current.get(lander)

    def twin(self, lander: int, seconds: float) -> None:
        """Start a second attempt; the first ends later."""
        if (first := self._current.get(lander)) is not None and not self._stopping:
            self._start(lander)
            self._world.end_later(first, seconds)

    def take_for_ended(self, lander: int, seconds: float) -> None:
        """Take a task for ended that goes on for some time."""
        if self._current.get(lander) is not None and self.coordinator is not None:
            self.coordinator.task_ended(lander, None)
            self.twin(lander, seconds)

    async def _end_processes(self) -> None:
        """Cancel the jobs in Spark, which ends their processes."""
        for process in self._processes:
            with suppress(asyncio.CancelledError):
                await process.kill(silently=False)
