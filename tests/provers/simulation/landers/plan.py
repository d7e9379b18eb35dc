"""What happens to a coordinator and its landers: drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Literal, final

import msgspec

from tests.provers.simulation.randomness import happens, order_of, stream_of

if TYPE_CHECKING:
    from random import Random

    from fanout.testing.virtual_time.schedule import Schedule

__all__ = ("LanderFault", "LanderFaultKind", "LandersPlan", "draw_landers_plan")

# How long a fault lasts, in seconds: an instant, a lease, a silence, a minute, and until the end.
_SECONDS: Final = (0.5, 1.0, 3.0, 5.5, 8.0, 15.0, 60.0, 600.0)


@final
class LanderFaultKind(StrEnum):
    """Name what goes wrong."""

    SLOW_NETWORK = "slow network"
    CUT = "cut both ways"
    CUT_TO_LANDER = "cut towards the lander"
    CUT_TO_COORDINATOR = "cut towards the coordinator"
    BROKEN = "connection broken"
    LOST = "all that is sent from now on is lost"
    KILLED = "lander killed"
    MACHINE_LOST = "machine of a lander lost"
    ZOMBIE = "zombie: Spark takes the task for ended"
    TWIN = "twin: a second attempt beside the first"
    STORE_SLOW = "storage slow"
    STORE_REFUSES = "storage refuses"
    BATCHES_SLOW = "batches slow"
    DRIVER_KILLED = "driver killed"
    DRIVER_STOPPED = "driver stopped"
    DRIVER_FINISHES = "driver reads no more, and lands what was read"


@final
@dataclass(frozen=True, slots=True)
class LanderFault:
    """Something goes wrong.

    Args:
        kind: What.
        at: When, in seconds.
        lander: With which lander; no matter for the driver, the batches and the storage.
        seconds: For how long; for an end, how long until the next beginning.
    """

    kind: LanderFaultKind
    at: float
    lander: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.at:.3f}: {self.kind}, lander {self.lander}, {self.seconds:g} s"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LandersPlan:
    """A run.

    Args:
        seed: Decides everything that is not written here.
        landers: How many there are.
        splits: How many splits there are at the beginning.
        reshards: How often splits are replaced by others.
        records: How many records each split has, about.
        seconds: After how many seconds nothing goes wrong any more.
        latency: The longest way of a message, in seconds.
        flaky: The share of subscriptions that fail.
        max_records: The most records in a segment.
        max_wait: Seconds from the first record of a segment until it may be landed.
        min_records: The records for which a batch waits.
        handling: The longest time that a batch takes, in seconds.
        schedule: The order of task steps.
        faults: What goes wrong, by time.
        lands: Whether a landing has the records, and no query.
        bad: The share of records that `decode` fails for, of a landing.
        partition_by: The columns whose values are the directories of a landing's files.
    """

    seed: int
    landers: int
    splits: int
    reshards: int
    records: int
    seconds: float
    latency: float
    flaky: float
    max_records: int
    max_wait: float
    min_records: int
    handling: float
    schedule: Literal["fifo", "shuffled", "priorities"]
    faults: tuple[LanderFault, ...]
    lands: bool = False
    bad: float = 0.0
    partition_by: tuple[str, ...] = ()
    source: Literal["landers"] = "landers"

    def task_order(self) -> Schedule:
        """Make the order of task steps."""
        return order_of(self.schedule, self.seed)

    def to_json(self) -> str:
        """Return the plan as JSON."""
        return msgspec.json.encode(self).decode()


def draw_landers_plan(seed: int) -> LandersPlan:
    """Draw the plan of a seed."""
    random = stream_of(seed, "landers")
    landers = random.choice((1, 2, 2, 3, 4))
    seconds = random.choice((10.0, 30.0, 60.0, 120.0))
    plan = LandersPlan(
        seed=seed,
        landers=landers,
        splits=random.randint(1, 5),
        reshards=random.randint(0, 3),
        records=random.choice((5, 20, 60)),
        seconds=seconds,
        latency=random.choice((0.001, 0.02, 0.3)),
        flaky=random.choice((0.0, 0.0, 0.1, 0.4)),
        max_records=random.choice((3, 10, 40)),
        max_wait=random.choice((0.05, 0.5, 2.0)),
        min_records=stream_of(seed, "batches of landers").choice((1, 1, 5, 20)),
        handling=random.choice((0.0, 0.2, 2.0)),
        schedule=random.choice(("fifo", "shuffled", "priorities")),
        faults=_with_finish(_draw_faults(random, landers, seconds), seed, seconds),
    )
    return _with_landing(plan)


def _with_landing(plan: LandersPlan) -> LandersPlan:
    random = stream_of(plan.seed, "landing of landers")
    if happens(random, 0.6):
        return plan
    return replace(
        plan,
        min_records=1,
        lands=True,
        bad=random.choice((0.0, 0.1, 0.5)),
        partition_by=random.choice(((), ("split",), ("split",), ("sequence",))),
    )


def _draw_faults(random: Random, landers: int, seconds: float) -> tuple[LanderFault, ...]:
    others = [kind for kind in LanderFaultKind if kind is not LanderFaultKind.DRIVER_FINISHES]
    kinds = [kind for kind in others if happens(random, 0.5)]
    if not kinds:
        return ()
    drawn = (
        LanderFault(
            random.choice(kinds),
            round(random.uniform(0.0, seconds), 3),
            random.randrange(landers),
            random.choice(_SECONDS),
        )
        for _ in range(random.choice((1, 3, 6, 12)))
    )
    return tuple(sorted(drawn, key=lambda fault: fault.at))


def _with_finish(
    faults: tuple[LanderFault, ...], seed: int, seconds: float
) -> tuple[LanderFault, ...]:
    random = stream_of(seed, "finish of landers")
    if happens(random, 0.6):
        return faults
    at = round(random.uniform(0.0, seconds), 3)
    finish = LanderFault(LanderFaultKind.DRIVER_FINISHES, at)
    return tuple(sorted((*faults, finish), key=lambda fault: fault.at))
