"""Lives drawn by seed, and those that have once found something."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.provers.planted.spark_bugs import planted
from tests.provers.simulation.spark import (
    DiskRefusal,
    DriverKill,
    HandlerFails,
    LateList,
    LostAnswer,
    PowerLoss,
    QueryPlan,
    QueryViolationError,
    SlowOperation,
    draw_query_plan,
    on_objects,
    run_query_plan,
    run_query_seed,
)
from tests.provers.tests.simulation.spark.corpus import FOUND

SEEDS = 120


def test_nothing_is_lost_or_repeated_whatever_befalls_the_drivers() -> None:
    outcomes = [run_query_seed(seed) for seed in range(SEEDS)]
    assert sum(outcome.records for outcome in outcomes) > 1200
    faults: Counter[str] = Counter()
    for outcome in outcomes:
        faults.update(outcome.faults)
    kinds = (DriverKill, PowerLoss, DiskRefusal, SlowOperation, LostAnswer, HandlerFails)
    faults.pop(LateList.__name__, None)
    assert set(faults) == {kind.__name__ for kind in kinds}


def test_nothing_is_lost_or_repeated_on_object_storage() -> None:
    plans = [on_objects(draw_query_plan(seed)) for seed in range(SEEDS // 3)]
    outcomes = [run_query_plan(plan) for plan in plans]
    happened = {type(fault) for each in outcomes for faults in each.happened for fault in faults}
    assert {LateList, LostAnswer, DriverKill} <= happened
    assert {plan.lost_answers for plan in plans} == {0.0, 0.02, 0.2}


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_stays_fixed(name: str) -> None:
    run_query_plan(FOUND[name])


def test_a_broken_promise_comes_with_the_plan_that_shows_it() -> None:
    plan = QueryPlan(seed=1)
    with planted("acknowledged before the entry"), pytest.raises(QueryViolationError) as caught:
        run_query_plan(plan)
    assert "were acknowledged before any entry was durable" in str(caught.value)
    assert str(plan) in str(caught.value)
