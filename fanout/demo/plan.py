"""What is done to the stream, and when: drawn from a seed, so that a run can be had again.

Moments are counts of records, not times: they mean the same on a slow machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import TYPE_CHECKING, TypeVar, final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanout.demo.options import DemoOptions

__all__ = ("Act", "Kill", "Kind", "Plan", "SecondReshard", "draw_plan")

T = TypeVar("T")

# The share of the records that is sent before the first act, and before the end of the last window:
# the stream is under way by then, and all shards still get records afterwards.
_FIRST, _LAST = 0.10, 0.85


@final
class Kind(Enum):
    """What is done to the stream."""

    SPLIT = "split a shard"
    MERGE = "merge two adjacent shards"
    CUT = "cut a connection inside a frame"
    STALL = "silence a shard, heartbeats included"
    ERROR = "end a subscription with InternalFailureException"


@final
@dataclass(frozen=True, slots=True)
class Act:
    """One thing that is done to the stream.

    Args:
        at: How many records have been sent by then.
        kind: What is done.
        where: Which of the shards that are open then, as a share of their number, in [0, 1).
    """

    at: int
    kind: Kind
    where: float

    def choose(self, candidates: Sequence[T]) -> T:
        """Return the candidate that the act strikes."""
        return choose(self.where, candidates)


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
class SecondReshard:
    """Which shards are split and merged while nobody reads, between the kill and the restart.

    Args:
        split: Which of the open shards that the first reshard has made is split, as a share of
            their number, in [0, 1).
        merge: Which of the neighbours are merged then, of those of which a reshard has made one.
    """

    split: float
    merge: float


@final
@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that goes wrong in one run.

    Args:
        acts: What is done to the stream, in the order of its moments.
        kill: When the driver is killed; None for never.
        second: What is done to the stream while the killed driver is down; None without a kill.
    """

    acts: tuple[Act, ...]
    kill: Kill | None
    second: SecondReshard | None


def choose(where: float, candidates: Sequence[T]) -> T:
    """Return one of the candidates.

    Args:
        where: Which, as a share of their number, in [0, 1).
        candidates: One at least.
    """
    return candidates[int(where * len(candidates))]


def draw_plan(options: DemoOptions) -> Plan:
    """Draw a plan from the seed; the same options draw the same plan.

    Each act falls into a window of its own. The split comes first: a stream that begins with one
    shard then has two to merge, and the kill finds children whose parent has ended.
    """
    random = Random(options.seed)  # noqa: S311 - a plan to repeat, not a secret
    others = [Kind.MERGE, Kind.CUT, Kind.CUT, Kind.STALL, Kind.ERROR]
    random.shuffle(others)
    kinds = [Kind.SPLIT, *others]
    window = (_LAST - _FIRST) / len(kinds)
    acts = tuple(
        Act(int(options.records * (_FIRST + window * (i + random.random()))), kind, random.random())
        for i, kind in enumerate(kinds)
    )
    # Drawn in any case, so that a seed means the same with and without it.
    kill = Kill(int(options.records * random.uniform(0.25, 0.6)), random.random() < 0.5)  # noqa: PLR2004 - a fair coin
    second = SecondReshard(random.random(), random.random())
    return Plan(acts, kill, second) if options.kill else Plan(acts, None, None)
