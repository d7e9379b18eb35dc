from __future__ import annotations

from tests.provers.simulation.kinesis.faults import KinesisFault, KinesisFaultKind
from tests.provers.simulation.kinesis.plan_draws import draw_kinesis_plan
from tests.provers.simulation.run import run_plan


def test_without_faults_everything_arrives_and_nothing_comes_again() -> None:
    for seed in range(5):
        outcome = run_plan(draw_kinesis_plan(seed).without_faults())

        assert outcome.faults == {}
        assert outcome.restarts == outcome.replayed == 0


def test_a_plan_is_printed_with_every_fault() -> None:
    plan = draw_kinesis_plan(7)

    assert all(str(fault) in str(plan) for fault in plan.faults)
    fault = KinesisFault(
        kind=KinesisFaultKind.STALL, at=1.5, shard="shardId-000000000000", seconds=30
    )
    assert str(fault) == "1.500: stall shardId-000000000000 30 s"
