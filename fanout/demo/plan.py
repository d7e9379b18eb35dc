"""Draw the actions on the stream and their times from a seed, so that a run can be repeated.

A time is a number of records sent: it means the same on a slow machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from operator import attrgetter
from random import Random
from typing import TYPE_CHECKING, Final, TypeVar, final

from fanout.demo.options import ServiceName

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fanout.demo.options import DemoOptions

T = TypeVar("T")

# The share of the records that is sent before the first action, and before the end of the last
# window: records flow by then, and all splits still get records afterwards.
_FIRST, _LAST = 0.10, 0.85


@final
class Kind(Enum):
    """A kind of action on the stream."""

    SPLIT = "split a shard"
    MERGE = "merge two adjacent shards"
    CUT = "cut a connection inside a frame"
    STALL = "silence a shard, heartbeats included"
    ERROR = "end a subscription with InternalFailureException"
    SPLIT_AGAIN = "split a shard that a reshard has created"
    MERGE_AGAIN = "merge two adjacent shards, one of which a reshard has created"

    GROW = "add partitions to the topic"
    RESTART = "kill the broker while records are in flight, and restart it"
    COMMIT = "send records in a transaction"
    ABORT = "send records beside a transaction that is aborted"


@final
@dataclass(frozen=True, slots=True)
class Script:
    """The actions on the streams of a service.

    Args:
        actions: The actions while records flow, in order; None where the seed decides.
        drawn: The actions that the seed puts in place of None, as many as those.
        while_down: The actions between the kill of the driver and the start of another.
    """

    actions: tuple[Kind | None, ...]
    drawn: tuple[Kind, ...]
    while_down: tuple[Kind, ...]


# The broker is killed before the driver is, which has to read on. The topic grows midway, and at
# least one transaction is aborted after that.
_KAFKA: Final = Script(
    actions=(Kind.RESTART, None, Kind.GROW, None, None),
    drawn=(Kind.COMMIT, Kind.ABORT, Kind.ABORT),
    while_down=(Kind.GROW,),
)

SCRIPTS: Final[Mapping[ServiceName, Script]] = {
    # The split comes first: a stream that begins with one shard then has two to merge, and the kill
    # finds children whose parent has ended.
    ServiceName.KINESIS: Script(
        actions=(Kind.SPLIT, None, None, None, None, None),
        drawn=(Kind.MERGE, Kind.CUT, Kind.CUT, Kind.STALL, Kind.ERROR),
        while_down=(Kind.SPLIT_AGAIN, Kind.MERGE_AGAIN),
    ),
    ServiceName.KAFKA: _KAFKA,
    ServiceName.KAFKA_SHARE: _KAFKA,
}


@final
@dataclass(frozen=True, slots=True)
class Action:
    """One action on the stream.

    Args:
        at: The number of records that are sent before it.
        kind: The kind of action.
        where: The split among those open at the time, as a share of their number, in [0, 1).
    """

    at: int
    kind: Kind
    where: float

    def choose(self, candidates: Sequence[T]) -> T:
        """Return the candidate that the action affects; there has to be at least one."""
        return candidates[int(self.where * len(candidates))]


@final
@dataclass(frozen=True, slots=True)
class Kill:
    """The time at which the Spark driver is killed, inside the handler, before Spark's commit.

    Args:
        after: The driver is killed in the first batch that begins after this number of records.
        written: Whether the handler has written its output by then, or has not begun to.
    """

    after: int
    written: bool


@final
class SparkProcess(StrEnum):
    """A Python process that Spark starts for the query of a DataFrame."""

    PLANNER = "planner"
    WORKER = "worker"


@final
@dataclass(frozen=True, slots=True)
class ProcessKill:
    """The time at which each driver kills processes that Spark has started.

    Args:
        process: All processes of this kind are killed.
        after: The number of records that the driver writes before.
        delay: Seconds after that, so that the kill may come at any step of a batch.
    """

    process: SparkProcess
    after: int
    delay: float


@final
@dataclass(frozen=True, slots=True)
class DemoPlan:
    """The actions and kills of one run.

    Args:
        actions: The actions on the stream, in the order of their times.
        kill: The kill of the driver that reads the stream; None for none.
        kill_reader: The kill of the driver that reads the shuffle; None for none.
        while_down: The actions on the stream while the killed driver that reads it is down, at
            any number of records sent; none without a kill.
        kill_lander: The number of records that each driver writes before one of its landers is
            killed; less than before its own kill. None for none.
        kill_processes: The kills of the planner and of the workers of a DataFrame, in the order of
            their times, which come before the kill of the driver; none without a DataFrame.
    """

    actions: tuple[Action, ...]
    kill: Kill | None
    kill_reader: Kill | None
    while_down: tuple[Action, ...]
    kill_lander: int | None = None
    kill_processes: tuple[ProcessKill, ...] = ()


def draw_plan(options: DemoOptions) -> DemoPlan:
    """Draw a plan from the seed; the same options draw the same plan.

    Each action falls into a window of its own.
    """
    script = SCRIPTS[options.source]
    random = Random(options.seed)  # noqa: S311 - a plan to repeat, not a secret
    drawn = list(script.drawn)
    random.shuffle(drawn)
    left = iter(drawn)
    kinds = [next(left) if kind is None else kind for kind in script.actions]
    window = (_LAST - _FIRST) / len(kinds)
    actions = tuple(
        Action(
            int(options.records * (_FIRST + window * (i + random.random()))), kind, random.random()
        )
        for i, kind in enumerate(kinds)
    )
    # Always drawn, so that a seed has the same actions with and without a kill.
    kill = Kill(int(options.records * random.uniform(0.25, 0.6)), random.random() < 0.5)  # noqa: PLR2004 - a fair coin
    while_down = tuple(Action(kill.after, kind, random.random()) for kind in script.while_down)
    if not options.kill:
        return DemoPlan(actions, None, None, ())
    # The second driver is killed later, and at the other step of its batch.
    reader = Kill(int(options.records * random.uniform(0.65, 0.8)), not kill.written)
    kill_lander = int(options.records * random.uniform(0.05, 0.2))
    kill_processes = [
        ProcessKill(process, int(options.records * random.uniform(0.05, 0.2)), random.random())
        for process in SparkProcess
    ]
    return DemoPlan(
        actions,
        kill,
        reader if options.shuffle else None,
        while_down,
        kill_lander if options.landers else None,
        tuple(sorted(kill_processes, key=attrgetter("after"))) if options.dataframe else (),
    )
