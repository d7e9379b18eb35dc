"""Run producer, faults and Spark drivers side by side until all records have been read."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import aclosing
from itertools import chain
from typing import TYPE_CHECKING, BinaryIO, final

from fanout.demo.options import DemoFailedError
from fanout.demo.progress import RunProgress
from fanout.demo.queries import (
    BatchWritten,
    DemoQuery,
    Holding,
    LanderKilled,
    ProcessesKilled,
    QueryOptions,
    Reading,
    Resubscribed,
)
from fanout.demo.records import Restart, generate
from fanout.demo.report import Resharded
from fanout.demo.service import STREAM, produce
from fanout.demo.sources import KafkaSettings, ShuffleSettings
from fanout.testing.spark.driver_process import DriverFailed, DriverStarted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fanout.demo.options import DemoOptions
    from fanout.demo.plan import DemoPlan
    from fanout.demo.progress import ProgressDisplay
    from fanout.demo.queries import QueryMessage
    from fanout.demo.service import DemoService, DemoStream
    from fanout.demo.workspace import SentLog, Workspace

# Records are sent at this rate, but within these seconds: long enough for every fault to happen and
# to be recovered from (5 s lie between two subscriptions to a shard) while records flow.
_RATE = 2_500
_SHORTEST, _LONGEST = 10.0, 20.0
# The least number of batches, so that there are some before and after the one that is killed.
_BATCHES = 8
# Seconds after the last record, in which a duplicate would be written as well.
_AFTERMATH = 1.0
# From this share of the records on, they are sent after the second reshard, so that the splits that
# it creates get some. The batch that is killed begins before this share is read: at most the latest
# start of a kill (0.6) and one batch (1 / _BATCHES) are read by then.
_AFTER_SECOND_RESHARD = 0.85
# Seconds without a record sent or a batch written after which the demo fails.
_PATIENCE = 60.0


@final
class Conductor:
    """Conduct one run.

    `tally` counts the events so far. `parents` has the parents of each split when all records are
    sent. `second_reshard` has the changes that were made while the killed driver was down.

    Args:
        options: The options of the user.
        plan: The faults of the run.
        service: The running service, with a stream in it.
        workspace: The files of the run.
        display: Shows the progress.
    """

    def __init__(
        self,
        options: DemoOptions,
        plan: DemoPlan,
        *,
        service: DemoService,
        workspace: Workspace,
        display: ProgressDisplay,
    ) -> None:
        self.tally = RunProgress()
        self.parents: Mapping[str, Sequence[str]] = {}
        self.second_reshard: Resharded | None = None
        self._options = options
        self._plan = plan
        self._service = service
        self._display = display
        self._jobs = [
            DemoQuery(
                each,
                scratch=workspace.scratch,
                environment=service.environment,
                on_message=self._on_message,
                on_down=self._restart,
            )
            for each in _queries(options, plan, service, workspace)
        ]
        self._waiting_for = {job.query for job in self._jobs}
        self._started = asyncio.Event()
        self._all_read = asyncio.Event()
        self._patience = asyncio.Timeout(None)
        self._stream: DemoStream | None = None
        self._splits_reported = asyncio.Event()
        # One task at a time lists the open splits and then closes some of them.
        self._resharding = asyncio.Lock()
        self._resharded = asyncio.Event()

    @property
    def restart(self) -> Restart | None:
        """The splits that only the new driver has to read; None without a new driver."""
        killed_in = self._jobs[0].killed_in
        if killed_in is None or self.second_reshard is None:
            return None
        return Restart(killed_in, self.second_reshard.born)

    async def run(self, sent_log: SentLog, driver_log: BinaryIO) -> None:
        """Run until all records have been read, and the drivers have ended.

        Args:
            sent_log: The log of the records that are sent.
            driver_log: An open file for the stderr of drivers.

        Raises:
            DemoFailedError: If a driver fails, or nothing happens for a minute.

        Cancellation: drivers and their JVMs are killed and waited for.
        """
        try:
            async with self._patience, asyncio.TaskGroup() as tasks:
                self._progressed()
                for job in self._jobs:
                    tasks.create_task(job.run(driver_log))
                await self._started.wait()
                async with self._service.connect() as stream:
                    self._stream = stream
                    await self._send(stream, sent_log)
                    await self._all_read.wait()
                await asyncio.sleep(_AFTERMATH)
                for job in self._jobs:
                    job.stop()
        except TimeoutError as error:
            if not self._patience.expired():
                raise
            tally = self.tally
            raise DemoFailedError(
                f"nothing happened for {_PATIENCE:.0f} s: {tally.sent:,} records sent, "
                f"{tally.read:,} read",
                explained=False,
            ) from error
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None  # the others were cancelled because of it

    async def _send(self, stream: DemoStream, log: SentLog) -> None:
        count = self._options.records
        rate = count / min(max(count / _RATE, _SHORTEST), _LONGEST)
        records = generate(count, self._options.seed)
        actions = deque(self._plan.actions)
        hold_at = count if self._plan.kill is None else count * _AFTER_SECOND_RESHARD
        async with aclosing(produce(stream, records, rate=rate)) as calls:
            async for accepted in calls:
                await asyncio.to_thread(log.append, accepted)
                self.tally.sent += len(accepted)
                self._progressed()
                while actions and actions[0].at <= self.tally.sent:
                    async with self._resharding:
                        done = await stream.perform(actions.popleft())
                    self._show(done.description)
                    if self._options.shuffle:
                        await self._wait_until_known(done.born)
                if hold_at <= self.tally.sent < count:
                    await self._resharded.wait()
        self.parents = await stream.parents()

    async def _reshard_again(self) -> None:
        stream = self._stream
        assert stream is not None, "a driver is killed in a batch, which needs a stream"
        async with self._resharding:
            done = [await stream.perform(action) for action in self._plan.while_down]
        self.second_reshard = Resharded(
            ended=tuple(chain.from_iterable(each.ended for each in done)),
            born=tuple(chain.from_iterable(each.born for each in done)),
        )
        self._resharded.set()
        for each in done:
            self._show(f"{each.description} while no driver reads")

    async def _wait_until_known(self, splits: Sequence[str]) -> None:
        """Wait until the query knows splits.

        A record that is sent to one before that is late: the watermark has advanced without it.
        """
        while not self.tally.splits.issuperset(splits):
            self._splits_reported.clear()
            await self._splits_reported.wait()

    async def _restart(self, job: DemoQuery) -> None:
        """Reshard if the killed driver reads the stream; the caller then starts a new driver."""
        self._show(f"the driver of the {job.query} and its JVM have ended")
        if job is self._jobs[0]:
            await self._reshard_again()
        self.tally.restarts += 1
        self._show("start a new driver on the same checkpoint")

    def _on_message(self, job: DemoQuery, message: QueryMessage) -> None:
        tally = self.tally
        match message:
            case DriverStarted():
                self._waiting_for.discard(job.query)
                if not self._waiting_for:
                    self._started.set()
                self._progressed()
                self._show(f"the {job.query} runs")
            case BatchWritten(batch_id=batch_id, rows=rows):
                self._count(job, batch_id, rows)
            case Holding(batch_id=batch_id, written=written):
                state = "its output written" if written else "nothing of it written"
                self._show(
                    f"SIGKILL the driver of the {job.query} in batch {batch_id}: its segment is "
                    f"sealed, {state}, Spark has not committed it"
                )
            case Resubscribed(split=split, cause=cause, delay=delay):
                tally.resubscriptions[cause] += 1
                self._show(f"resubscribe to {split} in {delay:.1f} s after {cause}")
            case LanderKilled(lander=lander, pid=pid, splits=count):
                tally.landers_killed += 1
                self._show(f"SIGKILL lander {lander}, process {pid}, which reads {count} splits")
            case ProcessesKilled(process=process, pids=pids):
                tally.processes_killed[process] += len(pids)
                ids = ", ".join(map(str, pids))
                self._show(f"SIGKILL each {process} of the {job.query}: {ids}")
            case Reading(splits=splits):
                tally.splits.update(splits)
                self._splits_reported.set()
            case DriverFailed(sentence=sentence):
                raise DemoFailedError(f"the {job.query} has failed: {sentence}")
        self._display.update(tally)

    def _count(self, job: DemoQuery, batch_id: int, rows: int) -> None:
        self._progressed()
        if job.killed_in is not None and batch_id < job.killed_in:
            raise DemoFailedError(
                f"the new driver of the {job.query} has begun with batch {batch_id}, although the "
                f"one before was killed in batch {job.killed_in}"
            )
        if batch_id == job.killed_in:
            self.tally.replayed.append(batch_id)
            self._show(f"batch {batch_id} was given to the new driver again, and written")
        if job is self._jobs[-1]:
            self.tally.rows[batch_id] = rows
        if self.tally.read >= self._options.records:
            self._all_read.set()

    def _progressed(self) -> None:
        self._patience.reschedule(asyncio.get_running_loop().time() + _PATIENCE)
        self._display.update(self.tally)

    def _show(self, event: str) -> None:
        self._display.show_event(self.tally, event)


def _queries(
    options: DemoOptions, plan: DemoPlan, service: DemoService, workspace: Workspace
) -> Iterator[QueryOptions]:
    """Yield the options of the driver of each query: of one, or of two with a shuffle between."""
    root, s3, settings = str(workspace.root), workspace.s3, service.settings
    most = options.records // _BATCHES
    if not options.shuffle:
        yield QueryOptions(
            "query",
            root,
            s3,
            settings,
            None,
            most,
            plan.kill,
            landers=options.landers,
            kill_lander=plan.kill_lander,
            dataframe=options.dataframe,
            kill_processes=plan.kill_processes,
        )
        return
    assert isinstance(settings, KafkaSettings), "the options say so"
    shuffle = ShuffleSettings(f"{STREAM}-by-key", settings.bootstrap_servers, options.shards)
    yield QueryOptions("shuffling query", root, s3, settings, shuffle, most, plan.kill)
    yield QueryOptions("reading query", root, s3, shuffle, None, most, plan.kill_reader)
