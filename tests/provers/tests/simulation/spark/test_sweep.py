"""One small run of a query, with one fault at each of its operations in turn."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from tests.provers.simulation.spark import (
    DiskRefusal,
    DriverKill,
    DriverRun,
    LostAnswer,
    PowerLoss,
    QueryPlan,
    strike_everywhere,
)

SHORT = DriverRun(stop_after=1.0)
# The second run may lose its power when it has just gone on from what the first one has left.
LOCAL = QueryPlan(
    seed=3,
    records=3,
    seconds=0.5,
    max_records=2,
    handler_seconds=0.0,
    runs=(SHORT, DriverRun(stop_after=1.0, faults=(PowerLoss(22),))),
)
REMOTE = QueryPlan(
    seed=3,
    remote=True,
    records=4,
    seconds=0.5,
    max_records=3,
    handler_seconds=0.0,
    runs=(SHORT, SHORT),
)


def test_a_driver_may_be_killed_before_any_operation() -> None:
    assert strike_everywhere(LOCAL, DriverKill) > 80


@pytest.mark.parametrize(("seed", "forgotten"), [(1, 0), (2, 1), (3, 3)])
def test_a_machine_may_lose_its_power_before_any_operation(seed: int, forgotten: int) -> None:
    plan = replace(LOCAL, seed=seed)  # what survives is drawn from it
    assert strike_everywhere(plan, lambda number: PowerLoss(number, forgotten)) > 60


@pytest.mark.parametrize(("code", "times"), [(errno.EIO, 1), (errno.ENOSPC, 1000)])
def test_a_disk_may_refuse_any_operation(code: int, times: int) -> None:
    assert strike_everywhere(LOCAL, lambda number: DiskRefusal(number, code, times)) > 120


def test_a_driver_of_a_remote_checkpoint_may_be_killed_before_any_operation() -> None:
    assert strike_everywhere(REMOTE, DriverKill) > 30


def test_any_answer_of_a_store_may_be_lost() -> None:
    assert strike_everywhere(REMOTE, LostAnswer) > 10
