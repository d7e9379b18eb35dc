"""A few seeds of landers; more of them run in the campaign."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.provers.simulation.landers.plan import draw_landers_plan
from tests.provers.simulation.landers.run import run_landers_plan, run_landers_seed

pytestmark = pytest.mark.regression


@pytest.mark.long
def test_whatever_goes_wrong_all_records_are_landed_once_and_in_order() -> None:
    for seed in range(10):
        run_landers_seed(seed)


def test_without_faults_no_run_begins_anew() -> None:
    plan = replace(draw_landers_plan(2), faults=(), flaky=0.0)

    outcome = run_landers_plan(plan)

    assert outcome.restarts == 0
    assert outcome.records
    assert outcome.calls == {"attempts of landers": plan.landers}
