"""Run asyncio code in virtual time: hours pass in milliseconds, and every run is the same."""

from fanout.testing.simulation.cancellation import Cancellation, Moment, sweep
from fanout.testing.simulation.loop import DeadlockError, LeakError, SimLoop, simulate

__all__ = (
    "Cancellation",
    "DeadlockError",
    "LeakError",
    "Moment",
    "SimLoop",
    "simulate",
    "sweep",
)
