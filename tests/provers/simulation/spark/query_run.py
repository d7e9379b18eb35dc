"""Live through a plan: start driver after driver on one checkpoint, and check what they did."""

from __future__ import annotations

import asyncio
import re
import traceback
from collections import deque
from random import Random
from typing import TYPE_CHECKING, Any, cast, final

from py4j.protocol import Py4JError

from fanout.errors import BatchFailedError, CheckpointError
from fanout.landing.log.entries import BATCHES, batch_ids, entry_name
from fanout.landing.storage.local_storage import LocalStorage
from fanout.spark.query.start_query import foreach_batch
from tests.provers.simulation.spark.arriving_source import ArrivingSource, draw_logs
from tests.provers.simulation.spark.checkpoint_files import ROOT, LocalFiles, RemoteFiles, damage
from tests.provers.simulation.spark.disk import DiskFolder, sync
from tests.provers.simulation.spark.disk_stand_ins import DiskPath
from tests.provers.simulation.spark.faults import (
    DiskRefusal,
    HandlerFails,
    LateList,
    LostAnswer,
    PowerLoss,
)
from tests.provers.simulation.spark.lending_service import LendingService
from tests.provers.simulation.spark.lending_source import LendingSource
from tests.provers.simulation.spark.library_stand_ins import library_stand_ins
from tests.provers.simulation.spark.object_client import Bucket, open_bucket
from tests.provers.simulation.spark.object_store import RemoteStorage
from tests.provers.simulation.spark.oracle import QueryOracle
from tests.provers.simulation.spark.plan import DriverRun
from tests.provers.simulation.spark.process import SimDriverProcess, SimMachine, current_process
from tests.provers.simulation.spark.spark_session import (
    Locks,
    SimDataFrame,
    SimSparkSession,
    SparkCheckpointLog,
)
from tests.provers.simulation.spark.threads import Threads

if TYPE_CHECKING:
    from pathlib import Path

    from fanout.core.source import Source
    from fanout.landing.storage.storage import Storage
    from fanout.testing.virtual_time.loop import SimLoop
    from tests.provers.simulation.spark.checkpoint_files import CheckpointFiles
    from tests.provers.simulation.spark.faults import FileDamage
    from tests.provers.simulation.spark.plan import QueryPlan

__all__ = ("QueryRun",)

# Longer than a run without faults can take, and than anything that a dead driver has left under
# way.
_LONG = 1000.0
_LAST_ATTEMPTS = 4
# A handler may keep the DataFrames of so many batches, the present one included.
_LAZY = 10


class HandlerError(Exception):
    """The user's handler fails, as planned."""


