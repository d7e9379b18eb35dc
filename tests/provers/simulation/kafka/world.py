"""A simulated Kafka cluster with its faults and its oracle, as a job meets them."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, final

from fanout.kafka.shuffle.source import ShuffleSource
from tests.provers.simulation.armed_faults import ArmedFaults
from tests.provers.simulation.job.position_store import PositionStore
from tests.provers.simulation.kafka.cluster import SimCluster
from tests.provers.simulation.kafka.failure_check import check_kafka_failure
from tests.provers.simulation.kafka.faults import KafkaFault, KafkaFaultKind, KafkaFaultSite
from tests.provers.simulation.kafka.oracle import KafkaOracle
from tests.provers.simulation.kafka.sent_responses import SentResponses
from tests.provers.simulation.kafka.service import KafkaSimService
from tests.provers.simulation.kafka.shuffle.watermark_check import WatermarkHistory
from tests.provers.simulation.kafka.source import KafkaSimSource, ShuffleSimSource, kafka_options
from tests.provers.simulation.kafka.transport import KafkaSimTransport
from tests.provers.simulation.kafka.witness import KafkaWitness
from tests.provers.simulation.kinesis.faults import PROCESS_FAULTS, KinesisFault
from tests.provers.simulation.randomness import stream_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from fanout.core.backoff import Pacing
    from fanout.errors import FanOutError
    from tests.provers.simulation.job.process_run import ProcessRun
    from tests.provers.simulation.kafka.plan import KafkaPlan

__all__ = ("KafkaWorld",)

# A stream that commits may take as long once more to commit what is acknowledged.
_CLOSE_GRACE: Final = 5.0
# A little less than the second that a stream that has failed has to stop reading.
_RECENT: Final = 0.9
_AT_ONCE: Final = {
    KafkaFaultSite.LOG,
    KafkaFaultSite.LEADERS,
    KafkaFaultSite.BROKER,
    KafkaFaultSite.GROUP,
}


@final
class KafkaWorld:
    """A Kafka cluster, what goes wrong with it, and who looks at everything.

    Args:
        plan: What happens.
        note: Receives each fault that strikes, and other events.
    """

    def __init__(self, plan: KafkaPlan, note: Callable[[str], None]) -> None:
        self.plan = plan
        self.gone = False
        self.violations: list[str] = []
        self.armed: ArmedFaults[KinesisFault] = ArmedFaults(
            [f for f in plan.faults if f.kind not in PROCESS_FAULTS], note
        )
        self._troubles: ArmedFaults[KafkaFault] = ArmedFaults(plan.cluster_faults, note)
        self.store = PositionStore(self.armed)
        self.random = stream_of(plan.seed, "job")
        self.product = stream_of(plan.seed, "product")
        self._options = kafka_options(plan)
        fetching = self._options.fetching
        cluster = SimCluster(
            plan.logs(),
            plan.brokers,
            plan.cluster_faults,
            until=plan.seconds,
            random=stream_of(plan.seed, "kafka leaders"),
            rack=plan.rack,
        )
        self._service = KafkaSimService(
            cluster,
            self._troubles,
            stream_of(plan.seed, "kafka service"),
            committed=plan.isolation_level == "read_committed",
            request_timeout=fetching.request_timeout,
            fetch_max_bytes=fetching.fetch_max_bytes,
        )
        self._sent_responses: dict[int, SentResponses] = {}
        self._witnesses: dict[int, KafkaWitness] = {}
        self.oracle = KafkaOracle(
            self._service,
            self._sent_responses,
            self._options.selection.includes,
            plan.start,
            self._past() if plan.producers else None,
        )

    @property
    def now(self) -> float:
        """The virtual seconds."""
        return self._service.now

    @property
    def pacing(self) -> Pacing:
        """The pacing of calls to the cluster."""
        return self._options.pacing

    @property
    def grace(self) -> float:
        """The seconds that a stream may take to close."""
        return _CLOSE_GRACE * (2 if self.plan.group else 1)

    @property
    def calls(self) -> Mapping[str, int]:
        """The requests to the cluster, by name."""
        return self._service.calls

    @property
    def moments(self) -> Mapping[str, int]:
        """The count of each coincidence."""
        return self._service.moments

    @property
    def struck(self) -> Mapping[str, int]:
        """The faults that struck, by kind."""
        return Counter(self.armed.struck) + Counter(self._troubles.struck)

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Do nothing: the cluster counts coincidences itself."""
        yield

    async def strike_service(self) -> None:
        """Count what happens to the cluster at its moment; that it does is known beforehand."""
        for fault in self.plan.cluster_faults:
            if fault.traits.site in _AT_ONCE:
                await asyncio.sleep(fault.at - self.now)
                self._troubles.strikes(fault)

    def repair(self) -> None:
        """Let nothing go wrong any more, except with a partition that stays broken."""
        self.armed.stop()
        self._troubles.stop(*self._for_ever())

    def source(self, run: ProcessRun) -> KafkaSimSource | ShuffleSimSource:
        """Return what a process reads from."""

        def transport() -> KafkaSimTransport:
            number = run.number
            return KafkaSimTransport(
                self._service, run, self._sent_responses[number], self._witnesses[number]
            )

        if self.plan.producers:
            shuffle = ShuffleSource(
                self._options,
                producer_timeout=self.plan.producer_timeout,
                on_silent_producer=self.plan.on_silent_producer,
            )
            return ShuffleSimSource(shuffle, transport, self.product)
        return KafkaSimSource(self._options, transport, self.product)

    def witness(self, run: ProcessRun) -> KafkaWitness:
        """Return the witness of a process."""
        sent_responses = self._sent_responses[run.number] = SentResponses(self.now)
        witness = KafkaWitness(run, sent_responses, self._service, self.oracle, self.pacing)
        self._witnesses[run.number] = witness
        return witness

    def live_of(self, run: ProcessRun) -> list[str]:
        """Return the requests of a process that are under way."""
        return [name for name, _ in self._sent_responses[run.number].calling.values()]

    def still_read(self, run: ProcessRun) -> list[str]:
        """Return the fetches that a process has begun after its failure, which is a second ago."""
        calling = self._sent_responses[run.number].calling.values()
        return [name for name, began in calling if name == "Fetch" and began > self.now - _RECENT]

    def judge(self, failure: FanOutError, run: ProcessRun) -> None:
        """Check that a stream has failed of something that makes it fail."""
        reading = self.oracle.readings.get(run.number)
        self.gone = check_kafka_failure(
            failure,
            run,
            self._sent_responses[run.number],
            self._service,
            self._options,
            silent=lambda partition: reading is not None and reading.may_be_silent(partition),
            worked=reading is not None and any(place.records for place in reading.places.values()),
        )

    def _past(self) -> WatermarkHistory:
        plan = self.plan
        return WatermarkHistory(
            self._service.moments,
            timeout=math.inf if plan.producer_timeout is None else plan.producer_timeout,
            last_stop=plan.seconds if plan.leaves_out else math.inf,
        )

    def _for_ever(self) -> Iterator[KafkaFault]:
        if self.plan.broken is not None:
            yield KafkaFault(
                kind=KafkaFaultKind.REFUSED,
                at=0,
                partition=self.plan.broken,
                lasts=math.inf,
                code="KafkaStorageError",
            )
