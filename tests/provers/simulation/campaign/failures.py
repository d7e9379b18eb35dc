"""The failure of a run, with the kind by which failures are counted."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, final

from fanout.testing.virtual_time.loop import DeadlockError, LeakError
from tests.provers.simulation.errors import OracleError, SimulationError
from tests.provers.simulation.landers.run import run_landers_seed
from tests.provers.simulation.plans import SourceName
from tests.provers.simulation.run import run_kafka_seed, run_kinesis_seed

if TYPE_CHECKING:
    from tests.provers.simulation.run import RunOutcome

__all__ = (
    "FailureKind",
    "RunFailure",
    "kind_of",
    "try_kafka_seed",
    "try_kinesis_seed",
    "try_landers_seed",
)

# The stacks of a few hundred tasks say no more than those of some.
_LONGEST: Final = 10_000


@final
class FailureKind(StrEnum):
    """Name the promise that a run has seen broken."""

    LOST = "lost"
    DUPLICATED = "duplicated"
    OUT_OF_ORDER = "out of order"
    ALTERED = "altered"
    LEAKED = "leaked"
    STUCK = "stuck"
    FAILED_FOR_NOTHING = "failed for nothing"
    BROKE_A_RULE = "broke a rule"
    LATE = "late"
    SWALLOWED = "swallowed"
    UNBOUNDED = "unbounded"
    MISCOUNTED = "miscounted"
    OTHER = "other"
    # Of the process that ran it; nothing is known about records.
    HUNG = "hung"
    DIED = "died"

    @property
    def of_the_process(self) -> bool:
        """Whether the process that ran the seed has ended too, and would again."""
        return self in {FailureKind.HUNG, FailureKind.DIED}


@final
@dataclass(frozen=True, slots=True)
class RunFailure:
    """A seed that failed.

    Args:
        seed: The seed.
        kind: What was broken.
        text: What was seen, without the plan.
        source: What was read.
    """

    seed: int
    kind: FailureKind
    text: str
    source: SourceName = SourceName.KINESIS

    @classmethod
    def of(cls, seed: int, error: SimulationError) -> RunFailure:
        """Make it of what `run_plan` raised.

        Args:
            seed: The seed that was run.
            error: The error.
        """
        seen = error.__cause__ or error
        return cls(seed, kind_of(error), f"{type(seen).__name__}: {seen}"[:_LONGEST])

    @property
    def summary(self) -> str:
        """The first line of what was seen."""
        return self.text.partition("\n")[0]

    @property
    def command(self) -> str:
        """The command that shows it again."""
        kafka = "" if self.source is SourceName.KINESIS else f" --source {self.source}"
        return f"python -m tests.provers sim replay {self.seed}{kafka}"


def kind_of(error: SimulationError) -> FailureKind:
    """Say which promise an error of a run is about.

    Args:
        error: What `run_plan` raised.
    """
    match error.__cause__:
        case LeakError():
            return FailureKind.LEAKED
        case DeadlockError():
            return FailureKind.STUCK
        case OracleError() as broken:
            name = str(broken).partition(":")[0]
            return FailureKind(name) if name in set(FailureKind) else FailureKind.OTHER
        case _:
            return FailureKind.OTHER


def try_kinesis_seed(seed: int) -> RunOutcome | RunFailure:
    """Run a seed, and return a failure as a value."""
    try:
        return run_kinesis_seed(seed)
    except SimulationError as error:
        return RunFailure.of(seed, error)


def try_kafka_seed(seed: int) -> RunOutcome | RunFailure:
    """Run a seed over Kafka, and return a failure as a value."""
    try:
        return run_kafka_seed(seed)
    except SimulationError as error:
        return RunFailure.of(seed, error)


def try_landers_seed(seed: int) -> RunOutcome | RunFailure:
    """Run a seed of landers, and return a failure as a value."""
    try:
        return run_landers_seed(seed)
    except SimulationError as error:
        return RunFailure.of(seed, error)
