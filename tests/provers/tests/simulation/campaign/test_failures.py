from __future__ import annotations

import pytest

from fanout.testing.virtual_time.loop import DeadlockError, LeakError
from tests.provers.simulation.campaign.failures import FailureKind, RunFailure, kind_of
from tests.provers.simulation.errors import OracleError, SimulationError


def simulation_error(cause: Exception) -> SimulationError:
    error = SimulationError("and the plan")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        *((OracleError(f"{kind}: rows"), kind) for kind in list(FailureKind)[:12]),
        (OracleError("never seen: rows"), FailureKind.OTHER),
        (LeakError("a task"), FailureKind.LEAKED),
        (DeadlockError("nothing can wake any task"), FailureKind.STUCK),
        (KeyError("lost"), FailureKind.OTHER),
    ],
    ids=repr,
)
def test_a_failure_is_of_the_kind_that_its_cause_says(cause: Exception, kind: FailureKind) -> None:
    assert kind_of(simulation_error(cause)) is kind


def test_a_failure_says_what_was_seen_without_the_plan() -> None:
    failure = RunFailure.of(7, simulation_error(OracleError("lost: row 3\nof 5")))

    assert failure == RunFailure(7, FailureKind.LOST, "OracleError: lost: row 3\nof 5")
    assert failure.summary == "OracleError: lost: row 3"
