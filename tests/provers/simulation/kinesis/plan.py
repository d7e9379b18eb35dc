"""A plan of Kinesis: everything that one simulated run does."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, final

import msgspec

from fanout.errors import OptionError
from tests.provers.simulation.kinesis.faults import KINESIS_FAULTS, KinesisFault, KinesisFaultKind
from tests.provers.simulation.kinesis.service.log_draws import make_log
from tests.provers.simulation.randomness import order_of, stream_of

if TYPE_CHECKING:
    from fanout.testing.virtual_time.schedule import Schedule
    from tests.provers.simulation.kinesis.service.stream_log import SourceLog

__all__ = ("KinesisPlan",)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class KinesisPlan:
    """The plan of one run; the same plan gives the same run.

    Plans are kept as JSON, and must still be read when there is more to say in one: a field that
    is added has a default with which everything is as it was before.

    Args:
        seed: The seed of everything else.
        schedule: The order of task steps that are ready together.
        mode: How the stream is read.
        start: Where it is read from.
        shards: How many shards there are at first.
        records: About how many records come into each shard.
        reshards: How many splits and merges there are.
        large: Whether there may be records of up to 10 MiB.
        seconds: How long faults strike and records come, in virtual seconds.
        heartbeat: The longest silence of a healthy subscription, in seconds.
        reading: How the job reads: one batch after the other, many at once, or now so, now so.
        checkpoint_every: After how many reads the job stores its positions.
        acknowledging: What it acknowledges: each batch, each twice, only some and out of step, or
            everything that it has got.
        storing: What it stores: what it has acknowledged, what a drain says that it has got, or
            what the stream says.
        deregister: Whether a process takes the consumer that it has registered with it.
        listing_every: The seconds between two listings of the shards.
        tight: Whether memory is allowed for one large event only, of all shards together, and no
            two subscribe calls may be under way at once.
        broken: The shard that stays broken when everything else is repaired, where one does.
        broken_by: What goes wrong with that shard each time.
        consumer: Whether the consumer is given by its name, or by its ARN.
        on_bad_aggregate: The action for a damaged aggregated record.
        on_bad_frame: The action for a frame that stays damaged.
        faults: What goes wrong.
        source: Which service it is a plan of; the tag of stored plans.
    """

    seed: int
    schedule: Literal["fifo", "shuffled", "priorities"]
    mode: Literal["efo", "polling"]
    start: Literal["TRIM_HORIZON", "LATEST", "AT_TIMESTAMP"]
    shards: int
    records: int
    reshards: int
    large: bool
    seconds: float
    heartbeat: float
    reading: Literal["iterate", "drain", "mixed"]
    checkpoint_every: int
    broken: str | None
    faults: tuple[KinesisFault, ...] = field(repr=False)
    acknowledging: Literal["each", "twice", "some", "all"] = "each"
    storing: Literal["positions", "drained", "delivered"] = "positions"
    deregister: Literal["never", "on_close"] = "never"
    listing_every: float = 10.0
    tight: bool = False
    broken_by: KinesisFaultKind = KinesisFaultKind.REFUSED
    consumer: Literal["name", "arn"] = "name"
    on_bad_aggregate: Literal["fail", "gap"] = "fail"
    on_bad_frame: Literal["fail", "gap"] = "fail"
    source: Literal["kinesis"] = "kinesis"

    def __post_init__(self) -> None:
        """Check every range."""
        for name in ("shards", "records", "seconds", "heartbeat", "checkpoint_every"):
            if not 0 < getattr(self, name) < math.inf:
                raise OptionError(f"{name} must be more than 0, not {getattr(self, name)}")
        if self.reshards < 0:
            raise OptionError(f"reshards must not be negative, not {self.reshards}")

    @property
    def fatal_kinds(self) -> frozenset[KinesisFaultKind]:
        """The kinds of faults of which its stream has to fail."""
        return frozenset(
            kind
            for kind, traits in KINESIS_FAULTS.items()
            if traits.fatal
            or (traits.fatal_with and getattr(self, traits.fatal_with[0]) == traits.fatal_with[1])
        )

    def __str__(self) -> str:
        lines = [repr(self), *(f"  {fault}" for fault in self.faults)]
        return "\n".join(lines)

    def to_json(self) -> str:
        """Write the plan down, on one line."""
        return msgspec.json.encode(self).decode()

    def log(self, generation: int = 0) -> SourceLog:
        """Make what the stream holds, or one that replaces it.

        Args:
            generation: How many streams of its name there were before.
        """
        return make_log(
            stream_of(self.seed, "load" if not generation else f"load {generation}"),
            shards=self.shards,
            records=self.records,
            reshards=self.reshards,
            seconds=self.seconds,
            large=self.large,
            faults=self.faults,
            generation=generation,
        )

    def task_order(self) -> Schedule:
        """Make the schedule of task steps."""
        return order_of(self.schedule, self.seed)

    def without_faults(self) -> KinesisPlan:
        """Return the same plan with nothing that goes wrong."""
        return replace(self, faults=(), broken=None)
