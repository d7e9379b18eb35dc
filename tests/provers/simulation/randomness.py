"""Random numbers of a simulated run: by seed and purpose, so that one draw changes no other."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Literal

from fanout.testing.virtual_time.schedule import Fifo, Priorities, Shuffled

if TYPE_CHECKING:
    from fanout.testing.virtual_time.schedule import Schedule

__all__ = ("happens", "order_of", "stream_of")


def happens(random: Random, share: float) -> bool:
    """Draw whether something happens that happens in a share of all cases.

    Args:
        random: Where chance comes from; one number is taken.
        share: From 0, which is never, to 1, which is always.
    """
    return random.random() < share


def stream_of(seed: int, purpose: str) -> Random:
    """Return the random numbers of one purpose; a draw for one changes nothing for another.

    Args:
        seed: The seed of the plan.
        purpose: The purpose, of which nothing else draws.
    """
    return Random(f"{seed}/{purpose}")


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
