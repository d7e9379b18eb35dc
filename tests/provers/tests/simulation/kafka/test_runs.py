"""Seeds over Kafka: what a run without faults is, and what a plan says."""

from __future__ import annotations

from tests.provers.simulation.kafka.plan_draws import draw_kafka_plan
from tests.provers.simulation.plans import read_plan
from tests.provers.simulation.run import run_plan


def test_without_faults_everything_arrives_and_nothing_comes_again() -> None:
    for seed in range(20):
        outcome = run_plan(draw_kafka_plan(seed).without_faults())

        assert outcome.records > 0 or draw_kafka_plan(seed).start != "earliest"
        assert outcome.faults == {}
        assert outcome.restarts == outcome.replayed == 0


def test_a_plan_is_read_back_as_it_was_written() -> None:
    for seed in range(20):
        plan = draw_kafka_plan(seed)

        assert read_plan(plan.to_json()) == plan


def test_a_plan_is_printed_with_every_fault() -> None:
    plan = draw_kafka_plan(8)

    assert plan.faults
    assert plan.cluster_faults
    assert all(str(fault) in str(plan) for fault in (*plan.faults, *plan.cluster_faults))
