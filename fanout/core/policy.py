"""What an error means for the subscription that it ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias, final

if TYPE_CHECKING:
    from fanout.core.events import Split
    from fanout.core.positions import Position

__all__ = ("Fatal", "Finish", "Pace", "Phase", "Retry", "Skip", "Verdict")


@final
class Phase(Enum):
    """What a subscriber or the discovery was doing when an error came."""

    DISCOVER = "discover"
    SUBSCRIBE = "subscribe"
    STREAM = "stream"


@final
class Pace(Enum):
    """How long to wait before asking again."""

    JITTER = "jitter"
    """With full jitter, longer with each failure."""
    FLOOR = "floor"
    """The service's minimum: waiting longer does not help."""
    SLOW = "slow"
    """`Pacing.slow`: nothing but a person can help, and the log says so each time."""


@final
@dataclass(frozen=True, slots=True)
class Retry:
    """Ask again from the same position.

    Args:
        pace: How long to wait.
        hint: What a person can do about it, a clause without a full stop; empty where the error
            says it all.
        limit: How often the same error may come at one position before it is fatal; None for any
            number.
    """

    pace: Pace = Pace.JITTER
    hint: str = ""
    limit: int | None = None


@final
@dataclass(frozen=True, slots=True)
class Skip:
    """Go on from another position; the records between are lost, and counted as a gap.

    Args:
        to: Where to go on.
        reason: Why they are lost, a clause without a full stop.
    """

    to: Position
    reason: str


@final
@dataclass(frozen=True, slots=True)
class Finish:
    """Take the split as read to its end.

    Args:
        children: The splits that replace it.
        lost: Why the records after the position are lost, a clause; empty where there are none.
    """

    children: tuple[Split, ...] = ()
    lost: str = ""


@final
@dataclass(frozen=True, slots=True)
class Fatal:
    """Give up: asking again cannot help.

    Args:
        hint: What a person can do about it, a clause without a full stop; empty where the error
            says it all.
    """

    hint: str = ""


Verdict: TypeAlias = Retry | Skip | Finish | Fatal
