"""Run asyncio code in virtual time: hours pass in milliseconds, and every run is the same.

`loop`, `schedule`, `trace` and `cancellation` are for any asyncio code. `plan` and `run` prove the
reader of Kinesis by seed: `faults` is what goes wrong, `service` the model of Kinesis, `reader` a
user's job, `oracle` what it must get, `moments` the coincidences to be met, `kinesis` all of these
together, and `campaign` runs many seeds. `kafka` does the same for Kafka, with the same job, and
`plans` knows the plans of both. `driver` does the same for the Spark side: disk, power, lock and
two drivers. `stream` and `chance` are the few words that all of them share. Begin to read at `run`.
"""

from fanout.testing.virtual_time.cancellation import Cancellation, Moment, sweep
from fanout.testing.virtual_time.loop import DeadlockError, LeakError, SimLoop, simulate
from fanout.testing.virtual_time.schedule import Fifo, Priorities, Schedule, Shuffled
from fanout.testing.virtual_time.trace import Trace
from tests.provers.simulation.kinesis.faults.faults import Fault, Kind
from tests.provers.simulation.kinesis.plan import Plan, draw_plan
from tests.provers.simulation.moments.moments import NeverMetError, Sometimes, check_met, missing
from tests.provers.simulation.plans import AnyPlan
from tests.provers.simulation.run import Outcome, SimulationError, run_plan, run_seed

__all__ = (
    "AnyPlan",
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
