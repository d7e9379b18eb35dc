"""An asyncio event loop in virtual time: hours pass in milliseconds, and every run is the same.

`simulate` runs a coroutine on a `SimLoop`, whose clock moves only when every task waits. A schedule
chooses among the steps that are ready at one moment, a `Trace` notes them, and `sweep` cancels a
scenario at each of its steps in turn.
"""

from fanout.testing.virtual_time.cancellation import Cancellation, Moment, sweep
from fanout.testing.virtual_time.loop import (
    DeadlockError,
    LeakError,
    SimLoop,
    running_loop,
    simulate,
)
from fanout.testing.virtual_time.schedule import Fifo, Priorities, Schedule, Shuffled
from fanout.testing.virtual_time.trace import Trace

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
    "running_loop",
    "simulate",
    "sweep",
)
