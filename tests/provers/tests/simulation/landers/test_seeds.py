"""A campaign of landers, in which every fault has struck."""

from __future__ import annotations

from collections import Counter

from tests.provers.simulation.landers.plan import LanderFaultKind
from tests.provers.simulation.landers.run import run_landers_seed


def test_two_hundred_seeds_are_clean_and_meet_every_fault() -> None:
    faults: Counter[str] = Counter()
    for seed in range(1_000_000, 1_000_200):
        faults.update(run_landers_seed(seed).faults)

    assert not set(LanderFaultKind) - faults.keys()
