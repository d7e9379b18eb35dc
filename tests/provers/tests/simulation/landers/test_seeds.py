"""A campaign of landers, in which every fault has struck."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.provers.simulation.landers.plan import LanderFaultKind
from tests.provers.simulation.landers.run import run_landers_seed
from tests.provers.simulation.landers.world import LandersSometimes


@pytest.mark.parametrize("first", [1_000_070, 1_000_120])
def test_twenty_seeds_are_clean_and_meet_every_fault(first: int) -> None:
    faults: Counter[str] = Counter()
    moments: Counter[str] = Counter()
    for seed in range(first, first + 20):
        outcome = run_landers_seed(seed)
        faults.update(outcome.faults)
        moments.update(outcome.moments)

    assert not set(LanderFaultKind) - faults.keys()
    assert all(moments[moment] for moment in LandersSometimes)
