"""Find the smallest plan that still fails as a plan does."""

from __future__ import annotations

import math
import time
from dataclasses import MISSING, dataclass, fields, replace
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from tests.provers.simulation.campaign.failures import FailureKind, kind_of
from tests.provers.simulation.errors import SimulationError
from tests.provers.simulation.kafka.plan import KafkaPlan
from tests.provers.simulation.kinesis.plan import KinesisPlan
from tests.provers.simulation.run import run_plan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.provers.simulation.plans import AnyPlan

    T = TypeVar("T")

__all__ = ("Shrunk", "shrink")

# The least that each number of a plan can be.
_NUMBERS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "shards": 1,
        "splits": 1,
        "landers": 1,
        "reshards": 0,
        "records": 1,
        "partitions": 1,
        "brokers": 1,
        "batches": 1,
        "producers": 0,
        "generations": 1,
    }
)

_PLAINEST: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "mode": "efo",
        "broken": None,
        "large": False,
        "start": "TRIM_HORIZON",
        "reading": "iterate",
        "checkpoint_every": 1,
        "schedule": "fifo",
        "flaky": 0.0,  # of landers alone
        # What follows is of Kafka alone.
        "another": False,
        "transactions": False,
        "selection": "topics",
        "isolation_level": "read_committed",
        "on_data_loss": "earliest",
        "group": False,
        "fetch_bytes": 1 << 20,
        **{
            each.name: each.default
            for each in fields(KinesisPlan)
            if each.default is not MISSING and each.name != "source"
        },
    }
)


@final
@dataclass(frozen=True, slots=True)
class Shrunk:
    """The smallest plan that was found.

    Args:
        plan: The plan.
        error: How it fails.
        runs: How many plans were run.
        done: Whether nothing can be left out of it any more, rather than that time was up.
    """

    plan: AnyPlan
    error: SimulationError
    runs: int
    done: bool


def shrink(plan: AnyPlan, *, max_runs: int = 1000, max_seconds: float = math.inf) -> Shrunk | None:
    """Leave out of a failing plan what is not needed: faults first, then everything else.

    Faults are left out by delta debugging: Zeller and Hildebrandt, IEEE TSE 28(2), 2002.

    Args:
        plan: The plan.
        max_runs: How many plans are run at the most.
        max_seconds: After how many real seconds no more is tried.

    Returns:
        The smallest plan found that fails in the same way; None if the plan does not fail.
    """
    error = _failure(plan)
    if error is None:
        return None
    search = _Search(plan, error, max_runs - 1, time.monotonic() + max_seconds)
    done = False
    while not done and not search.over:
        before = search.plan
        search.shrink_faults()
        search.simplify()
        done = search.plan == before and not search.over
    return Shrunk(search.plan, search.error, max_runs - search.left, done)


class _Search:
    def __init__(self, plan: AnyPlan, error: SimulationError, runs: int, deadline: float) -> None:
        self.plan = plan
        self.error = error
        self.left = runs
        self._deadline = deadline
        self._tried = {plan}

    @property
    def over(self) -> bool:
        return self.left <= 0 or time.monotonic() > self._deadline

    def shrink_faults(self) -> None:
        """Leave out ever smaller parts of the faults, as long as it fails without them."""
        for name in _fault_fields(self.plan):
            self._shrink(name)

    def _shrink(self, name: str) -> None:
        parts = 2
        while (faults := getattr(self.plan, name)) and not self.over:
            parts = min(parts, len(faults))
            fewer = _without_each(faults, parts)
            if any(self._try(_with(self.plan, **{name: some})) for some in fewer):
                parts = max(parts - 1, 2)
            elif parts == len(faults):
                return
            else:
                parts *= 2

    def simplify(self) -> None:
        """Make everything else smaller or plainer, as long as it fails like that."""
        while any(self._try(simpler) for simpler in _simpler(self.plan)):
            pass

    def _try(self, plan: AnyPlan) -> bool:
        """Go on with a plan if it fails in the same way."""
        if self.over or plan in self._tried:
            return False
        self.left -= 1
        self._tried.add(plan)
        error = _failure(plan)
        if error is None or _signature(error) != _signature(self.error):
            return False
        self.plan, self.error = plan, error
        return True


def _failure(plan: AnyPlan) -> SimulationError | None:
    try:
        run_plan(plan)
    except SimulationError as error:
        return error
    return None


def _signature(error: SimulationError) -> tuple[FailureKind, type | None]:
    """Return what must stay the same: errors of an unknown kind differ by their type."""
    kind = kind_of(error)
    return kind, type(error.__cause__) if kind is FailureKind.OTHER else None


def _without_each(faults: Sequence[T], parts: int) -> Iterator[tuple[T, ...]]:
    """Yield the faults without one part of them, for each part."""
    bounds = [len(faults) * part // parts for part in range(parts + 1)]
    for start, stop in pairwise(bounds):
        yield (*faults[:start], *faults[stop:])


def _simpler(plan: AnyPlan) -> Iterator[AnyPlan]:
    """Yield plans that differ from one in a single thing that is smaller or plainer."""
    for name, least in _NUMBERS.items():
        for number in _smaller(getattr(plan, name, least), least):
            yield _with(plan, **{name: number})
    for seconds in _smaller(math.ceil(plan.seconds), 1):
        earlier = {
            name: tuple(fault for fault in getattr(plan, name) if fault.at <= seconds)
            for name in _fault_fields(plan)
        }
        yield _with(plan, seconds=float(seconds), **earlier)
    for name, plainest in _PLAINEST.items():
        if getattr(plan, name, plainest) != _plain_for(plan, name, plainest):
            yield _with(plan, **{name: _plain_for(plan, name, plainest)})


def _with(plan: AnyPlan, **changes: Any) -> AnyPlan:
    """Return a plan with other values in some fields."""
    return replace(plan, **changes)


def _plain_for(plan: AnyPlan, name: str, plainest: Any) -> Any:
    """Return the plainest value of a field, whose words may be those of a service."""
    if name == "start" and isinstance(plan, KafkaPlan):
        return "earliest"
    return plainest


def _fault_fields(plan: AnyPlan) -> tuple[str, ...]:
    """Return the names of the fields that hold faults."""
    return ("faults", "cluster_faults") if isinstance(plan, KafkaPlan) else ("faults",)


def _smaller(number: int, least: int) -> Iterator[int]:
    """Yield smaller numbers, the smallest first, and each nearer to the number."""
    step = number - least
    while step:
        yield number - step
        step //= 2
