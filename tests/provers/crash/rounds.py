"""Strike the job, start it again, and wait until it has caught up: round after round."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from tests.provers.crash.moments import CrashMoment, StrikeKind
from tests.provers.crash.report import RoundResult, Struck
from tests.support.kafka.leaders import move_leaders

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.testing.kafka.cluster import KafkaCluster
    from fanout.testing.spark.driver_process import Message
    from fanout.testing.trials.job import SparkJob
    from fanout.testing.trials.oracle import OutputOracle
    from fanout.testing.trials.records import RecordProducer
    from tests.provers.crash.control import Control
    from tests.provers.crash.kinesis_proxy import KinesisProxy
    from tests.provers.crash.moments import Pipeline, Strike
    from tests.provers.crash.plan import Round
    from tests.support.spark.cluster import StandaloneCluster

__all__ = ("Rounds", "Services")

_LOOK = 0.01
# A batch takes a second: a running driver that has not come to a moment by then does not.
_TO_REACH = 60.0
# A driver starts within ten seconds, on a busy machine within fifty.
_TO_CATCH_UP = 120.0
# A query with landers begins with executors, their Python workers, and jobs that check them; one
# into tables replays a batch into each of them, and a MERGE is several jobs.
_TO_CATCH_UP_WITH_MORE = 300.0
# A job that ends by itself so often in one round will do so for ever.
_MOST_FAILURES = 5


@final
@dataclass(frozen=True, slots=True)
class Services:
    """The services of the job, and the faults that can strike them.

    Args:
        broker: Kafka; None where nothing reads or writes it.
        kinesis: The front of Kinesis; None where nothing reads it.
        cluster: The Spark cluster; None where no landers read.
    """

    broker: KafkaCluster | None
    kinesis: KinesisProxy | None
    cluster: StandaloneCluster | None = None

    async def strike(
        self, kind: StrikeKind, control: Control, outage: float, node: int = 1
    ) -> None:
        """Strike a service, let the job go on, and bring the service back after a while.

        Args:
            kind: What to do.
            control: Where the job waits.
            outage: Seconds for which the service is away.
            node: The node of Kafka, where one is struck.
        """
        match kind:
            case StrikeKind.KILL_BROKER:
                assert self.broker is not None
                await asyncio.to_thread(self.broker.kill, node)
                await asyncio.to_thread(control.release)
                await asyncio.sleep(outage)
                await asyncio.to_thread(self.broker.start, node)
            case StrikeKind.PAUSE_BROKER:
                assert self.broker is not None
                await asyncio.to_thread(self.broker.pause, node)
                await asyncio.to_thread(control.release)
                await asyncio.sleep(outage)
                await asyncio.to_thread(self.broker.resume, node)
            case StrikeKind.MOVE_LEADERS:
                assert self.broker is not None
                await asyncio.to_thread(control.release)
                await asyncio.to_thread(move_leaders, self.broker)
            case StrikeKind.KILL_KINESIS:
                assert self.kinesis is not None
                await self.kinesis.kill()
                await asyncio.to_thread(control.release)
                await asyncio.sleep(outage)
                await self.kinesis.start()
            case StrikeKind.CUT_KINESIS:
                assert self.kinesis is not None
                await self.kinesis.cut()
                await asyncio.to_thread(control.release)
            case StrikeKind.KILL_SPARK_WORKER:
                assert self.cluster is not None
                await asyncio.sleep(outage)
                await asyncio.to_thread(self.cluster.restart_workers)
            case _:
                raise AssertionError(f"{kind} is no service")


@final
class Rounds:
    """Run rounds, one after the other.

    `failures` holds why drivers that were not killed ended in this round, or before the first.

    Args:
        job: The job.
        control: Where strikes are armed in it.
        services: The services of the job.
        producers: What was produced, by pipeline.
        oracles: What was read, by pipeline.
    """

    def __init__(
        self,
        job: SparkJob[Message],
        control: Control,
        services: Services,
        producers: Mapping[Pipeline, RecordProducer],
        oracles: Mapping[Pipeline, OutputOracle],
    ) -> None:
        self._job = job
        self._control = control
        self._services = services
        self._producers = producers
        self._oracles = oracles
        self.failures: list[str] = []

    async def catch_up(self) -> float | None:
        """Run the job until the output has everything that is produced by now.

        A job that has ended is started again.

        Returns:
            The seconds that it took; None if it never came to that.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        alone = self._services.cluster is None and self._services.broker is not None
        patience = _TO_CATCH_UP if alone else _TO_CATCH_UP_WITH_MORE
        newest = {name: dict(each.newest) for name, each in self._producers.items()}
        while not all(self._oracles[name].has(numbers) for name, numbers in newest.items()):
            if loop.time() - began > patience or len(self.failures) > _MOST_FAILURES:
                return None
            self._keep_running()
            await asyncio.sleep(_LOOK)
        return loop.time() - began

    async def run(self, number: int, plan: Round) -> RoundResult:
        """Run one round.

        Args:
            number: Its number, from 1.
            plan: What strikes.
        """
        self.failures = []
        await asyncio.sleep(plan.delay)
        struck = tuple([await self._strike(each, plan) for each in plan.strikes])
        caught_up = await self.catch_up()
        return RoundResult(
            number=number, struck=struck, failures=tuple(self.failures), caught_up=caught_up
        )

    async def _strike(self, strike: Strike, plan: Round) -> Struck:
        if strike.moment is not CrashMoment.RANDOM:
            await asyncio.to_thread(self._control.arm, strike)
            if not await self._reached():
                return Struck(strike, reached=False)
        match strike.kind:
            case StrikeKind.KILL_DRIVER:
                # Those who came to a moment have killed it already.
                self._job.kill()
                await self._job.gone.wait()
                self._job.failure = None  # it did not end by itself
            case StrikeKind.KILL_WORKER | StrikeKind.KILL_LANDER | StrikeKind.KILL_EXECUTOR:
                pass
            case _:
                await self._services.strike(strike.kind, self._control, plan.outage, plan.node)
        await asyncio.to_thread(self._control.release)
        return Struck(strike, reached=True)

    async def _reached(self) -> bool:
        """Wait until the job has come to the moment that is armed; give up after a while."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _TO_REACH
        latest = loop.time() + _TO_CATCH_UP_WITH_MORE
        while not await asyncio.to_thread(self._control.taken):
            if not self._job.running.is_set():
                deadline = min(loop.time() + _TO_REACH, latest)
            if loop.time() > deadline and await asyncio.to_thread(self._control.disarm):
                return False
            self._keep_running()
            await asyncio.sleep(_LOOK)
        return True

    def _keep_running(self) -> None:
        """Start the job if none runs; note why the last one ended, unless it was killed."""
        if self._job.gone.is_set():
            if self._job.failure is not None:
                self.failures.append(self._job.failure)
            self._job.start()
