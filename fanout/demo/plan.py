"""Draw the actions on the stream and their times from a seed, so that a run can be repeated.

A time is a number of records sent: it means the same on a slow machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from operator import attrgetter
from random import Random
from typing import TYPE_CHECKING, TypeVar, final

from fanout.demo.options import ServiceName

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    CUT = "cut the connection of {} inside a frame"
    STALL = "silence {}, heartbeats included"
    ERROR = "end the subscription of {} with InternalFailureException"
    SPLIT_AGAIN = "split a shard that a reshard has created"
    MERGE_AGAIN = "merge two adjacent shards, one of which a reshard has created"

    THROTTLE = "throttle the next calls that receive records"
    REFUSE = "answer the next acknowledgements with InternalFailureException"
    CUT_RECEIVE = "cut the connection of the next call that receives records"
    CUT_ACKNOWLEDGE = "cut the connection of the next acknowledgement"

    GROW = "add partitions to the topic"
    RESTART = "kill the broker while the next records are in flight, and restart it"
    COMMIT = "send the next records in a transaction"
    MOVE = "let other nodes lead while the next records are in flight"
    HANG = "let a node answer nothing while the next records are in flight, until others lead"
    ABORT = "send the next records twice, once in a transaction that is aborted"


@final
@dataclass(frozen=True, slots=True)
class Action:
    """One action on the stream, after so many records that are sent."""

    at: int
    kind: Kind
    where: float  # the split among those open at the time, as a share of their number, in [0, 1)

    def choose(self, candidates: Sequence[T]) -> T:
        """Return the candidate that the action affects; there has to be at least one."""
        return candidates[int(self.where * len(candidates))]


@final
@dataclass(frozen=True, slots=True)
class ActionResult:
    """The result of actions: a description for people, and the splits that were closed and created.

    A split that was created and closed again is in both.
    """

    description: str
    ended: tuple[str, ...] = ()
    born: tuple[str, ...] = ()


@final
@dataclass(frozen=True, slots=True)
class Kill:
    """The time at which the Spark driver is killed, inside the handler, before Spark's commit."""

    after: int  # in the first batch that begins after this number of records
    written: bool  # whether the handler has written its output by then, or has not begun to


@final
class SparkProcess(StrEnum):
    """A Python process that Spark starts for a query."""

    PLANNER = "planner"
    WORKER = "worker"
    LANDER = "lander"


@final
@dataclass(frozen=True, slots=True)
class ProcessKill:
    """The time at which each driver kills processes that Spark has started.

    The lander that reads most is killed, or all processes of another kind.
    """

    process: SparkProcess
    after: int  # the number of records that the driver writes before
    delay: float  # seconds after that, so that the kill may come at any step of a batch


@final
@dataclass(frozen=True, slots=True)
class DemoPlan:
    """The actions and kills of one run; kills of processes come before that of the driver."""

    actions: tuple[Action, ...]
    kill: Kill | None = None  # of the driver that reads the stream
    kill_reader: Kill | None = None  # of the driver that reads the shuffle
    while_down: tuple[Action, ...] = ()  # while the killed driver that reads the stream is down
    kill_processes: tuple[ProcessKill, ...] = ()


# The actions of Kinesis, whose order is drawn; who reads a queue is told nothing of shards.
_DRAWN = {
    ServiceName.KINESIS: (Kind.MERGE, Kind.CUT, Kind.CUT, Kind.STALL, Kind.ERROR),
    ServiceName.KINESIS_QUEUE: (
        *(Kind.THROTTLE, Kind.REFUSE, Kind.CUT_RECEIVE, Kind.CUT_RECEIVE, Kind.CUT_ACKNOWLEDGE),
    ),
}
_WHILE_DOWN: dict[ServiceName, tuple[Kind, ...]] = {
    ServiceName.KINESIS: (Kind.SPLIT_AGAIN, Kind.MERGE_AGAIN),
    ServiceName.KINESIS_QUEUE: (),
}


def draw_plan(options: DemoOptions) -> DemoPlan:
    """Draw a plan from the seed; the same options draw the same plan.

    Each action falls into a window of its own.
    """
    service = options.source
    random = Random(options.seed)  # noqa: S311 - a plan to repeat, not a secret
    drawn = [*_DRAWN.get(service, (Kind.COMMIT, Kind.ABORT, Kind.ABORT))]
    random.shuffle(drawn)
    # The split comes first: a stream that begins with one shard then has two to merge, and the kill
    # finds children whose parent has ended. The broker is killed before the driver is, which has to
    # read on. The topic grows midway, and at least one transaction is aborted after that.
    kinds = [Kind.RESTART, drawn[0], Kind.GROW, *drawn[1:]]
    if service in _DRAWN:
        kinds = [Kind.SPLIT, *drawn] if service is ServiceName.KINESIS else drawn
    if options.nodes > 1:  # leaders move where all nodes are in sync, so the hang comes last
        kinds = [kinds[0], Kind.MOVE, *kinds[1:], Kind.HANG]
    window = (_LAST - _FIRST) / len(kinds)
    actions = tuple(
        Action(
            int(options.records * (_FIRST + window * (i + random.random()))), kind, random.random()
        )
        for i, kind in enumerate(kinds)
    )
    # Always drawn, so that a seed has the same actions with and without a kill.
    kill = Kill(int(options.records * random.uniform(0.25, 0.6)), random.random() < 0.5)  # noqa: PLR2004 - a fair coin
    down = _WHILE_DOWN.get(service, (Kind.GROW,))
    while_down = tuple(Action(kill.after, kind, random.random()) for kind in down)
    if not options.kill:
        return DemoPlan(actions)
    # The second driver is killed later, and at the other step of its batch.
    reader = Kill(int(options.records * random.uniform(0.65, 0.8)), not kill.written)
    processes = [SparkProcess.LANDER] if options.landers else []
    processes += [SparkProcess.PLANNER, SparkProcess.WORKER] if options.dataframe else []
    kills = [
        ProcessKill(process, int(options.records * random.uniform(0.05, 0.2)), random.random())
        for process in processes
    ]
    return DemoPlan(
        actions,
        kill,
        reader if options.shuffle else None,
        while_down,
        tuple(sorted(kills, key=attrgetter("after"))),
    )
