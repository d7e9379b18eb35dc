"""Lives of a query whose source lends its records: a lock lasts 2 s, and answers get lost."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from tests.provers.simulation.spark import (
    DiskRefusal,
    DriverKill,
    DriverRun,
    FileDamage,
    LostAnswer,
    PowerLoss,
    QueryPlan,
    SlowOperation,
    draw_query_plan,
    run_query_plan,
    strike_everywhere,
)

SEEDS = 30
SHORT = DriverRun(stop_after=1.0)
LOCAL = QueryPlan(
    seed=3,
    lending=True,
    records=3,
    seconds=0.5,
    max_records=2,
    handler_seconds=0.0,
    runs=(SHORT, DriverRun(stop_after=1.0, faults=(PowerLoss(30),))),
)
REMOTE = replace(LOCAL, remote=True, records=4, runs=(SHORT, SHORT))


def test_nothing_lent_is_lost_or_repeated_whatever_befalls_the_drivers() -> None:
    outcomes = [
        run_query_plan(replace(draw_query_plan(seed), lending=True, min_records=1))
        for seed in range(SEEDS)
    ]
    assert sum(outcome.records for outcome in outcomes) > 300
    faults: Counter[str] = Counter()
    for outcome in outcomes:
        faults.update(outcome.faults)
    kinds = (DriverKill, PowerLoss, DiskRefusal, SlowOperation, LostAnswer)
    assert faults.keys() >= {kind.__name__ for kind in kinds}


def test_a_driver_may_be_killed_before_any_operation() -> None:
    assert strike_everywhere(LOCAL, DriverKill) > 80


def test_a_machine_may_lose_its_power_before_any_operation() -> None:
    assert strike_everywhere(LOCAL, lambda number: PowerLoss(number, forgotten=3)) > 60


def test_a_driver_of_a_remote_checkpoint_may_be_killed_before_any_operation() -> None:
    assert strike_everywhere(REMOTE, DriverKill) > 40


def test_any_answer_of_a_store_may_be_lost() -> None:
    assert strike_everywhere(REMOTE, LostAnswer) > 10


def test_a_pending_segment_that_is_damaged_is_an_error_until_it_is_restored() -> None:
    damaged = DriverRun(damage=FileDamage("pending", 0.5))
    plans = [
        replace(LOCAL, runs=(replace(SHORT, faults=(DriverKill(number),)), damaged, SHORT))
        for number in range(30, 90, 4)
    ]
    assert sum(run_query_plan(plan).errors.get("CheckpointError", 0) for plan in plans) > 2
