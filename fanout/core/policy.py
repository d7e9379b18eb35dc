"""The verdicts on an error that ended a subscription, and the engine of the error tables."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar, final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from fanout.core.events import Split
    from fanout.core.positions import Position

_Kind = TypeVar("_Kind")
_Remedy = TypeVar("_Remedy", bound=Enum)


@final
class Phase(Enum):
    """What a subscriber or the discovery was doing when an error came."""

    DISCOVER = "discover"
    SUBSCRIBE = "subscribe"
    STREAM = "stream"


@final
class Pace(Enum):
    """How long to wait before the next attempt."""

    JITTER = "jitter"
    """With full jitter above the service's minimum, longer with each failure."""
    FLOOR = "floor"
    """The service's minimum: waiting longer does not help. A subscription that was open for longer
    is opened again at once."""
    SLOW = "slow"
    """`Pacing.slow`: only a person can end the error, and it is logged at each attempt."""


@final
@dataclass(frozen=True, slots=True)
class Retry:
    """Try again from the same position."""

    pace: Pace = Pace.JITTER
    hint: str = ""  # what a person can do, a clause without a full stop; empty if the error has it
    # The same error at one position so often is fatal; None for any number.
    limit: int | None = None


@final
@dataclass(frozen=True, slots=True)
class Skip:
    """Continue at another position; the records between are lost, and counted as a gap."""

    to: Position
    reason: str  # why they are lost, a clause without a full stop


@final
@dataclass(frozen=True, slots=True)
class Finish:
    """Take the split as read to its end."""

    children: tuple[Split, ...] = ()  # the splits that replace it
    lost: str = ""  # why the records after the position are lost, a clause; empty if there are none


@final
@dataclass(frozen=True, slots=True)
class Fatal:
    """Give up: another attempt cannot help."""

    hint: str = ""  # as of `Retry`


Verdict: TypeAlias = Retry | Skip | Finish | Fatal


@final
@dataclass(frozen=True, slots=True)
class PolicyRow(Generic[_Remedy]):
    """What one kind of error means: a verdict, or a remedy that the service has to try first."""

    later: Retry | Fatal | _Remedy  # once something of the same phase has worked in this run
    first: Retry | Fatal | _Remedy | None = None  # before that; None for the same
    # Later in a listing of the splits; None for the same.
    listing: Retry | Fatal | _Remedy | None = None

    def treatment(self, phase: Phase, *, first: bool) -> Retry | Fatal | _Remedy:
        """Return what the error means; `first` as long as nothing of the phase has worked."""
        if first and self.first is not None:
            return self.first
        if not first and phase is Phase.DISCOVER and self.listing is not None:
            return self.listing
        return self.later


@final
class PolicyTable(Generic[_Kind, _Remedy]):
    """Judge errors by a service's table.

    `kind_of` knows every exception. `hint_of` says what a person can do, a clause without a full
    stop; it replaces the hint of the row where it is not empty.
    """

    def __init__(
        self,
        rows: Mapping[_Kind, PolicyRow[_Remedy]],
        *,
        kind_of: Callable[[Exception], _Kind],
        hint_of: Callable[[Exception], str],
    ) -> None:
        self._rows = rows
        self._kind_of = kind_of
        self._hint_of = hint_of

    def judge(self, error: Exception, phase: Phase, *, first: bool) -> Retry | Fatal | _Remedy:
        """Say what anything that was raised means, with what a person can do about it."""
        treatment = self._rows[self._kind_of(error)].treatment(phase, first=first)
        if isinstance(treatment, Retry | Fatal):
            return replace(treatment, hint=self._hint_of(error) or treatment.hint)
        return treatment


def kind_by_type(
    error: Exception, kinds: Iterable[tuple[tuple[type[Exception], ...], _Kind]]
) -> _Kind:
    """Return the kind of the first types that an error is of; the last ones take every error."""
    return next(kind for types, kind in kinds if isinstance(error, types))
