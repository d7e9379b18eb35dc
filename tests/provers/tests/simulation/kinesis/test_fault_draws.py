from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.provers.simulation.kinesis.faults import KINESIS_FAULTS, KinesisFaultKind
from tests.provers.simulation.kinesis.plan_draws import draw_kinesis_plan

if TYPE_CHECKING:
    from tests.provers.simulation.kinesis.plan import KinesisPlan


@pytest.fixture(scope="module")
def plans() -> list[KinesisPlan]:
    return [draw_kinesis_plan(seed) for seed in range(2000)]


def test_every_kind_is_drawn_in_many_plans(plans: list[KinesisPlan]) -> None:
    drawn = Counter(kind for plan in plans for kind in {fault.kind for fault in plan.faults})

    assert set(drawn) == set(KinesisFaultKind)
    assert min(count for kind, count in drawn.items() if not KINESIS_FAULTS[kind].fatal) >= 40


def test_one_plan_in_five_polls(plans: list[KinesisPlan]) -> None:
    assert 300 < sum(plan.mode == "polling" for plan in plans) < 500


def test_a_kind_is_drawn_only_where_it_can_be(plans: list[KinesisPlan]) -> None:
    for plan in plans:
        # What strikes together is drawn for both.
        alone = {fault.kind for fault in plan.faults} - {KinesisFaultKind.TAKEN_OVER}
        assert all(KINESIS_FAULTS[kind].mode in {None, plan.mode} for kind in alone)


def test_a_stream_has_to_fail_of_what_its_plan_says(plans: list[KinesisPlan]) -> None:
    ends = [plan for plan in plans if plan.fatal_kinds & {fault.kind for fault in plan.faults}]

    assert 50 < len(ends) < 300
    for plan in ends:
        assert plan.mode == "efo" or KinesisFaultKind.STAYS_DAMAGED not in {
            f.kind for f in plan.faults
        }


def test_a_plan_has_one_storm_at_most(plans: list[KinesisPlan]) -> None:
    storms = [sum(f.kind is KinesisFaultKind.RESHARD_STORM for f in plan.faults) for plan in plans]

    assert max(storms) == 1
