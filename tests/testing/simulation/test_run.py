from __future__ import annotations

import os
import subprocess
import sys

from fanout.testing.simulation import Fault, Kind, draw_plan, run_plan, run_seed

_PRINT_DIGESTS = """
from fanout.testing.simulation import run_seed
for seed in range(3):
    print(run_seed(seed).digest)
"""


def test_without_faults_everything_arrives_and_nothing_comes_again() -> None:
    for seed in range(5):
        outcome = run_plan(draw_plan(seed).without_faults())

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

    assert said == {"".join(f"{run_seed(seed).digest}\n" for seed in range(3))}


def test_a_plan_is_printed_with_every_fault() -> None:
    plan = draw_plan(7)

    assert all(str(fault) in str(plan) for fault in plan.faults)
    fault = Fault(kind=Kind.STALL, at=1.5, shard="shardId-000000000000", seconds=30)
    assert str(fault) == "1.500: stall shardId-000000000000 30 s"
