"""A campaign from beginning to end: start everything, strike, compare, leave nothing behind."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, BinaryIO, final
from urllib.parse import urlsplit

import msgspec

from fanout.testing.kafka.broker import KafkaBroker
from fanout.testing.kinesis.process import KinesisProcess
from fanout.testing.kinesis.rules import KinesisRules
from tests.provers.crash.control import CONTROL, Control
from tests.provers.crash.final_comparison import PARTITIONS, compare
from tests.provers.crash.inputs import KinesisInput, keep_producing, open_kafka_input
from tests.provers.crash.job import CLUSTER_CORES, CrashJob, JobOptions
from tests.provers.crash.kinesis_proxy import open_kinesis_proxy
from tests.provers.crash.moments import input_of, output_of
from tests.provers.crash.oracle import OutputOracle
from tests.provers.crash.plan import CampaignFailedError, draw_crash_plan
from tests.provers.crash.reader import open_reader
from tests.provers.crash.records import RecordProducer
from tests.provers.crash.report import CrashReport
from tests.provers.crash.rounds import Rounds, Services
from tests.spark.cluster import start_cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from tests.provers.crash.inputs import Input
    from tests.provers.crash.kinesis_proxy import KinesisProxy
    from tests.provers.crash.moments import Pipeline
    from tests.provers.crash.plan import CrashOptions, Round
    from tests.provers.crash.report import RoundResult
    from tests.spark.cluster import StandaloneCluster

__all__ = ("LOG", "run_campaign")

LOG = "driver.log"

_SHARDS = 2
_MAX_RECORDS = 2_000
# In which a record that comes twice at the very end would be read as well.
_AFTERMATH = 1.0
_LOOK = 0.01


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
            KafkaBroker() as broker,
            _kinesis(options) as kinesis,
            _cluster(options, root, kinesis) as cluster,
        ):
            for pipeline in options.pipelines:
                broker.create_topic(output_of(pipeline), PARTITIONS)
                if not pipeline.of_kinesis:
                    broker.create_topic(input_of(pipeline), PARTITIONS)
            campaign = _Campaign(
                options, root, log, broker=broker, kinesis=kinesis, cluster=cluster
            )
            rounds = _run(campaign.run(plan or draw_crash_plan(options), on_round))
            comparison = compare(campaign.producers, campaign.oracles, broker.bootstrap_servers)
        report = CrashReport(
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
class _Campaign:
    """Run on the event loop: producers, reader, front, job and rounds."""

    def __init__(
        self,
        options: CrashOptions,
        root: Path,
        log: BinaryIO,
        *,
        broker: KafkaBroker,
        kinesis: KinesisProcess | None,
        cluster: StandaloneCluster | None,
    ) -> None:
        self._options = options
        self._root = root
        self._log = log
        self._broker = broker
        self._kinesis = kinesis
        self._cluster = cluster
        random = Random(options.seed)
        self.producers = {name: RecordProducer(name, random) for name in options.pipelines}
        self.oracles = {name: OutputOracle(name) for name in options.pipelines}

    async def run(
        self, plan: Sequence[Round], on_round: Callable[[RoundResult], None]
    ) -> list[RoundResult]:
        """Run rounds until all have, or one never catches up."""
        results: list[RoundResult] = []
        stopping = asyncio.Event()
        outputs = {output_of(name): oracle for name, oracle in self.oracles.items()}
        async with AsyncExitStack() as scope, asyncio.TaskGroup() as tasks:
            reader = await scope.enter_async_context(
                open_reader(self._broker.bootstrap_servers, outputs, PARTITIONS)
            )
            reading = tasks.create_task(reader.run())
            front = await self._open_front(scope)
            producing = [
                tasks.create_task(
                    keep_producing(
                        producer,
                        await self._open_input(scope, name),
                        self.oracles[name],
                        stopping,
                    )
                )
                for name, producer in self.producers.items()
            ]
            job = self._job(front, tasks)
            rounds = Rounds(
                job,
                Control(self._root),
                Services(self._broker, front, self._cluster),
                self.producers,
                self.oracles,
            )
            while not all(each.total for each in self.producers.values()):  # noqa: ASYNC110 - rare
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

    def _job(self, front: KinesisProxy | None, tasks: asyncio.TaskGroup) -> CrashJob:
        options = JobOptions(
            root=str(self._root),
            pipelines=self._options.pipelines,
            endpoint_url="" if front is None else front.url,
            bootstrap_servers=self._broker.bootstrap_servers,
            max_records=_MAX_RECORDS,
            at_least_once=self._options.at_least_once,
            master="" if self._cluster is None else self._cluster.master,
            unguarded=self._options.unguarded,
        )
        environment = {} if self._kinesis is None else self._kinesis.environment
        return CrashJob(options, environment, self._log, tasks)

    async def _open_front(self, scope: AsyncExitStack) -> KinesisProxy | None:
        if self._kinesis is None:
            return None
        port = urlsplit(self._kinesis.endpoint_url).port
        assert port is not None
        return await scope.enter_async_context(open_kinesis_proxy("127.0.0.1", port))

    async def _open_input(self, scope: AsyncExitStack, pipeline: Pipeline) -> Input:
        if pipeline.of_kinesis:
            assert self._kinesis is not None
            return KinesisInput(self._kinesis, input_of(pipeline))
        return await scope.enter_async_context(
            open_kafka_input(self._broker.bootstrap_servers, input_of(pipeline))
        )
