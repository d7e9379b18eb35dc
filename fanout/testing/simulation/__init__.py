"""Run asyncio code in virtual time: hours pass in milliseconds, and every run is the same."""

from fanout.testing.simulation.cancellation import Cancellation, Moment, sweep
from fanout.testing.simulation.loop import DeadlockError, LeakError, SimLoop, simulate
from fanout.testing.simulation.schedule import Fifo, Priorities, Schedule, Shuffled
from fanout.testing.simulation.trace import Trace

__all__ = (
    "Cancellation",
    "DeadlockError",
    "Fifo",
    "LeakError",
    "Moment",
    "Priorities",
    "Schedule",
    "Shuffled",
    "SimLoop",
    "Trace",
    "simulate",
    "sweep",
)
