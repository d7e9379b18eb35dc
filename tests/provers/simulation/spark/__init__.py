"""The Spark side under simulation: the real query, ledger and segments on a disk that fails.

Everything below `foreach_batch` is the library's own code. The disk, the remote store, the threads,
the time and the JVM are not: a driver can be killed before any of its operations, with or without
the power of its machine, and two drivers of one checkpoint change places at each.
"""

from tests.provers.simulation.spark.faults import (
    DiskRefusal,
    DriverFault,
    DriverKill,
    FileDamage,
    HandlerFails,
    LateList,
    LostAnswer,
    PowerLoss,
    SlowOperation,
)
from tests.provers.simulation.spark.plan import (
    DriverRun,
    QueryPlan,
    draw_object_race_plan,
    draw_query_plan,
    draw_race_plan,
    on_objects,
)
from tests.provers.simulation.spark.run import (
    QueryOutcome,
    QueryViolationError,
    run_query_plan,
    run_query_seed,
    strike_everywhere,
)

__all__ = (
    "DiskRefusal",
    "DriverFault",
    "DriverKill",
    "DriverRun",
    "FileDamage",
    "HandlerFails",
    "LateList",
    "LostAnswer",
    "PowerLoss",
    "QueryOutcome",
    "QueryPlan",
    "QueryViolationError",
    "SlowOperation",
    "draw_object_race_plan",
    "draw_query_plan",
    "draw_race_plan",
    "on_objects",
    "run_query_plan",
    "run_query_seed",
    "strike_everywhere",
)
