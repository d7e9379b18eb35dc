"""A plan of Kafka: everything that one simulated run does."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Literal, final

import msgspec

from fanout.errors import OptionError
from fanout.kafka.partitions import Partition
from tests.provers.simulation.kafka.faults import KafkaFault  # noqa: TC001 - msgspec reads it
from tests.provers.simulation.kafka.log_draws import make_logs
from tests.provers.simulation.kinesis.faults import KinesisFault  # noqa: TC001 - msgspec reads it
from tests.provers.simulation.randomness import order_of, stream_of

if TYPE_CHECKING:
    from fanout.testing.virtual_time.schedule import Schedule
    from tests.provers.simulation.kafka.partition_log import PartitionLog

__all__ = ("KafkaPlan",)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaPlan:
    """The plan of one run; the same plan gives the same run.

    Plans are kept as JSON, and must still be read when there is more to say in one: a field that
    is added has a default with which everything is as it was before.

    Args:
        seed: The seed of everything else.
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
        on_data_loss: The action of the stream where records are lost.
        group: Whether the offsets of a group are committed.
        max_wait: How long a broker may wait for data, in seconds.
        fetch_bytes: About how many bytes are asked of a partition at once.
        listing_every: The seconds between two listings of the partitions; None for no further one.
        reading: How the job reads; this and what follows is as in a plan of Kinesis.
        checkpoint_every: After how many reads the job stores its positions.
        acknowledging: The batches that it acknowledges.
        storing: The positions that it stores.
        tight: Whether there is little memory.
        broken: The partition that stays broken when everything else is repaired, where one does.
        faults: The faults of the job and its store.
        cluster_faults: What goes wrong with the cluster.
        producers: How many producers of a shuffle write at once, at the most; 0 for no shuffle.
        generations: How many generations of them there are at the most.
        producer_timeout: After how many seconds a producer is silent; None for never.
        on_silent_producer: The action of the stream where one is silent.
        rack: The broker that is in the rack of the client, and has a replica of everything; 0
            where the client has no rack.
        source: Which service it is a plan of; the tag of stored plans.
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
    rack: int = 0
    source: Literal["kafka"] = "kafka"

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
