"""Let one fault strike at every operation in turn."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.provers.simulation.spark.run import run_query_plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.provers.simulation.spark.faults import DriverFault
    from tests.provers.simulation.spark.plan import QueryPlan

__all__ = ("strike_everywhere",)


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
