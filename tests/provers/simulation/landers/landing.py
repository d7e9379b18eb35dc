"""The driver of a landing: the library's own `open_landing`, whose processes are simulated."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast, final

from fanout.core import opening as opening_module
from fanout.core.cancellation import TaskScope
from fanout.errors import CheckpointError
from fanout.landers import processes as processes_module
from fanout.landers.processes import read_by_processes
from fanout.landing import lander as landing_module
from fanout.landing.lander import open_landing
from fanout.landing.log.reading import BatchLimits, ReadingOptions
from fanout.landing.segments import bad_records as bad_records_module
from fanout.landing.segments import partitions as partitions_module
from fanout.landing.segments.partitions import partition_fields
from fanout.landing.segments.segments import OpenSegment
from tests.provers.simulation.landers.bucket import (
    BAD,
    HOST,
    LANDING,
    BucketStorage,
    SimExecutor,
    noting,
)
from tests.provers.simulation.landers.driver import Driver

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from fanout.landers.channel import Channel
    from fanout.landers.task import LanderTask
    from fanout.landing.lander import Landing
    from tests.provers.simulation.landers.bucket import Bucket

__all__ = ("LandingDriver", "stand_ins")


@final
class LandingDriver(Driver):
    """One run of a landing by several processes."""

    _landing: Landing | None = None
    _task: LanderTask | None = None

    async def _run(self) -> None:
        HOST.set(self)
        plan = self._world.plan
        limits = BatchLimits(plan.max_records, 1 << 20, plan.max_wait)
        reading = partial(
            read_by_processes,
            processes=plan.landers,
            storage_options=None,
            options=ReadingOptions(limits, "none", available_now=False, on_resubscribe=None),
        )
        try:
            async with open_landing(
                cast("Any", self._world.source),
                LANDING,
                reading,
                partitions_of=lambda schema: partition_fields(schema, plan.partition_by, None),
                spark_log=False,
                bad_records=BAD,
            ) as self._landing:
                async for _ in self._landing:
                    slow = 4.0 if self._slow else 0.0
                    await asyncio.sleep(self._random.uniform(0.0, plan.handling + slow))
                assert self.coordinator is not None
                self._check_finished(self.coordinator)
        except CheckpointError as error:
            self._excuse(error)

    def stop(self, *, at_once: bool = True) -> None:
        """Let it be cancelled; or land what was read, as at SIGTERM."""
        if at_once:
            self._stopping = True
            self.task.cancel()
        else:
            self._finish()

    def _finish(self) -> None:
        if self._landing is not None:
            super()._finish()

    def _read_no_more(self) -> None:
        assert self._landing is not None
        self._landing.stop()

    def _work(self) -> LanderTask:
        assert self._task is not None
        return self._task

    async def _end_task(self) -> None:
        while not self.task.done():  # it does not wait for its processes
            self.task.cancel()
            await asyncio.wait([self.task], timeout=0.1)

    @asynccontextmanager
    async def listen(self, serve: Callable[[Channel], Awaitable[None]]) -> AsyncIterator[Any]:
        """Stand in for `ControlServer`."""
        network = self._world.network
        async with TaskScope() as serving:

            def accept(channel: Channel) -> None:
                serving.spawn(cast("Any", serve(channel)))

            network.listen(self.number, accept)
            try:
                yield SimpleNamespace(address=("driver", self.number))
            finally:
                network.listen_no_longer(self.number)

    async def run_lander(self, processes: Any, lander: int) -> None:
        """Stand in for a process of `_Processes` until it ends, and with it its twin."""
        self.coordinator, self._task = processes._coordinator, processes._task
        self.filled_as = processes._task.run
        begun = len(self._processes)
        process = self._start(lander)
        try:
            await asyncio.wait([process.task])
            while (current := self._current[lander]) is not process:
                process = current
                await asyncio.wait([process.task])
        finally:
            for each in self._processes[begun:]:
                if each.lander == lander and not self.dead:
                    await each.kill(silently=False)


def _driver() -> LandingDriver:
    driver = HOST.get()
    assert isinstance(driver, LandingDriver)
    return driver


def stand_ins(bucket: Bucket, steps: Random) -> Iterator[tuple[Any, str, Any]]:
    """Yield what takes the place of what a landing opens and starts."""

    def open_storage(location: str, _: object = None) -> BucketStorage:
        return BucketStorage(bucket, HOST.get(), location)

    # An hour: no run is so long.
    yield landing_module, "_IDLE_SECONDS", 20.0
    for module in (landing_module, bad_records_module):
        yield module, "open_storage", open_storage
    for module in (opening_module, processes_module):
        yield module, "Random", lambda: Random(steps.random())
    yield partitions_module, "ThreadPoolExecutor", lambda most, _: SimExecutor(most, bucket.threads)
    yield OpenSegment, "add", noting(bucket)
    yield processes_module, "ControlServer", lambda *options: _driver().listen(options[-1])
    yield processes_module, "_pickled", lambda task: task
    yield processes_module, "keeping_bad_records", lambda source: source
    yield (
        processes_module._Processes,
        "_run",
        lambda processes, lander: _driver().run_lander(processes, lander),
    )
