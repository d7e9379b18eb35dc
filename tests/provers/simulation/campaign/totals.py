"""The totals of many runs."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, final

from tests.provers.simulation.campaign.failures import FailureKind, RunFailure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.provers.simulation.run import RunOutcome

__all__ = ("Totals",)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The sum of some runs, in any order.

    Times are whole numbers, as the sum of floats depends on their order.

    Args:
        seeds: How many runs.
        milliseconds: The virtual time of those that passed.
        steps: Their task steps.
        records: The records that were checked in them.
        replayed: Those that came again after a restart.
        restarts: How often a job began anew.
        calls: The calls to the service, by name.
        faults: What went wrong, by kind.
        moments: The count of each coincidence, by its sentence.
        recoveries: How many runs took how many seconds, rounded up, from the repair until
            everything had arrived.
        slowest_close: The virtual seconds that the slowest close took.
        failures: The runs that failed, by seed.
    """

    seeds: int = 0
    milliseconds: int = 0
    steps: int = 0
    records: int = 0
    replayed: int = 0
    restarts: int = 0
    calls: Mapping[str, int] = field(default_factory=Counter)
    faults: Mapping[str, int] = field(default_factory=Counter)
    moments: Mapping[str, int] = field(default_factory=Counter)
    recoveries: Mapping[int, int] = field(default_factory=Counter)
    slowest_close: float = 0.0
    failures: tuple[RunFailure, ...] = ()

    @classmethod
    def of(cls, result: RunOutcome | RunFailure) -> Totals:
        """Return the totals of one run."""
        if isinstance(result, RunFailure):
            return cls(seeds=1, failures=(result,))
        return cls(
            seeds=1,
            milliseconds=round(result.seconds * 1000),
            steps=result.steps,
            records=result.records,
            replayed=result.replayed,
            restarts=result.restarts,
            calls=Counter(result.calls),
            faults=Counter({str(kind): times for kind, times in result.faults.items()}),
            moments=Counter({str(moment): times for moment, times in result.moments.items()}),
            recoveries=Counter([math.ceil(result.recovery)]),
            slowest_close=result.close,
        )

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            seeds=self.seeds + other.seeds,
            milliseconds=self.milliseconds + other.milliseconds,
            steps=self.steps + other.steps,
            records=self.records + other.records,
            replayed=self.replayed + other.replayed,
            restarts=self.restarts + other.restarts,
            calls=Counter(self.calls) + Counter(other.calls),
            faults=Counter(self.faults) + Counter(other.faults),
            moments=Counter(self.moments) + Counter(other.moments),
            recoveries=Counter(self.recoveries) + Counter(other.recoveries),
            slowest_close=max(self.slowest_close, other.slowest_close),
            failures=tuple(sorted((*self.failures, *other.failures), key=attrgetter("seed"))),
        )

    @property
    def hours(self) -> float:
        """The virtual hours."""
        return self.milliseconds / 3_600_000

    @property
    def failures_by_kind(self) -> dict[FailureKind, int]:
        """The number of failed runs by kind, kinds without any included."""
        counts = Counter(failure.kind for failure in self.failures)
        return {kind: counts[kind] for kind in FailureKind}

    def recovery(self, share: float) -> int:
        """Return the seconds within which a share of the runs had recovered.

        Args:
            share: The share, such as 0.99; 1 for all of them.
        """
        enough = share * sum(self.recoveries.values())
        recovered = 0
        for seconds, runs in sorted(self.recoveries.items()):
            recovered += runs
            if recovered >= enough:
                return seconds
        return 0
