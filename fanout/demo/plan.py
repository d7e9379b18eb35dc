"""Draw from a seed what is done to the stream, and when, so that a run can be repeated.

Moments are counts of records, not times: they mean the same on a slow machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import TYPE_CHECKING, Final, TypeVar, final

from fanout.demo.options import ServiceName

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fanout.demo.options import DemoOptions

T = TypeVar("T")

# The share of the records that is sent before the first act, and before the end of the last window:
# the stream is under way by then, and all splits still get records afterwards.
_FIRST, _LAST = 0.10, 0.85


@final
class Kind(Enum):
    """A kind of act on the stream."""

    SPLIT = "split a shard"
    MERGE = "merge two adjacent shards"
    CUT = "cut a connection inside a frame"
    STALL = "silence a shard, heartbeats included"
    ERROR = "end a subscription with InternalFailureException"
    SPLIT_AGAIN = "split a shard that a reshard has made"
    MERGE_AGAIN = "merge two adjacent shards, one of which a reshard has made"

    GROW = "add partitions to the topic"
    RESTART = "kill the broker while records are on their way, and start it again"
    COMMIT = "send records in a transaction"
    ABORT = "send records beside a transaction that is aborted"


@final
@dataclass(frozen=True, slots=True)
class Script:
    """The acts on the streams of a service.

    Args:
        acts: What is done while records flow, in order; None where the seed decides.
        drawn: What the seed decides on, as many as there are None.
        while_down: What is done between the kill of the driver and the start of another.
    """

    acts: tuple[Kind | None, ...]
    drawn: tuple[Kind, ...]
    while_down: tuple[Kind, ...]


# The broker is killed before the driver is, which has to read on; the topic grows midway; and one
# transaction at least is aborted after that.
_KAFKA: Final = Script(
    acts=(Kind.RESTART, None, Kind.GROW, None, None),
    drawn=(Kind.COMMIT, Kind.ABORT, Kind.ABORT),
    while_down=(Kind.GROW,),
)

SCRIPTS: Final[Mapping[ServiceName, Script]] = {
    # The split comes first: a stream that begins with one shard then has two to merge, and the kill
    # finds children whose parent has ended.
    ServiceName.KINESIS: Script(
        acts=(Kind.SPLIT, None, None, None, None, None),
        drawn=(Kind.MERGE, Kind.CUT, Kind.CUT, Kind.STALL, Kind.ERROR),
        while_down=(Kind.SPLIT_AGAIN, Kind.MERGE_AGAIN),
    ),
    ServiceName.KAFKA: _KAFKA,
    ServiceName.KAFKA_SHARE: _KAFKA,
}


@final
@dataclass(frozen=True, slots=True)
class Act:
    """One thing that is done to the stream.

    Args:
        at: How many records have been sent by then.
        kind: What is done.
        where: Which of the splits that are there then, as a share of their number, in [0, 1).
    """

    at: int
    kind: Kind
    where: float

    def choose(self, candidates: Sequence[T]) -> T:
        """Return the one of the candidates, which are one at least, that the act strikes."""
        return candidates[int(self.where * len(candidates))]


@final
@dataclass(frozen=True, slots=True)
class Kill:
    """When the Spark driver is killed: inside the handler, its segment sealed, Spark's commit due.

    Args:
        after: The first batch that begins after so many records is the one.
        written: Whether the handler has written its output by then, or not begun to.
    """

    after: int
    written: bool


@final
@dataclass(frozen=True, slots=True)
class DemoPlan:
    """Everything that goes wrong in one run.

    Args:
        acts: What is done to the stream, in the order of its moments.
        kill: When the driver is killed that reads the stream; None for never.
        kill_reader: When the driver is killed that reads the shuffle; None for never.
        while_down: What is done to the stream while the killed driver that reads it is down,
            however much was sent by then; nothing without a kill.
    """

    acts: tuple[Act, ...]
    kill: Kill | None
    kill_reader: Kill | None
    while_down: tuple[Act, ...]


def draw_plan(options: DemoOptions) -> DemoPlan:
    """Draw a plan from the seed; the same options draw the same plan.

    Each act falls into a window of its own.
    """
    script = SCRIPTS[options.source]
    random = Random(options.seed)  # noqa: S311 - a plan to repeat, not a secret
    drawn = list(script.drawn)
    random.shuffle(drawn)
    left = iter(drawn)
    kinds = [next(left) if kind is None else kind for kind in script.acts]
    window = (_LAST - _FIRST) / len(kinds)
    acts = tuple(
        Act(int(options.records * (_FIRST + window * (i + random.random()))), kind, random.random())
        for i, kind in enumerate(kinds)
    )
    # Drawn in any case, so that a seed means the same with and without it.
    kill = Kill(int(options.records * random.uniform(0.25, 0.6)), random.random() < 0.5)  # noqa: PLR2004 - a fair coin
    while_down = tuple(Act(kill.after, kind, random.random()) for kind in script.while_down)
    if not options.kill:
        return DemoPlan(acts, None, None, ())
    # One driver after the other, and at the other moment of its batch.
    reader = Kill(int(options.records * random.uniform(0.65, 0.8)), not kill.written)
    return DemoPlan(acts, kill, reader if options.shuffle else None, while_down)
