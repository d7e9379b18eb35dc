"""The Spark side under simulation: the real query, ledger and segments on a disk that fails.

Everything below `foreach_batch` is the library's own code. The disk, the remote store, the threads,
the time and the JVM are not: a driver can be killed before any of its operations, with or without
the power of its machine, and two drivers of one checkpoint change places at each.
"""

from tests.provers.simulation.spark.faults import (
    Damage,
    Fault,
    HandlerFails,
    Kill,
    LostAnswer,
    PowerLoss,
    Refuse,
    Slow,
)
from tests.provers.simulation.spark.plan import Plan, Run, draw_plan, draw_race
from tests.provers.simulation.spark.run import Outcome, ViolationError, run_driver, run_plan
from tests.provers.simulation.spark.sweep import strike_everywhere

__all__ = (
    "Damage",
    "Fault",
    "HandlerFails",
    "Kill",
    "LostAnswer",
    "Outcome",
    "Plan",
    "PowerLoss",
    "Refuse",
    "Run",
    "Slow",
    "ViolationError",
    "draw_plan",
    "draw_race",
    "run_driver",
    "run_plan",
    "strike_everywhere",
)
