"""What a job meets that reads a simulated Kafka cluster."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, final

from fanout.kafka.shuffle.source import ShuffleSource
from tests.provers.simulation.job.store import Store
from tests.provers.simulation.kafka.cluster import Cluster
from tests.provers.simulation.kafka.faults import ClusterFault, ClusterKind, ClusterSite
from tests.provers.simulation.kafka.judge import judge_kafka_failure
from tests.provers.simulation.kafka.oracle import KafkaOracle
from tests.provers.simulation.kafka.served import Served
from tests.provers.simulation.kafka.service import Service
from tests.provers.simulation.kafka.shuffle.source import ShuffleSimSource
from tests.provers.simulation.kafka.shuffle.watch import Past
from tests.provers.simulation.kafka.source import KafkaSimSource, kafka_options
from tests.provers.simulation.kafka.transport import SimTransport
from tests.provers.simulation.kafka.witness import KafkaWitness
from tests.provers.simulation.kinesis.faults.armed import Armed
from tests.provers.simulation.kinesis.faults.faults import OF_THE_PROCESS, Fault
from tests.provers.simulation.kinesis.plan import stream_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from fanout.core.backoff import Pacing
    from fanout.errors import FanOutError
    from tests.provers.simulation.job.life import Life
    from tests.provers.simulation.kafka.plan import KafkaPlan

__all__ = ("KafkaWorld",)

# A stream that commits may take as long once more to tell the group what is acknowledged.
_CLOSE_GRACE: Final = 5.0
# A little less than the second that a stream that has failed has to stop reading.
_RECENT: Final = 0.9
_AT_ONCE: Final = {ClusterSite.LOG, ClusterSite.LEADERS, ClusterSite.BROKER}


@final
class KafkaWorld:
    """A Kafka cluster, what goes wrong with it, and who looks at everything.

    Args:
        plan: What happens.
        note: Told each fault that strikes, and other events.
    """

    def __init__(self, plan: KafkaPlan, note: Callable[[str], None]) -> None:
        self.plan = plan
        self.gone = False
        self.violations: list[str] = []
        self.armed: Armed[Fault] = Armed(
            [f for f in plan.faults if f.kind not in OF_THE_PROCESS], note
        )
        self._troubles: Armed[ClusterFault] = Armed(plan.cluster_faults, note)
        self.store = Store(self.armed)
        self.random = stream_of(plan.seed, "job")
        self.product = stream_of(plan.seed, "product")
        self._options = kafka_options(plan)
        fetching = self._options.fetching
        cluster = Cluster(
            plan.logs(),
            plan.brokers,
            plan.cluster_faults,
            until=plan.seconds,
            random=stream_of(plan.seed, "kafka leaders"),
        )
        self._service = Service(
            cluster,
            self._troubles,
            stream_of(plan.seed, "kafka service"),
            committed=plan.isolation_level == "read_committed",
            request_timeout=fetching.request_timeout,
            fetch_max_bytes=fetching.fetch_max_bytes,
        )
        self._served: dict[int, Served] = {}
        self._witnesses: dict[int, KafkaWitness] = {}
        self.oracle = KafkaOracle(
            self._service,
            self._served,
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
        """How the cluster is asked."""
        return self._options.pacing

    @property
    def grace(self) -> float:
        """How many seconds a stream may take to close."""
        return _CLOSE_GRACE * (2 if self.plan.group else 1)

    @property
    def calls(self) -> Mapping[str, int]:
        """The requests to the cluster, by name."""
        return self._service.calls

    @property
    def moments(self) -> Mapping[str, int]:
        """How often each coincidence was met."""
        return self._service.moments

    @property
    def struck(self) -> Mapping[str, int]:
        """What went wrong, by kind."""
        return Counter(self.armed.struck) + Counter(self._troubles.struck)

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Do nothing: the cluster counts coincidences itself."""
        yield

    async def befall(self) -> None:
        """Count what happens to the cluster at its moment; that it does is known beforehand."""
        for fault in self.plan.cluster_faults:
            if fault.traits.site in _AT_ONCE:
                await asyncio.sleep(fault.at - self.now)
                self._troubles.strikes(fault)

    def repair(self) -> None:
        """Let nothing go wrong any more, except with a partition that stays broken."""
        self.armed.stop()
        self._troubles.stop(*self._for_ever())

    def source(self, life: Life) -> KafkaSimSource | ShuffleSimSource:
        """Return what a process reads from."""

        def transport() -> SimTransport:
            number = life.number
            return SimTransport(self._service, life, self._served[number], self._witnesses[number])

        if self.plan.producers:
            shuffle = ShuffleSource(
                self._options,
                producer_timeout=self.plan.producer_timeout,
                on_silent_producer=self.plan.on_silent_producer,
            )
            return ShuffleSimSource(shuffle, transport, self.product)
        return KafkaSimSource(self._options, transport, self.product)

    def witness(self, life: Life) -> KafkaWitness:
        """Return who looks over the shoulder of a process."""
        served = self._served[life.number] = Served(self.now)
        witness = KafkaWitness(life, served, self._service, self.oracle, self.pacing)
        self._witnesses[life.number] = witness
        return witness

    def live_of(self, life: Life) -> list[str]:
        """Return the requests of a process that are under way."""
        return [name for name, _ in self._served[life.number].calling.values()]

    def still_read(self, life: Life) -> list[str]:
        """Return the fetches that a process has begun after its failure, which is a second ago."""
        calling = self._served[life.number].calling.values()
        return [name for name, began in calling if name == "Fetch" and began > self.now - _RECENT]

    def judge(self, failure: FanOutError, life: Life) -> None:
        """Check that a stream has failed of something that makes it fail."""
        reading = self.oracle.readings.get(life.number)
        self.gone = judge_kafka_failure(
            failure,
            life,
            self._served[life.number],
            self._service,
            self._options,
            silent=lambda partition: reading is not None and reading.may_be_silent(partition),
            worked=reading is not None and any(place.records for place in reading.places.values()),
        )

    def _past(self) -> Past:
        plan = self.plan
        return Past(
            self._service.moments,
            timeout=math.inf if plan.producer_timeout is None else plan.producer_timeout,
            last_words=plan.seconds if plan.leaves_out else math.inf,
        )

    def _for_ever(self) -> Iterator[ClusterFault]:
        if self.plan.broken is not None:
            yield ClusterFault(
                kind=ClusterKind.REFUSED,
                at=0,
                partition=self.plan.broken,
                lasts=math.inf,
                code="KafkaStorageError",
            )
