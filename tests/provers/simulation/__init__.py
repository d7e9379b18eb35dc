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
from tests.provers.simulation.kinesis.faults import KinesisFault, KinesisFaultKind
from tests.provers.simulation.kinesis.plan import KinesisPlan, draw_kinesis_plan
from tests.provers.simulation.moments.moments import (
    KinesisSometimes,
    NeverMetError,
    check_met,
    missing,
)
from tests.provers.simulation.plans import AnyPlan
from tests.provers.simulation.run import RunOutcome, SimulationError, run_kinesis_seed, run_plan

__all__ = (
    "AnyPlan",
    "Cancellation",
    "DeadlockError",
    "Fifo",
    "KinesisFault",
    "KinesisFaultKind",
    "KinesisPlan",
    "KinesisSometimes",
    "LeakError",
    "Moment",
    "NeverMetError",
    "Priorities",
    "RunOutcome",
    "Schedule",
    "Shuffled",
    "SimLoop",
    "SimulationError",
    "Trace",
    "check_met",
    "draw_kinesis_plan",
    "missing",
    "run_kinesis_seed",
    "run_plan",
    "simulate",
    "sweep",
)