@final
class QueryRun:
    """The drivers of one plan, one after the other or two at a time.

    Args:
        plan: What happens to them.
        loop: The loop in which all of them run.
    """

    def __init__(self, plan: QueryPlan, loop: SimLoop) -> None:
        self.processes: list[SimDriverProcess] = []
        self.errors: list[BaseException] = []
        self._plan = plan
        self._loop = loop
        self._threads = Threads(loop)
        loop.workers = lambda work: self._threads.start(current_process.get(), work)
        self._spark = SparkCheckpointLog()
        self._locks = Locks()
        self._objects: dict[str, bytes] = {}
        lag, lost = plan.list_lag, plan.lost_answers
        self._bucket = Bucket(self._objects, self._random("bucket"), lag, lost)
        self._machine = SimMachine(self._random("survival"))
        self._machine.disk.root.put("data", DiskFolder())
        sync(self._machine.disk.root)
        self._damaged: dict[str, bytes] = {}
        self._running: list[SimDriver] = []
        logs = draw_logs(self._random("load"), plan.splits, plan.records, plan.seconds)
        self._files: CheckpointFiles = (
            RemoteFiles(self._objects) if plan.remote else LocalFiles(self._machine)
        )
        self.oracle = QueryOracle(
            logs,
            self._files,
            self._spark,
            exclusive=not plan.remote,
            lending=plan.lending,
            lists_lag=plan.list_lag > 0,
        )
        self._source: ArrivingSource | LendingSource
        if plan.lending:
            service = LendingService(logs, self._random("lender"), self.oracle.accepted)
            self._source = LendingSource(service)
        else:
            self._source = ArrivingSource(logs, self.oracle.acknowledged)

    async def live(self) -> None:
        """Live through the runs of the plan, and one more that reads what is left.

        Raises:
            ViolationError: If a promise was broken.
        """
        names, claims = self._random("names"), self.oracle.claims
        with library_stand_ins(names, self._locks, self._open_storage, claims):
            async with asyncio.TaskGroup() as drivers:
                for run in self._plan.runs:
                    driver = drivers.create_task(self._live(run))
                    if run.overlap is None:
                        await asyncio.wait([driver])
                    else:
                        await asyncio.sleep(run.overlap)
            await asyncio.sleep(max(self._plan.seconds - self._loop.time(), 0.0) + _LONG)
            await self._finish()
            await asyncio.sleep(_LONG)

    async def _finish(self) -> None:
        """Read what is left, in a run to which nothing happens."""
        for _ in range(_LAST_ATTEMPTS):
            if await self._live(DriverRun(bounded=True, stop_after=_LONG)):
                break
        else:
            self.oracle.violate(f"the last run has failed: {self.errors[-1]!r}")
        self.oracle.finished(max(map(int, self._files.names("runs")), default=0))

    async def _live(self, run: DriverRun) -> bool:
        """Live through one run; return whether it ended without an error."""
        if run.damage is not None and not self._running:
            self._spoil(run.damage)
        driver = SimDriver(self._process(run), run, self._plan, self.oracle)
        for other in self._running:
            other.raced = driver.raced = True
        self._running.append(driver)
        session = SimSparkSession(
            self._spark, self._random(f"{driver.process.name} spark"), self._objects
        )
        error = await driver.live(session, self._source)
        self._running.remove(driver)
        for fault in driver.process.happened:
            if isinstance(fault, PowerLoss):
                self._spark.forget(fault.forgotten)
        if error is None:
            return True
        self.errors.append(error)
        self._judge(driver, error)
        self._restore()
        return False

    def _judge(self, driver: SimDriver, error: BaseException) -> None:
        """Check that an error is the one that there is reason for."""
        kinds = {type(fault) for fault in driver.process.happened}
        expected: set[type[BaseException]] = set()
        # An object storage repeats what had no answer.
        refusals = {DiskRefusal} if self._plan.objects else {DiskRefusal, LostAnswer}
        if kinds & refusals or driver.raced or self._damaged or self._behind:
            expected.add(CheckpointError)
        late = LateList in kinds and re.search("has gone from|the list lags behind", str(error))
        if late:  # the list of the entries was too old to begin with
            expected.add(CheckpointError)
        if kinds & {
            HandlerFails,
            DiskRefusal,
        }:  # a disk that refuses the library refuses a handler too
            expected.add(BatchFailedError)
        if type(error) not in expected:
            stack = "".join(traceback.format_exception(error))
            self.oracle.violate(f"{driver.process.name} has failed for no reason:\n{stack}")

    def _spoil(self, harm: FileDamage) -> None:
        random, done = self._random(f"damage {len(self.processes)}"), self._spark.commits
        harmed = damage(self._files, harm, random, max(done, default=-1))
        if harmed is not None:
            name, data = harmed
            self._damaged.setdefault(name, data)
            self.oracle.damaged.add(name)

    def _restore(self) -> None:
        """Do what the errors say: restore damaged files, and the offsets that Spark has lost."""
        for name, data in self._damaged.items():
            # An entry that newer ones follow is not needed, and its segment has gone by now.
            missed = not name.startswith(BATCHES) or name > entry_name(self._newest)
            if missed or self._files.read(name, durable=False) is not None:
                self._files.put(name, data)
        self._damaged.clear()
        self.oracle.damaged.clear()
        if self._behind:
            self._spark.restore(self._newest)

    @property
    def _newest(self) -> int:
        return max(batch_ids(self._files.names(BATCHES)), default=-1)

    @property
    def _behind(self) -> bool:
        """Whether Spark asks for a batch older than the newest that the ledger holds."""
        return self._spark.next_id < self._newest

    def _process(self, run: DriverRun) -> SimDriverProcess:
        name = f"driver {len(self.processes) + 1}"
        machine = SimMachine(self._random(name)) if self._plan.remote else self._machine
        chance, stalls = self._random(f"{name} time"), self._plan.stalls
        process = SimDriverProcess(name, machine, self._threads, chance, run.faults, stalls)
        self.processes.append(process)
        return process

    def _open_storage(self, *_: object) -> Storage:
        if self._plan.objects:
            return open_bucket(self._bucket)
        if self._plan.remote:
            return RemoteStorage(self._objects)
        return LocalStorage(cast("Path", DiskPath(ROOT)))

    def _random(self, purpose: str) -> Random:
        return Random(f"{self._plan.seed}/{purpose}")


