"""Run the demo: start the service, run producer, faults and drivers, and compare the output."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, BinaryIO, Final, final

import msgspec

from fanout.demo.options import LENT_SECONDS, STREAM, DemoFailedError, ServiceName, StorageName
from fanout.demo.plan import ActionResult, draw_plan
from fanout.demo.queries import (
    MESSAGES,
    BatchBegun,
    BatchWritten,
    Holding,
    ProcessesKilled,
    QueryMessage,
    QueryName,
    QueryOptions,
    Reading,
    Resubscribed,
)
from fanout.demo.report import DemoReport, RunProgress
from fanout.demo.verification import Evidence, verify_in_process
from fanout.demo.workspace import Workspace
from fanout.testing.spark.driver_process import DriverFailed, DriverStarted
from fanout.testing.trials.job import SparkJob
from fanout.testing.trials.records import RecordProducer

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from rich.console import Console

    from fanout.demo.kafka import KafkaStream
    from fanout.demo.kinesis import KinesisQueueStream, KinesisStream
    from fanout.demo.options import DemoOptions
    from fanout.demo.plan import Action

    DemoStream = KinesisStream | KinesisQueueStream | KafkaStream

# Records are sent at this rate, but within these seconds: long enough for every fault to happen and
# to be recovered from (5 s lie between two subscriptions to a shard) while records flow.
_RATE = 2_500
_SHORTEST, _LONGEST = 10.0, 20.0
_KEYS: Final = 1_000
# The limit of one PutRecords call (AWS API reference); it fits Kafka as well.
MAX_CALL_RECORDS: Final = 500
_CALLS_PER_SECOND = 10
# Seconds after the last record, in which a duplicate would be written as well; what is lent comes
# again when its time is over.
_AFTERMATH = 1.0
# From this share of the records on, they are sent after the second reshard, so that the splits that
# it creates get some. The batch that is killed begins before this share is read: at most the latest
# start of a kill (0.6) and one batch (an eighth) are read by then.
_AFTER_SECOND_RESHARD = 0.85
# Seconds without a record sent or a batch written after which the demo fails. A driver and its JVM
# may take more than a minute to start on a busy machine.
_PATIENCE = 120.0
_LOOK = 0.05


@final
class Conductor:
    """Conduct one run: the only query, or the two on both sides of a shuffle.

    `evidence` is what the output is compared with, `second_reshard` the changes that were made
    while the killed driver was down, and `killed_in` the batch of each query in which its driver
    was killed.
    """

    def __init__(
        self,
        options: DemoOptions,
        *,
        stream: DemoStream,
        workspace: Workspace,
        progress: RunProgress,
    ) -> None:
        self.second_reshard: ActionResult | None = None
        self.evidence = Evidence(options.source, [], {}, reported=[] if options.shuffle else None)
        self.killed_in: dict[QueryName, int] = {}
        self._options = options
        self._plan = draw_plan(options)
        self._actions = deque(self._plan.actions)
        self._stream = stream
        self._workspace = workspace
        self._progress = progress
        self._show = progress.show
        both = (QueryName.SHUFFLING, QueryName.READING)
        self._queries = both if options.shuffle else (QueryName.ONLY,)
        self._jobs: dict[QueryName, SparkJob[QueryMessage]] = {}
        self._all_read = asyncio.Event()
        self._stopping = False
        self._patience = asyncio.Timeout(None)
        # One task at a time chooses among the open splits and then closes some of them.
        self._resharding = asyncio.Lock()
        self._resharded = asyncio.Event()

    async def run(self, log: BinaryIO) -> None:
        """Run until all records have been read, and the drivers have ended.

        Raises:
            DemoFailedError: If a driver fails, or nothing happens for two minutes.

        Cancellation: drivers and their JVMs are killed and waited for.
        """
        try:
            async with self._patience, asyncio.TaskGroup() as tasks:
                self._progressed()
                workspace, address = self._workspace, self._stream.address
                for query in self._queries:
                    self._jobs[query] = SparkJob(
                        "fanout.demo.driver",
                        QueryOptions(query, self._options, address, workspace),
                        MESSAGES,
                        scratch=workspace.scratch,
                        environment=self._stream.environment,
                        log=log,
                        tasks=tasks,
                        on_message=partial(self._on_message, query),
                    )
                    tasks.create_task(self._keep_running(query))
                for job in self._jobs.values():
                    await job.running.wait()
                async with self._stream.connect():
                    await self._send()
                    await self._all_read.wait()
                await asyncio.sleep(_AFTERMATH + LENT_SECONDS * bool(self._options.source.lender))
                self._stopping = True
                for job in self._jobs.values():
                    job.stop()
        except TimeoutError as error:
            if not self._patience.expired():
                raise
            sent, read = self._progress.sent, self._progress.read
            raise DemoFailedError(
                f"nothing happened for {_PATIENCE:.0f} s: {sent:,} records sent, {read:,} read",
                explained=False,
            ) from error
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None  # the others were cancelled because of it

    async def _keep_running(self, query: QueryName) -> None:
        """Run a driver of a query, and another one after it was killed."""
        job = self._jobs[query]
        job.start()
        await job.gone.wait()
        if query in self.killed_in:
            self._show(f"the driver of the {query} and its JVM have ended")
            if query is not QueryName.READING:
                await self._reshard_again()
            self._progress.restarts += 1
            self._show("start a new driver on the same checkpoint")
            job.options = msgspec.structs.replace(job.options, restarted=True)
            job.start()
            await job.gone.wait()
        if not self._stopping:
            raise DemoFailedError("the Spark driver has ended by itself", explained=False)

    async def _send(self) -> None:
        """Send all records at a steady rate, if the service keeps up, and change the stream."""
        count, seed = self._options.records, self._options.seed
        rate = count / min(max(count / _RATE, _SHORTEST), _LONGEST)
        size = min(MAX_CALL_RECORDS, max(1, round(rate / _CALLS_PER_SECOND)))
        producer = RecordProducer(STREAM, Random(seed), _KEYS)  # noqa: S311 - to be repeated
        hold_at = count if self._plan.kill is None else count * _AFTER_SECOND_RESHARD
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while producer.total < count:
            records = producer.make(min(size, count - producer.total))
            self.evidence.sent += await self._stream.put(records)
            producer.taken(records)
            self._progress.sent = producer.total
            self._progressed()
            await self._perform_due()
            if hold_at <= producer.total < count:
                await self._resharded.wait()
            await asyncio.sleep(begun + producer.total / rate - loop.time())

    async def _perform_due(self) -> None:
        while self._actions and self._actions[0].at <= self._progress.sent:
            async with self._resharding:
                done = await self._perform(self._actions.popleft())
            self._show(done.description)
            # A record that is sent to a split before the query knows it is late: the watermark has
            # advanced without it.
            while self._options.shuffle and not self._progress.splits.issuperset(done.born):  # noqa: ASYNC110 - rare
                await asyncio.sleep(_LOOK)

    async def _perform(self, action: Action) -> ActionResult:
        done = await self._stream.perform(action)
        self.evidence.parents.update(dict.fromkeys(done.born, done.ended))
        return done

    async def _reshard_again(self) -> None:
        if not self._plan.while_down:
            self._resharded.set()
            return
        async with self._resharding:
            done = [await self._perform(action) for action in self._plan.while_down]
        self.second_reshard = ActionResult(
            "reshard while no driver reads",
            ended=tuple(split for each in done for split in each.ended),
            born=tuple(split for each in done for split in each.born),
        )
        self.evidence.born = frozenset(self.second_reshard.born)
        self.evidence.killed_in = self.killed_in.get(QueryName.ONLY, -1)
        self._resharded.set()
        for each in done:
            self._show(f"{each.description} while no driver reads")

    def _on_message(self, query: QueryName, message: QueryMessage) -> None:
        match message:
            case DriverStarted():
                self._progressed()
                self._show(f"the {query} runs")
            case BatchBegun():
                if query is QueryName.READING and self.evidence.reported is not None:
                    self.evidence.reported.append((message.batch_id, message.watermark))
            case BatchWritten():
                self._count(query, message)
            case Holding():
                self._kill(query, message)
            case Resubscribed(split=split, cause=cause, delay=delay):
                self._progress.resubscriptions[cause] += 1
                self._show(f"resubscribe to {split} in {delay:.1f} s after {cause}")
            case ProcessesKilled():
                self._progress.processes_killed[message.process] += message.count
                self._show(message.description)
            case Reading(splits=splits, left_out=left_out):
                self._progress.splits.update(splits)
                self._progress.left_out[self._progress.restarts] = left_out
            case DriverFailed(sentence=sentence):
                raise DemoFailedError(f"the {query} has failed: {sentence}")
        self._progress.update()

    def _kill(self, query: QueryName, holding: Holding) -> None:
        state = "its output written" if holding.written else "nothing of it written"
        self._show(
            f"SIGKILL the driver of the {query} in batch {holding.batch_id}: its segment is "
            f"sealed, {state}, Spark has not committed it"
        )
        self.killed_in[query] = holding.batch_id
        self._jobs[query].kill()

    def _count(self, query: QueryName, written: BatchWritten) -> None:
        self._progressed()
        batch_id, killed_in = written.batch_id, self.killed_in.get(query)
        if killed_in is not None and batch_id < killed_in:
            raise DemoFailedError(
                f"the new driver of the {query} has begun with batch {batch_id}, although the one "
                f"before was killed in batch {killed_in}"
            )
        if batch_id == killed_in:
            self._progress.replayed.append(batch_id)
            self._show(f"batch {batch_id} was given to the new driver again, and written")
        if query is self._queries[-1]:
            self._progress.rows[batch_id] = written.rows
        if self._options.dataframe:  # another query tells which splits it reads
            self._progress.splits.update(written.splits)
        if self._progress.read >= self._options.records:
            self._all_read.set()

    def _progressed(self) -> None:
        self._patience.reschedule(asyncio.get_running_loop().time() + _PATIENCE)
        self._progress.update()


def run_demo(options: DemoOptions, console: Console) -> DemoReport:
    """Run the demo, show its progress, and report; the proof may have failed.

    Raises:
        DemoFailedError: If the demo could not be completed.
        SetupError: If the service or S3 cannot be started on this machine.
        KeyboardInterrupt: On Ctrl-C, after all children have ended and all files are deleted.
    """
    begun = time.perf_counter()
    progress = RunProgress(console, options.records)
    with (
        TemporaryDirectory(prefix="fanout-demo-") as root,
        _s3(options) as s3,
        _start(options) as stream,
        progress.bars,
    ):
        workspace = Workspace(root, s3)
        workspace.scratch.mkdir()
        driver_log = Path(root, "driver.log")
        conductor = Conductor(options, stream=stream, workspace=workspace, progress=progress)
        try:
            with driver_log.open("wb") as log:
                asyncio.run(conductor.run(log))
        except DemoFailedError as error:
            if error.explained:
                raise
            raise DemoFailedError(f"{error}{_tail(driver_log)}") from error
        workspace.evidence.write_bytes(msgspec.json.encode(conductor.evidence))
        proof = verify_in_process(workspace)
        faults = stream.faults()
    return DemoReport(
        options=options,
        proof=proof,
        progress=progress,
        faults=faults,
        second_reshard=conductor.second_reshard,
        seconds=time.perf_counter() - begun,
    )


def _start(options: DemoOptions) -> AbstractContextManager[DemoStream]:
    # Only the chosen service is imported: the libraries of the other may not be installed.
    if options.source in {ServiceName.KINESIS, ServiceName.KINESIS_QUEUE}:
        from fanout.demo.kinesis import start_kinesis  # noqa: PLC0415 - see above

        return start_kinesis(options.shards, queue=options.source is ServiceName.KINESIS_QUEUE)
    from fanout.demo.kafka import start_kafka  # noqa: PLC0415 - see above

    return start_kafka(options.shards, options.nodes)


def _s3(options: DemoOptions) -> AbstractContextManager[str | None]:
    """Serve S3, if checkpoints and output are to be there, and yield its endpoint."""
    if options.storage is StorageName.DISK:
        return nullcontext()
    from fanout.testing.s3_clients import s3a_jars  # noqa: PLC0415 - see above
    from fanout.testing.s3_server import serve_s3  # noqa: PLC0415 - see above

    s3a_jars()  # before a driver needs them
    return serve_s3()


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-15:]
    return "\n".join(["; the log of Spark drivers ends with:", *lines]) if lines else ""
