"""Everything that one simulated run over Kafka does, drawn from its seed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Literal, final

import msgspec

from fanout.errors import OptionError
from fanout.kafka.partitions import Partition
from tests.provers.simulation.chance import happens
from tests.provers.simulation.kafka.fault_draws import (
    draw_cluster_fault,
    draw_cluster_faults,
    draw_job_faults,
)
from tests.provers.simulation.kafka.faults import KAFKA_FAULTS, KafkaFault, KafkaFaultKind
from tests.provers.simulation.kafka.log_draws import make_logs
from tests.provers.simulation.kinesis.faults import KinesisFault
from tests.provers.simulation.kinesis.plan import decode_plan, order_of, stream_of

if TYPE_CHECKING:
    from random import Random

    from fanout.testing.virtual_time.schedule import Schedule
    from tests.provers.simulation.kafka.partition_log import PartitionLog

__all__ = ("KafkaPlan", "draw_kafka_plan")

# The share of plans in which a partition stays broken.
_BROKEN = 0.1
# The share in which the job reads a shuffle.
_SHUFFLED = 0.3
# The share of these in which a producer may be silent for too long.
_TIMED = 0.4


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaPlan:
    """What one run does; the same plan gives the same run.

    Plans are kept as JSON, and must still be read when there is more to say in one: a field that
    is added has a default with which everything is as it was before.

    Args:
        seed: What everything else was drawn from.
        schedule: The order of task steps that are ready together.
        brokers: How many brokers there are.
        partitions: How many partitions the topic `t` has at first.
        another: Whether there is a topic `u` beside it, of one partition.
        batches: About how many batches are written into each partition.
        transactions: Whether some are written in transactions.
        large: Whether there are large records.
        seconds: How long faults strike and records come, in virtual seconds.
        selection: How the partitions are named.
        start: Where they are read from.
        isolation_level: What is read of transactions.
        on_data_loss: What becomes of the stream where records are lost.
        group: Whether the offsets of a group are committed.
        max_wait: How long a broker may wait for data, in seconds.
        fetch_bytes: About how many bytes are asked of a partition at once.
        listing_every: The seconds between two listings of the partitions; None for no further one.
        reading: How the job reads; this and what follows is as in a plan of Kinesis.
        checkpoint_every: After how many reads the job stores its positions.
        acknowledging: What it acknowledges.
        storing: What it stores.
        tight: Whether there is little memory.
        broken: The partition that stays broken when everything else is repaired, where one does.
        faults: What goes wrong with the job and its store.
        cluster_faults: What goes wrong with the cluster.
        producers: How many producers of a shuffle write at once, at the most; 0 for no shuffle.
        generations: How many generations of them there are at the most.
        producer_timeout: After how many seconds a producer is silent; None for never.
        on_silent_producer: What becomes of the stream where one is.
    """

    seed: int
    schedule: Literal["fifo", "shuffled", "priorities"]
    brokers: int
    partitions: int
    another: bool
    batches: int
    transactions: bool
    large: bool
    seconds: float
    selection: Literal["topics", "pattern", "partitions"]
    start: Literal["earliest", "latest", "timestamp"]
    isolation_level: Literal["read_committed", "read_uncommitted"]
    on_data_loss: Literal["fail", "earliest"]
    group: bool
    max_wait: float
    fetch_bytes: int
    listing_every: float | None
    reading: Literal["iterate", "drain", "mixed"]
    checkpoint_every: int
    acknowledging: Literal["each", "twice", "some", "all"]
    storing: Literal["positions", "drained", "delivered"]
    tight: bool
    broken: str | None
    faults: tuple[KinesisFault, ...] = field(repr=False)
    cluster_faults: tuple[KafkaFault, ...] = field(repr=False)
    producers: int = 0
    generations: int = 1
    producer_timeout: float | None = None
    on_silent_producer: Literal["leave_out", "fail"] = "leave_out"

    def __post_init__(self) -> None:
        """Check every range."""
        for name in ("brokers", "partitions", "batches", "seconds", "checkpoint_every"):
            if not 0 < getattr(self, name) < math.inf:
                raise OptionError(f"{name} must be more than 0, not {getattr(self, name)}")

    def __str__(self) -> str:
        faults = sorted((*self.faults, *self.cluster_faults), key=attrgetter("at"))
        return "\n".join([repr(self), *(f"  {fault}" for fault in faults)])

    @property
    def at_first(self) -> list[Partition]:
        """The partitions that there are from the beginning."""
        numbers = [Partition("t", number) for number in range(self.partitions)]
        return [*numbers, *([Partition("u", 0)] if self.another else [])]

    @property
    def leaves_out(self) -> bool:
        """Whether the watermark goes on without producers that are silent."""
        return self.producer_timeout is not None and self.on_silent_producer == "leave_out"

    def to_json(self) -> str:
        """Write the plan down, on one line."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> KafkaPlan:
        """Read a plan back; its faults may be in any order.

        Raises:
            OptionError: If it is not one; see `tests.provers.simulation.kinesis.plan.decode_plan`.
        """
        plan = decode_plan(text, cls, {"faults": KinesisFault, "cluster_faults": KafkaFault})
        return replace(
            plan,
            faults=tuple(sorted(plan.faults, key=attrgetter("at"))),
            cluster_faults=tuple(sorted(plan.cluster_faults, key=attrgetter("at"))),
        )

    def logs(self) -> dict[Partition, PartitionLog]:
        """Make what the partitions hold."""
        return make_logs(
            lambda purpose: stream_of(self.seed, f"kafka {purpose}"),
            self.at_first,
            self.cluster_faults,
            batches=self.batches,
            seconds=self.seconds,
            transactions=self.transactions,
            large=self.large,
            producers=self.producers,
            generations=self.generations,
            go_on=self.leaves_out,
        )

    def task_order(self) -> Schedule:
        """Make the schedule of task steps."""
        return order_of(self.schedule, self.seed)

    def without_faults(self) -> KafkaPlan:
        """Return the same plan with nothing that goes wrong."""
        return replace(self, faults=(), cluster_faults=(), broken=None)


