"""A campaign from beginning to end: start everything, strike, compare, leave nothing behind."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, BinaryIO, final
from urllib.parse import urlsplit

import msgspec

from fanout.testing.kafka.broker import KafkaBroker
from fanout.testing.kafka.cluster import KafkaCluster
from fanout.testing.kinesis.process import KinesisProcess
from fanout.testing.kinesis.rules import KinesisRules
from fanout.testing.spark.driver_process import Message
from fanout.testing.trials.job import SparkJob
from fanout.testing.trials.oracle import OutputOracle
from fanout.testing.trials.records import RecordProducer
from tests.provers.crash.control import CONTROL, Control
from tests.provers.crash.final_comparison import PARTITIONS, compare, compare_destination
from tests.provers.crash.inputs import KinesisInput, keep_producing, open_kafka_input
from tests.provers.crash.job_options import CLUSTER_CORES, JobOptions
from tests.provers.crash.kinesis_proxy import open_kinesis_proxy
from tests.provers.crash.looks import keep_looking
from tests.provers.crash.moments import SUFFIX, Sink, input_of, output_of
from tests.provers.crash.plan import CampaignFailedError, draw_crash_plan
from tests.provers.crash.reader import open_reader
from tests.provers.crash.report import CrashReport
from tests.provers.crash.rounds import Rounds, Services
from tests.provers.crash.sinks.opening import open_destination
from tests.support.spark.cluster import start_cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from tests.provers.crash.final_comparison import Comparison
    from tests.provers.crash.inputs import Input
    from tests.provers.crash.kinesis_proxy import KinesisProxy
    from tests.provers.crash.moments import Pipeline
    from tests.provers.crash.plan import CrashOptions, Round
    from tests.provers.crash.report import RoundResult
    from tests.provers.crash.sinks.destination import Destination
    from tests.support.spark.cluster import StandaloneCluster

__all__ = ("LOG", "run_campaign")

LOG = "driver.log"

_DRIVER = "tests.provers.crash.driver"
_MESSAGES: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)
_SHARDS = 2
_MAX_RECORDS = 2_000
# Records that are put ten times a second: what a table holds is read as a whole each time.
_PER_CALL = {False: 60, True: 10}
# In which a record that comes twice at the very end would be read as well.
_AFTERMATH = 1.0
_LOOK = 0.01
# A node that does not answer is missed after three seconds.
_SESSION = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}


def run_campaign(
    options: CrashOptions,
    *,
    plan: Sequence[Round] | None = None,
    on_round: Callable[[RoundResult], None] = lambda _: None,
) -> CrashReport:
    """Run a campaign.

    Args:
        options: The options of the user.
        plan: What strikes, where that is not to be drawn from the seed.
        on_round: Called at the end of each round.

    Returns:
        The report. If something was wrong it says where the checkpoints and the log of the job
        are kept.

    Raises:
        SetupError: If a service cannot be started on this machine.
        CampaignFailedError: If the job does not start, or an output cannot be read.
        KeyboardInterrupt: On Ctrl-C; every child has ended and every file is gone by then.
    """
    began = time.monotonic()
    root = Path(tempfile.mkdtemp(prefix="fanout-crash-"))
    kept: Path | None = None
    try:
        (root / "scratch").mkdir()
        with (
            (root / LOG).open("wb") as log,
            _broker(options) as broker,
            _kinesis(options) as kinesis,
            open_destination(options.sink, root, kinesis) as destination,
            _cluster(options, root, kinesis) as cluster,
        ):
            around = _Around(broker, kinesis, destination, cluster)
            campaign = _Campaign(options, root, log, around)
            rounds = _run(campaign.run(plan or draw_crash_plan(options), on_round))
            comparison = campaign.compare()
        report = CrashReport(
            sink=options.sink,
            nodes=options.nodes,
            seed=options.seed,
            rounds=tuple(rounds),
            verdicts=comparison.verdicts,
            open_transactions=comparison.open_transactions,
            seconds=time.monotonic() - began,
        )
        if report.holds:
            return report
        kept = root
        return msgspec.structs.replace(report, kept=str(root))
    except CampaignFailedError as error:
        kept = root
        raise CampaignFailedError(f"{error}; {root / LOG} is its log") from error
    finally:
        if kept is None:
            shutil.rmtree(root, ignore_errors=True)


def _run(rounds: Coroutine[Any, Any, list[RoundResult]]) -> list[RoundResult]:
    try:
        return asyncio.run(rounds)
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]  # the others were cancelled because of it
        raise error from None


@contextmanager
def _broker(options: CrashOptions) -> Iterator[KafkaCluster | None]:
    if options.sink is not Sink.KAFKA:
        yield None
        return
    several = KafkaCluster(nodes=options.nodes, settings=_SESSION) if options.nodes > 1 else None
    with several or KafkaBroker() as broker:
        for pipeline in options.pipelines:
            broker.create_topic(output_of(pipeline), PARTITIONS)
            if not pipeline.of_kinesis:
                broker.create_topic(input_of(pipeline), PARTITIONS)
        yield broker


@contextmanager
def _kinesis(options: CrashOptions) -> Iterator[KinesisProcess | None]:
    inputs = [input_of(pipeline) for pipeline in options.pipelines if pipeline.of_kinesis]
    if not inputs:
        yield None
        return
    with KinesisProcess(KinesisRules.fast()) as server:
        for stream in inputs:
            server.create_stream(stream, _SHARDS)
        yield server


@contextmanager
def _cluster(
    options: CrashOptions, root: Path, kinesis: KinesisProcess | None
) -> Iterator[StandaloneCluster | None]:
    if not options.by_landers:
        yield None
        return
    directory = root / "cluster"
    directory.mkdir()
    java = f"-Djava.io.tmpdir={root}/scratch -Dspark.local.dir={root}/scratch"
    environment = {CONTROL: str(root)} | ({} if kinesis is None else dict(kinesis.environment))
    opening = start_cluster(directory, cores=CLUSTER_CORES, java=java, environment=environment)
    with opening as cluster:
        yield cluster


@final
@dataclass(frozen=True, slots=True)
class _Around:
    """What a campaign has around its job."""

    broker: KafkaCluster | None
    kinesis: KinesisProcess | None
    destination: Destination | None
    cluster: StandaloneCluster | None

    @property
    def bootstrap_servers(self) -> str:
        return "" if self.broker is None else self.broker.bootstrap_servers


@final
class _Campaign:
    """Run on the event loop: producers, reader, front, job and rounds."""

    def __init__(self, options: CrashOptions, root: Path, log: BinaryIO, around: _Around) -> None:
        self._options = options
        self._root = root
        self._log = log
        self._around = around
        random = Random(options.seed)
        self._producers = {name: RecordProducer(name, random) for name in options.pipelines}
        self._oracles = {name: OutputOracle(name, SUFFIX) for name in options.pipelines}

    def compare(self) -> Comparison:
        """Compare, when the job has ended, what was written with what was produced; it blocks."""
        destination = self._around.destination
        if destination is not None:
            return compare_destination(self._producers, destination)
        return compare(self._producers, self._oracles, self._around.bootstrap_servers)

    async def run(
        self, plan: Sequence[Round], on_round: Callable[[RoundResult], None]
    ) -> list[RoundResult]:
        """Run rounds until all have, or one never catches up."""
        results: list[RoundResult] = []
        stopping = asyncio.Event()
        async with AsyncExitStack() as scope, asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(await self._open_reader(scope))
            front = await self._open_front(scope)
            producing = [
                tasks.create_task(
                    keep_producing(
                        name,
                        producer,
                        await self._open_input(scope, name),
                        self._oracles,
                        stopping,
                        per_call=_PER_CALL[self._around.destination is not None],
                    )
                )
                for name, producer in self._producers.items()
            ]
            job = self._job(front, tasks)
            rounds = Rounds(
                job,
                Control(self._root),
                Services(self._around.broker, front, self._around.cluster),
                self._producers,
                self._oracles,
            )
            while not all(each.total for each in self._producers.values()):  # noqa: ASYNC110 - rare
                await asyncio.sleep(_LOOK)
            if await rounds.catch_up() is None:
                why = rounds.failures[-1] if rounds.failures else "it only waits"
                raise CampaignFailedError(f"the job never got under way: {why}")
            for number, each in enumerate(plan, 1):
                results.append(result := await rounds.run(number, each))
                on_round(result)
                if result.caught_up is None:
                    break
            stopping.set()
            await asyncio.gather(*producing)
            if result.caught_up is not None:
                await rounds.catch_up()
            job.stop()
            await job.gone.wait()
            await asyncio.sleep(_AFTERMATH)
            reading.cancel()
        return results

    async def _open_reader(self, scope: AsyncExitStack) -> Coroutine[Any, Any, None]:
        destination = self._around.destination
        if destination is not None:
            return keep_looking(destination, self._oracles)
        outputs = {output_of(name): oracle for name, oracle in self._oracles.items()}
        opening = open_reader(self._around.bootstrap_servers, outputs, PARTITIONS)
        return (await scope.enter_async_context(opening)).run()

    def _job(self, front: KinesisProxy | None, tasks: asyncio.TaskGroup) -> SparkJob[Message]:
        kinesis, destination, cluster = (
            self._around.kinesis,
            self._around.destination,
            self._around.cluster,
        )
        options = JobOptions(
            root=str(self._root),
            pipelines=self._options.pipelines,
            endpoint_url="" if front is None else front.url,
            bootstrap_servers=self._around.bootstrap_servers,
            max_records=_MAX_RECORDS,
            at_least_once=self._options.at_least_once,
            master="" if cluster is None else cluster.master,
            sink=self._options.sink,
            location="" if destination is None else destination.location,
            planted=self._options.planted,
        )
        environment = dict({} if kinesis is None else kinesis.environment)
        environment |= {} if destination is None else destination.environment
        environment |= {CONTROL: str(self._root), "PYTHONPATH": _import_path()}
        return SparkJob(
            _DRIVER,
            options,
            _MESSAGES,
            scratch=self._root / "scratch",
            environment=environment,
            log=self._log,
            tasks=tasks,
        )

    async def _open_front(self, scope: AsyncExitStack) -> KinesisProxy | None:
        if self._around.kinesis is None:
            return None
        port = urlsplit(self._around.kinesis.endpoint_url).port
        assert port is not None
        return await scope.enter_async_context(open_kinesis_proxy("127.0.0.1", port))

    async def _open_input(self, scope: AsyncExitStack, pipeline: Pipeline) -> Input:
        if pipeline.of_kinesis:
            assert self._around.kinesis is not None
            return KinesisInput(self._around.kinesis, input_of(pipeline))
        return await scope.enter_async_context(
            open_kafka_input(self._around.bootstrap_servers, input_of(pipeline))
        )


def _import_path() -> str:
    """Return the PYTHONPATH of the driver and its workers: they import the tests too."""
    inherited = os.environ.get("PYTHONPATH")
    root = str(Path(__file__).parents[3])
    return f"{root}{os.pathsep}{inherited}" if inherited else root
