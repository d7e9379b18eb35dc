"""One seed, one run of a query, one result."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, replace
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, final

from fanout.testing.virtual_time.loop import SimLoop, simulate
from fanout.testing.virtual_time.schedule import Shuffled
from tests.provers.simulation.spark.plan import draw_query_plan
from tests.provers.simulation.spark.query_run import QueryRun

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fanout.testing.virtual_time.trace import Trace
    from tests.provers.simulation.spark.faults import DriverFault
    from tests.provers.simulation.spark.plan import QueryPlan

__all__ = (
    "QueryOutcome",
    "QueryViolationError",
    "run_query_plan",
    "run_query_seed",
    "strike_everywhere",
)


class QueryViolationError(AssertionError):
    """A promise was broken, or a run did not end; the message has the plan that shows it."""


@final
@dataclass(frozen=True, slots=True)
class QueryOutcome:
    """The figures of a run in which every promise was kept.

    Args:
        seed: The seed of its plan.
        records: Records that were compared with the source's log.
        batches: Batches that the handler was given.
        replays: Calls of the handler with a batch that it had been given before.
        restarts: Drivers after the first.
        operations: What the drivers have asked of disk, store and Spark.
        happened: What has befallen each driver.
        errors: What drivers have ended with, by kind.
        digest: The hash of everything that happened, the same for the same plan.
    """

    seed: int
    records: int
    batches: int
    replays: int
    restarts: int
    operations: int
    happened: tuple[tuple[DriverFault, ...], ...]
    errors: Mapping[str, int]
    digest: str

    @property
    def faults(self) -> Mapping[str, int]:
        """The faults of all drivers, by kind."""
        return Counter(type(fault).__name__ for faults in self.happened for fault in faults)


def run_query_seed(seed: int, trace: Trace | None = None) -> QueryOutcome:
    """Live through the plan of a seed.

    Args:
        seed: The seed.
        trace: Where every operation is noted; None for nowhere.

    Raises:
        ViolationError: If a promise was broken, or something hangs or is left behind.
    """
    return run_query_plan(draw_query_plan(seed), trace)


def run_query_plan(plan: QueryPlan, trace: Trace | None = None) -> QueryOutcome:
    """Live through a plan.

    Args:
        plan: The plan.
        trace: Where every operation is noted; None for nowhere.

    Raises:
        ViolationError: If a promise was broken, or something hangs or is left behind.
    """
    schedule = Shuffled(Random(f"{plan.seed}/sched"))
    loop = SimLoop(schedule=schedule, trace=trace)
    query_run = QueryRun(plan, loop)
    try:
        simulate(query_run.live, loop_factory=lambda: loop)
    except Exception as error:
        raise QueryViolationError(f"{type(error).__name__}: {error}\n{plan}") from error
    finally:
        for process in query_run.processes:
            process.abandon()
    oracle, processes = query_run.oracle, query_run.processes
    if oracle.violations:
        raise QueryViolationError("\n".join((*oracle.violations, str(plan))))
    return QueryOutcome(
        seed=plan.seed,
        records=oracle.rows,
        batches=len(oracle.contents),
        replays=oracle.replays,
        restarts=len(processes) - 1,
        operations=sum(process.operations for process in processes),
        happened=tuple(tuple(process.happened) for process in processes),
        errors=MappingProxyType(Counter(type(error).__name__ for error in query_run.errors)),
        digest=loop.trace.digest,
    )


def strike_everywhere(plan: QueryPlan, fault_at: Callable[[int], DriverFault]) -> int:
    """Live through a plan again and again, until its first run ends before the fault.

    Args:
        plan: The plan; the faults of its first run are replaced.
        fault_at: Makes the fault for an operation, counted from 1.

    Returns:
        The number of operations at which the fault has struck.

    Raises:
        ViolationError: If a promise was broken.
    """
    first, *others = plan.runs
    for number in itertools.count(1):
        faulty = replace(first, faults=(fault_at(number),))
        if not run_query_plan(replace(plan, runs=(faulty, *others))).happened[0]:
            return number - 1
    raise AssertionError("counted to the end")