@final
class SimDriver:
    """One process that runs the query.

    Args:
        process: The process.
        run: The plan of the driver.
        plan: How large its batches are, and how slow its handler.
        oracle: Receives each call of the handler.
    """

    def __init__(
        self, process: SimDriverProcess, run: DriverRun, plan: QueryPlan, oracle: QueryOracle
    ) -> None:
        self.process = process
        self.raced = False
        self._run = run
        self._plan = plan
        self._oracle = oracle
        self._calls = 0
        self._lazy: deque[tuple[int, SimDataFrame]] = deque(maxlen=_LAZY)

    async def live(self, session: SimSparkSession, source: Source) -> BaseException | None:
        """Run the query until it ends, or the process does; return what it raised."""
        current_process.set(self.process)  # in the context of this task
        scheduler = self.process.scheduler
        done = scheduler.start(self.process, lambda: self._query(session, source))
        await asyncio.wait([done])
        await self.process.reap()
        if self.process.alive:
            self.process.jvm.end()
            self.process.alive = False
        for error in self.process.unexpected:
            self._oracle.violate(f"a thread of {self.process.name} has raised {error!r}")
        return None if done.cancelled() else done.exception()

    def _query(self, session: SimSparkSession, source: Source) -> None:
        query = foreach_batch(
            cast("Any", session),
            cast("Any", source),
            cast("Any", self._handle),
            checkpoint_location="checkpoint",
            max_records=self._plan.max_records,
            max_bytes=self._plan.max_bytes,
            min_records=self._plan.min_records,
            available_now=self._run.bounded,
        )
        if not query.await_termination(self._run.stop_after):
            query.stop()
            query.await_termination()

    def _handle(self, frame: SimDataFrame, batch_id: int) -> None:
        """Be the user's handler: write a batch under its id, over what is there."""
        self._calls += 1
        rows = frame.rows()
        fails = [
            fault
            for fault in self.process.faults
            if isinstance(fault, HandlerFails) and fault.call == self._calls
        ]
        self.process.operation("handle", f"batch {batch_id}")
        self.process.scheduler.sleep(self._plan.handler_seconds)
        if not fails or fails[0].after:
            self._oracle.handled(self.process, batch_id, rows)
            self._look_back(batch_id, frame)
        if fails:
            self.process.happened.append(fails[0])
            raise HandlerError("as planned")

    def _look_back(self, batch_id: int, frame: SimDataFrame) -> None:
        """Read the oldest DataFrame that a handler may still have."""
        self._lazy.append((batch_id, frame))
        oldest, lazy = self._lazy[0]
        if self.raced:
            return  # a newer driver keeps its own ten
        try:
            rows = lazy.rows()
        except Py4JError as error:
            self._oracle.violate(f"batch {oldest} cannot be read at batch {batch_id}: {error}")
        else:
            if rows != self._oracle.contents[oldest]:
                self._oracle.violate(f"batch {oldest} has other rows at batch {batch_id}")
