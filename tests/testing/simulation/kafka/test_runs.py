"""Seeds over Kafka: what a run without faults is, and that a run is the same everywhere."""

from __future__ import annotations

import os
import subprocess
import sys

from fanout.testing.simulation.kafka.plan import KafkaPlan, draw_kafka_plan
from fanout.testing.simulation.run import run_kafka_seed, run_plan

_PRINT_DIGESTS = """
from fanout.testing.simulation.run import run_kafka_seed
for seed in range(5):
    print(run_kafka_seed(seed).digest)
"""


def test_without_faults_everything_arrives_and_nothing_comes_again() -> None:
    for seed in range(20):
        outcome = run_plan(draw_kafka_plan(seed).without_faults())

        assert outcome.records > 0 or draw_kafka_plan(seed).start != "earliest"
        assert outcome.faults == {}
        assert outcome.restarts == outcome.replayed == 0


def test_a_seed_gives_the_same_run_in_every_process() -> None:
    said = {
        subprocess.run(  # noqa: S603 - our own interpreter and program
            [sys.executable, "-c", _PRINT_DIGESTS],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for hash_seed in ("0", "1")
    }

    assert said == {"".join(f"{run_kafka_seed(seed).digest}\n" for seed in range(5))}


def test_a_plan_is_read_back_as_it_was_written() -> None:
    for seed in range(20):
        plan = draw_kafka_plan(seed)

        assert KafkaPlan.from_json(plan.to_json()) == plan


def test_a_plan_is_printed_with_every_fault() -> None:
    plan = draw_kafka_plan(8)

    assert plan.faults
    assert plan.cluster_faults
    assert all(str(fault) in str(plan) for fault in (*plan.faults, *plan.cluster_faults))