def draw_kafka_plan(seed: int) -> KafkaPlan:
    """Draw a plan: small ones mostly, with some kinds of faults and not with others.

    Args:
        seed: Any number.
    """
    random = stream_of(seed, "kafka plan")
    partitions = random.choices((1, 2, 3, 6), (40, 35, 20, 5))[0]
    another = happens(random, 0.3)
    names = [*(f"t-{number}" for number in range(partitions)), *(["u-0"] if another else [])]
    on_data_loss: Literal["fail", "earliest"] = random.choice(("fail", "earliest"))
    plan = KafkaPlan(
        seed=seed,
        schedule=random.choices(("fifo", "shuffled", "priorities"), (20, 50, 30))[0],
        brokers=random.choice((1, 2, 3)),
        partitions=partitions,
        another=another,
        batches=random.choice((3, 10, 25)),
        transactions=happens(random, 0.7),
        large=happens(random, 0.03),
        seconds=random.choices((20.0, 60.0, 300.0), (50, 40, 10))[0],
        selection=random.choice(("topics", "pattern", "partitions")),
        start=random.choices(("earliest", "latest", "timestamp"), (80, 10, 10))[0],
        isolation_level=random.choices(("read_committed", "read_uncommitted"), (85, 15))[0],
        on_data_loss=on_data_loss,
        group=happens(random, 0.5),
        max_wait=random.choices((0.5, 5.0, 20.0), (20, 40, 40))[0],
        fetch_bytes=random.choice((1 << 20, 1 << 20, 2000, 200)),
        listing_every=random.choice((5.0, 30.0, 60.0, None)),
        reading=random.choice(("iterate", "drain", "mixed")),
        checkpoint_every=random.choice((1, 1, 3, 10)),
        acknowledging=random.choice(("each", "twice", "some", "all")),
        storing=random.choices(("positions", "drained", "delivered"), (60, 20, 20))[0],
        tight=happens(random, 0.2),
        broken=random.choice(names) if happens(random, _BROKEN) else None,
        faults=(),
        cluster_faults=(),
    )
    plan = _with_shuffle(plan, stream_of(seed, "kafka shuffle"))
    faults = stream_of(seed, "kafka faults")
    lossy = on_data_loss == "earliest" or happens(faults, 0.1)
    # A shuffle has its number of partitions for ever.
    fixed = plan.listing_every is None or plan.producers
    unlisted = {KafkaFaultKind.PARTITIONS_ADDED} if fixed else set()
    cluster_faults = draw_cluster_faults(faults, names, plan.seconds, lossy=lossy, but=unlisted)
    if happens(faults, 0.03):
        fatal = [kind for kind in KafkaFaultKind if KAFKA_FAULTS[kind].fatal]
        kind = faults.choice(fatal)
        cluster_faults.append(draw_cluster_fault(faults, kind, names, plan.seconds))
    if plan.producers:
        cluster_faults = [replace(f, amount=_whole(f, partitions)) for f in cluster_faults]
    return replace(
        plan,
        faults=tuple(draw_job_faults(stream_of(seed, "kafka job faults"), plan.seconds)),
        cluster_faults=tuple(sorted(cluster_faults, key=attrgetter("at"))),
    )


def _with_shuffle(plan: KafkaPlan, random: Random) -> KafkaPlan:
    """Return a plan whose job reads a shuffle, or the plan as it is."""
    if not happens(random, _SHUFFLED):
        return plan
    return replace(
        plan,
        isolation_level="read_committed",
        producers=random.choice((1, 2, 2, 4)),
        generations=random.choice((1, 2, 4)),
        producer_timeout=random.choice((10.0, 30.0)) if happens(random, _TIMED) else None,
        on_silent_producer=random.choices(("leave_out", "fail"), (80, 20))[0],
    )


def _whole(fault: KafkaFault, partitions: int) -> int:
    """Return the amount of a fault with which a topic has all of its partitions again."""
    return partitions if fault.kind is KafkaFaultKind.RECREATED else fault.amount
