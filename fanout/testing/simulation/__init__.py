"""Run asyncio code in virtual time: hours pass in milliseconds, and every run is the same."""

from fanout.testing.simulation.cancellation import Cancellation, Moment, sweep
from fanout.testing.simulation.faults import Fault, Kind
from fanout.testing.simulation.loop import DeadlockError, LeakError, SimLoop, simulate
from fanout.testing.simulation.moments import NeverMetError, Sometimes, check_met, missing
from fanout.testing.simulation.plan import Plan, draw_plan
from fanout.testing.simulation.run import Outcome, SimulationError, run_plan, run_seed
from fanout.testing.simulation.schedule import Fifo, Priorities, Schedule, Shuffled
from fanout.testing.simulation.trace import Trace

__all__ = (
    "Cancellation",
    "DeadlockError",
    "Fault",
    "Fifo",
    "Kind",
    "LeakError",
    "Moment",
    "NeverMetError",
    "Outcome",
    "Plan",
    "Priorities",
    "Schedule",
    "Shuffled",
    "SimLoop",
    "SimulationError",
    "Sometimes",
    "Trace",
    "check_met",
    "draw_plan",
    "missing",
    "run_plan",
    "run_seed",
    "simulate",
    "sweep",
)
