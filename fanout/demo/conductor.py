"""Run producer, faults and Spark drivers side by side until everything sent has been read."""

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

# Records are sent at this pace, but within these seconds: long enough for every fault to strike and
# be recovered from (5 s lie between two subscriptions to a shard) while records flow.
_RATE = 2_500
_SHORTEST, _LONGEST = 10.0, 20.0
# So many batches at least, so that others come before and after the one that is killed.
_BATCHES = 8
# After the last record, in which one that comes twice would be written as well.
_AFTERMATH = 1.0
# From this share of the records on, they are sent after the second reshard, so that the splits that
# it makes get some. The batch that is killed begins before so many are read: by then less than the
# latest moment of a kill (0.6) and one batch (1 / _BATCHES) are.
_AFTER_SECOND_RESHARD = 0.85
# Without a record sent or a batch written for so long, the demo gives up.
_PATIENCE = 60.0


@final
class Conductor:
    """Conduct one run.

    `tally` says what has happened so far, `parents` how the splits descend once all is sent, and
    `second_reshard` what was done while the killed driver was down.

    Args:
        options: What the user asked for.
        plan: What goes wrong.
        service: The service that runs, with a stream in it.
        workspace: The files of the run.
        display: Where it is shown.
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
                on_message=self._take,
                on_down=self._restart,
            )
            for each in _queries(options, plan, service, workspace)
        ]
        self._waiting_for = {job.query for job in self._jobs}
        self._started = asyncio.Event()
        self._all_read = asyncio.Event()
        self._patience = asyncio.Timeout(None)
        self._stream: DemoStream | None = None
        self._splits_told = asyncio.Event()
        # One at a time looks for open splits and then closes some of them.
        self._resharding = asyncio.Lock()
        self._resharded = asyncio.Event()

    @property
    def restart(self) -> Restart | None:
        """The splits that the new driver of the stream was to meet; None without a new driver."""
        killed_in = self._jobs[0].killed_in
        if killed_in is None or self.second_reshard is None:
            return None
        return Restart(killed_in, self.second_reshard.born)

    async def run(self, sent_log: SentLog, driver_log: BinaryIO) -> None:
        """Run until everything sent has been read, and the drivers have ended.

        Args:
            sent_log: Where to write down what was sent.
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
        acts = deque(self._plan.acts)
        hold_at = count if self._plan.kill is None else count * _AFTER_SECOND_RESHARD
        async with aclosing(produce(stream, records, rate=rate)) as calls:
            async for accepted in calls:
                await asyncio.to_thread(log.append, accepted)
                self.tally.sent += len(accepted)
                self._progressed()
                while acts and acts[0].at <= self.tally.sent:
                    async with self._resharding:
                        done = await stream.perform(acts.popleft())
                    self._tell(done.told)
                    if self._options.shuffle:
                        await self._known(done.born)
                if hold_at <= self.tally.sent < count:
                    await self._resharded.wait()
        self.parents = await stream.parents()

    async def _reshard_again(self) -> None:
        stream = self._stream
        assert stream is not None, "a driver is killed in a batch, and without it there is none"
        async with self._resharding:
            done = [await stream.perform(act) for act in self._plan.while_down]
        self.second_reshard = Resharded(
            ended=tuple(chain.from_iterable(each.ended for each in done)),
            born=tuple(chain.from_iterable(each.born for each in done)),
        )
        self._resharded.set()
        for each in done:
            self._tell(f"{each.told} while nobody reads")

    async def _known(self, splits: Sequence[str]) -> None:
        """Wait until splits are known to their reader.

        What is sent to one before that is late: the watermark has gone on without it.
        """
        while not self.tally.splits.issuperset(splits):
            self._splits_told.clear()
            await self._splits_told.wait()

    async def _restart(self, job: DemoQuery) -> None:
        """Do what is to be done while a query has no driver, and let there be another one."""
        self._tell(f"the driver of the {job.query} and its JVM have gone")
        if job is self._jobs[0]:
            await self._reshard_again()
        self.tally.restarts += 1
        self._tell("start a new driver on the same checkpoint")

    def _take(self, job: DemoQuery, message: QueryMessage) -> None:
        tally = self.tally
        match message:
            case DriverStarted():
                self._waiting_for.discard(job.query)
                if not self._waiting_for:
                    self._started.set()
                self._progressed()
                self._tell(f"the {job.query} runs")
            case BatchWritten(batch_id=batch_id, rows=rows):
                self._count(job, batch_id, rows)
            case Holding(batch_id=batch_id, written=written):
                state = "its output written" if written else "nothing of it written"
                self._tell(
                    f"SIGKILL the driver of the {job.query} in batch {batch_id}: its segment is "
                    f"sealed, {state}, Spark has not committed it"
                )
            case Resubscribed(split=split, cause=cause, delay=delay):
                tally.resubscriptions[cause] += 1
                self._tell(f"resubscribe to {split} in {delay:.1f} s after {cause}")
            case Reading(splits=splits):
                tally.splits.update(splits)
                self._splits_told.set()
            case DriverFailed(sentence=sentence):
                raise DemoFailedError(f"the {job.query} has failed: {sentence}")
        self._display.update(tally)

    def _count(self, job: DemoQuery, batch_id: int, rows: int) -> None:
        self._progressed()
        if batch_id == job.killed_in:
            self.tally.replayed.append(batch_id)
            self._tell(f"batch {batch_id} was given to the new driver again, and written")
        if job is self._jobs[-1]:
            self.tally.rows[batch_id] = rows
        if self.tally.read >= self._options.records:
            self._all_read.set()

    def _progressed(self) -> None:
        self._patience.reschedule(asyncio.get_running_loop().time() + _PATIENCE)
        self._display.update(self.tally)

    def _tell(self, event: str) -> None:
        self._display.tell(self.tally, event)


def _queries(
    options: DemoOptions, plan: DemoPlan, service: DemoService, workspace: Workspace
) -> Iterator[QueryOptions]:
    """Yield what the drivers of the queries are told: of one, or of two with a shuffle between."""
    root, settings = str(workspace.root), service.settings
    most = options.records // _BATCHES
    if not options.shuffle:
        yield QueryOptions("query", root, settings, None, most, plan.kill)
        return
    assert isinstance(settings, KafkaSettings), "the options say so"
    shuffle = ShuffleSettings(f"{STREAM}-by-key", settings.bootstrap_servers, options.shards)
    yield QueryOptions("shuffling query", root, settings, shuffle, most, plan.kill)
    yield QueryOptions("reading query", root, shuffle, None, most, plan.kill_reader)
