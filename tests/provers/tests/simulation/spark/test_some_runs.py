"""A few lives of drivers, which `make test` runs; the campaign runs more of them."""

from __future__ import annotations

import pytest

from tests.provers.simulation.spark import draw_query_plan, on_objects, run_query_plan

pytestmark = pytest.mark.regression


def test_nothing_is_lost_or_repeated_on_a_disk_and_on_object_storage() -> None:
    plans = [draw_query_plan(seed) for seed in range(4)]
    outcomes = [run_query_plan(plan) for plan in (*plans, *map(on_objects, plans))]
    assert all(outcome.records for outcome in outcomes)
    assert any(outcome.faults for outcome in outcomes)
