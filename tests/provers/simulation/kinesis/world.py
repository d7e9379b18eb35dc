"""A simulated stream of Kinesis with its faults and its oracle, as a job meets them."""

from __future__ import annotations

import asyncio
import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, final

from fanout.kinesis.registration import DEREGISTRATION_TIMEOUT
from tests.provers.simulation.armed_faults import ArmedFaults
from tests.provers.simulation.job.position_store import PositionStore
from tests.provers.simulation.kinesis.faults import PROCESS_FAULTS, KinesisFault, KinesisFaultSite
from tests.provers.simulation.kinesis.oracle.failure_check import check_kinesis_failure
from tests.provers.simulation.kinesis.oracle.oracle import KinesisOracle
from tests.provers.simulation.kinesis.oracle.witness import KinesisWitness
from tests.provers.simulation.kinesis.service.client import KinesisSimClient
from tests.provers.simulation.kinesis.service.service import KinesisSimService
from tests.provers.simulation.kinesis.source import KinesisSimSource, kinesis_options
from tests.provers.simulation.moments.observers import Observers
from tests.provers.simulation.randomness import stream_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from fanout.core.backoff import Pacing
    from fanout.errors import FanOutError
    from tests.provers.simulation.job.process_run import ProcessRun
    from tests.provers.simulation.kinesis.plan import KinesisPlan

__all__ = ("KinesisWorld",)

_CLOSE_GRACE: Final = 5.0


@final
class KinesisWorld:
    """A stream of Kinesis, what goes wrong with it, and who looks at everything.

    Args:
        plan: What happens.
        note: Receives each fault that strikes, and other events.
    """

    def __init__(self, plan: KinesisPlan, note: Callable[[str], None]) -> None:
        self.plan = plan
        self.armed = ArmedFaults([f for f in plan.faults if f.kind not in PROCESS_FAULTS], note)
        self.store = PositionStore(self.armed)
        self.random = stream_of(plan.seed, "job")
        self.product = stream_of(plan.seed, "product")
        log = plan.log()
        self._service = KinesisSimService(plan, log, stream_of(plan.seed, "service"), self.armed)
        self.oracle = KinesisOracle(log, self._service)
        self._options = kinesis_options(plan, self._service)
        self._observers = Observers(log)

    @property
    def now(self) -> float:
        """The virtual seconds."""
        return self._service.now

    @property
    def pacing(self) -> Pacing:
        """The pacing of calls to the service."""
        return self._options.pacing

    @property
    def grace(self) -> float:
        """The seconds that a stream may take to close."""
        deregisters = self._options.deregister == "on_close"
        return _CLOSE_GRACE + DEREGISTRATION_TIMEOUT * deregisters

    @property
    def gone(self) -> bool:
        """Whether no reader can go on."""
        return self._service.gone

    @property
    def violations(self) -> list[str]:
        """Which rules of the service were broken."""
        return self._service.violations

    @property
    def calls(self) -> Mapping[str, int]:
        """The calls to the service, by name."""
        return self._service.calls

    @property
    def struck(self) -> Mapping[str, int]:
        """The faults that struck, by kind."""
        return self.armed.struck

    @property
    def moments(self) -> Mapping[str, int]:
        """The count of each coincidence."""
        return self._observers.moments

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Look out for coincidences while the block runs."""
        with self._observers.installed():
            yield

    async def strike_service(self) -> None:
        """Let happen to the stream what happens to it."""
        for fault in list(self.armed.of(KinesisFaultSite.SERVICE)):
            await asyncio.sleep(fault.at - self.now)
            if self._service.strike_service(fault):
                self.armed.strikes(fault)

    def repair(self) -> None:
        """Let nothing go wrong any more, except that one shard cannot be read for ever."""
        self.armed.stop(*self._for_ever())
        self._service.outages.pass_by()

    def source(self, run: ProcessRun) -> KinesisSimSource:
        """Return what a process reads from."""
        client = KinesisSimClient(self._service, self.armed, run)
        pending = 1 if self.plan.tight else 64
        return KinesisSimSource(self._options, client, self.product, pending)

    def witness(self, run: ProcessRun) -> KinesisWitness:
        """Return the witness of a process."""
        return KinesisWitness(run, self.oracle.log, self._options)

    def live_of(self, run: ProcessRun) -> list[str]:
        """Return the shards of which a process has a subscription."""
        return self._service.live_of(run)

    def still_read(self, run: ProcessRun) -> list[str]:
        """Return the shards that a process still subscribes to."""
        return self.live_of(run)

    def judge(self, failure: FanOutError, run: ProcessRun) -> None:
        """Check that a stream has failed of something that makes it fail."""
        check_kinesis_failure(failure, run, self._options, self.now, gone=self.gone)

    def _for_ever(self) -> Iterator[KinesisFault]:
        by, broken = self.plan.broken_by, self.plan.broken
        if broken is not None:
            code = "InternalFailureException"
            yield KinesisFault(kind=by, at=0, shard=broken, seconds=60, lasts=math.inf, code=code)
