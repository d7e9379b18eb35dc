"""Everything that one simulated run does, drawn from its seed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from random import Random
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, final

import msgspec

from fanout.core.stored_json import MALFORMED_JSON
from fanout.errors import OptionError
from fanout.testing.virtual_time.schedule import Fifo, Priorities, Schedule, Shuffled
from tests.provers.simulation.chance import happens
from tests.provers.simulation.kinesis.fault_combinations import draw_combination
from tests.provers.simulation.kinesis.fault_draws import draw_fatal_kind, draw_faults
from tests.provers.simulation.kinesis.faults import KINESIS_FAULTS, KinesisFault, KinesisFaultKind
from tests.provers.simulation.kinesis.service.log_draws import make_log
from tests.provers.simulation.service_clock import shard_id_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.provers.simulation.kinesis.service.stream_log import SourceLog

__all__ = ("KinesisPlan", "decode_plan", "draw_kinesis_plan", "order_of", "stream_of")

P = TypeVar("P")

# The shares of plans that poll, that give a consumer by its ARN, and in which a shard stays broken.
_POLLING = 0.2
_BY_ARN = 0.1
_BROKEN = 0.1


# What a reader goes on asking after; damage ends the stream instead.
_FOR_EVER: Final = (
    KinesisFaultKind.REFUSED,
    KinesisFaultKind.HANGS,
    KinesisFaultKind.UNREACHABLE,
    KinesisFaultKind.STALL,
    KinesisFaultKind.RESET,
    KinesisFaultKind.ENDED_EARLY,
    KinesisFaultKind.RAISED,
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class KinesisPlan:
    """What one run does; the same plan gives the same run.

    Plans are kept as JSON, and must still be read when there is more to say in one: a field that
    is added has a default with which everything is as it was before.

    Args:
        seed: What everything else was drawn from.
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
        on_bad_aggregate: What becomes of an aggregated record that is damaged.
        on_bad_frame: What becomes of a frame that stays damaged.
        faults: What goes wrong.
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

    @classmethod
    def from_json(cls, text: str | bytes) -> KinesisPlan:
        """Read a plan back; its faults may be in any order.

        Raises:
            OptionError: If it is not one: not JSON, a field that is missing, or one that this
                version does not know, without which the run would be another one.
        """
        plan = decode_plan(text, cls, {"faults": KinesisFault})
        return replace(plan, faults=tuple(sorted(plan.faults, key=attrgetter("at"))))

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


def decode_plan(text: str | bytes, kind: type[P], faults: Mapping[str, type]) -> P:
    """Read a plan that was written as JSON.

    Args:
        text: The JSON.
        kind: The type of the plan.
        faults: The fields that hold faults, and the type of these.

    Raises:
        OptionError: If it is not one: not JSON, a field that is missing, or one that this version
            does not know, without which the run would be another one.
    """
    try:
        plan = msgspec.json.decode(text, type=kind)
        _check_names(msgspec.json.decode(text), kind, faults)
    except MALFORMED_JSON as error:
        raise OptionError(f"this is not a plan of a simulation: {error}") from error
    return plan


def order_of(schedule: Literal["fifo", "shuffled", "priorities"], seed: int) -> Schedule:
    """Make the schedule of task steps of a plan.

    Args:
        schedule: What kind.
        seed: The seed of the plan.
    """
    random = stream_of(seed, "schedule")
    match schedule:
        case "fifo":
            return Fifo()
        case "shuffled":
            return Shuffled(random)
        case "priorities":
            return Priorities(random)


def _check_names(
    document: dict[str, Any], kind: type[Any], faults: Mapping[str, type[Any]]
) -> None:
    """Refuse what msgspec passes over in a dataclass: a field that nobody knows."""
    unknown = document.keys() - {each.name for each in fields(kind)}
    for name, of in faults.items():
        for fault in document[name]:
            unknown |= fault.keys() - {each.name for each in fields(of)}
    if unknown:
        names = ", ".join(map(repr, sorted(unknown)))
        raise OptionError(f"this plan is of a newer version of fanout, or misspelt: {names}")


def stream_of(seed: int, purpose: str) -> Random:
    """Return the random numbers of one purpose; a draw for one changes nothing for another.

    Args:
        seed: The seed of the plan.
        purpose: The purpose, of which nothing else draws.
    """
    return Random(f"{seed}/{purpose}")


def draw_kinesis_plan(seed: int) -> KinesisPlan:
    """Draw a plan: small ones mostly, with some kinds of faults and not with others.

    Leaving kinds out finds more than a little of everything: swarm testing, by Groce, Zhang, Eide,
    Chen and Regehr, ISSTA 2012.

    Args:
        seed: Any number.
    """
    random, manner = stream_of(seed, "plan"), stream_of(seed, "manner")
    mode: Literal["efo", "polling"] = "polling" if happens(random, _POLLING) else "efo"
    if mode == "efo":
        shards = random.choices((1, 2, 4, 16), (50, 35, 14, 1))[0]
        seconds = random.choices((300.0, 900.0, 3600.0), (58, 40, 2))[0]
    else:  # a shard is polled every second at least, so there is more to do
        shards = random.choices((1, 2, 4), (60, 35, 5))[0]
        seconds = random.choices((20.0, 60.0, 300.0), (50, 47, 3))[0]
    plan = KinesisPlan(
        seed=seed,
        schedule=random.choices(("fifo", "shuffled", "priorities"), (20, 50, 30))[0],
        mode=mode,
        start=random.choices(("TRIM_HORIZON", "LATEST", "AT_TIMESTAMP"), (80, 10, 10))[0],
        shards=shards,
        records=random.choice((5, 15, 40)),
        reshards=random.choice((0, 0, 0, 0, 1, 1, 2, 5)),
        large=happens(random, 0.02),  # they take long
        seconds=seconds,
        heartbeat=random.choices((5.0, 15.0, 30.0), (10, 30, 60))[0],
        reading=manner.choice(("iterate", "drain", "mixed")),
        checkpoint_every=random.choice((1, 1, 3, 10)),
        broken=shard_id_of(random.randrange(shards)) if happens(random, _BROKEN) else None,
        consumer="arn" if happens(random, _BY_ARN) else "name",
        on_bad_aggregate=random.choice(("fail", "gap")),
        on_bad_frame=random.choice(("fail", "gap")),
        faults=(),
        acknowledging=manner.choice(("each", "twice", "some", "all")),
        storing=manner.choices(("positions", "drained", "delivered"), (60, 20, 20))[0],
        deregister=manner.choices(("never", "on_close"), (80, 20))[0],
        listing_every=manner.choice((10.0, 30.0, 60.0)),
        tight=happens(manner, 0.3),
        broken_by=manner.choice(
            [kind for kind in _FOR_EVER if KINESIS_FAULTS[kind].mode in {None, mode}]
        ),
    )
    fatal = draw_fatal_kind(random, mode)
    if fatal is not None and (field_of := KINESIS_FAULTS[fatal].fatal_with) is not None:
        options: dict[str, Any] = dict([field_of])
        plan = replace(plan, **options)
    faults = draw_faults(stream_of(seed, "faults"), plan, fatal)
    together = stream_of(seed, "together")
    if happens(together, 0.5):
        faults += draw_combination(together, plan)
    faults.sort(key=lambda fault: fault.at)
    return replace(plan, faults=tuple(faults))
