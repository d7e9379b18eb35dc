from __future__ import annotations

from collections import Counter

from tests.provers.simulation.kinesis.faults import KINESIS_FAULTS, KinesisFaultKind
from tests.provers.simulation.kinesis.plan_draws import draw_kinesis_plan

PLANS = [draw_kinesis_plan(seed) for seed in range(2000)]


def test_every_kind_is_drawn_in_many_plans() -> None:
    drawn = Counter(kind for plan in PLANS for kind in {fault.kind for fault in plan.faults})

    assert set(drawn) == set(KinesisFaultKind)
    assert min(count for kind, count in drawn.items() if not KINESIS_FAULTS[kind].fatal) >= 40


def test_one_plan_in_five_polls() -> None:
    assert 300 < sum(plan.mode == "polling" for plan in PLANS) < 500


def test_a_kind_is_drawn_only_where_it_can_be() -> None:
    for plan in PLANS:
        # What strikes together is drawn for both.
        alone = {fault.kind for fault in plan.faults} - {KinesisFaultKind.TAKEN_OVER}
        assert all(KINESIS_FAULTS[kind].mode in {None, plan.mode} for kind in alone)


def test_a_stream_has_to_fail_of_what_its_plan_says() -> None:
    ends = [plan for plan in PLANS if plan.fatal_kinds & {fault.kind for fault in plan.faults}]

    assert 50 < len(ends) < 300
    for plan in ends:
        assert plan.mode == "efo" or KinesisFaultKind.STAYS_DAMAGED not in {
            f.kind for f in plan.faults
        }


def test_a_plan_has_one_storm_at_most() -> None:
    storms = [sum(f.kind is KinesisFaultKind.RESHARD_STORM for f in plan.faults) for plan in PLANS]

    assert max(storms) == 1
