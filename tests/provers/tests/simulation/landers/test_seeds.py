"""A campaign of landers, in which every fault has struck, and seeds of each coincidence."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.provers.simulation.landers.plan import LanderFaultKind
from tests.provers.simulation.landers.run import run_landers_seed
from tests.provers.simulation.landers.world import LandersSometimes

_MET = [
    (1_000_127, LandersSometimes.HELD_TWICE),
    (1_000_093, LandersSometimes.ORPHANED),
    (967, LandersSometimes.PARTS_LEFT),
    (385, LandersSometimes.STAGED_LEFT),
    (2_000_095, LandersSometimes.BAD_LEFT),
]


@pytest.mark.parametrize("first", [1_000_070, 1_000_120])
def test_twenty_seeds_are_clean_and_meet_every_fault(first: int) -> None:
    faults: Counter[str] = Counter()
    for seed in range(first, first + 20):
        faults.update(run_landers_seed(seed).faults)

    assert not set(LanderFaultKind) - faults.keys()


@pytest.mark.parametrize(("seed", "moment"), _MET)
def test_a_coincidence_is_met(seed: int, moment: LandersSometimes) -> None:
    assert run_landers_seed(seed).moments[moment]


def test_each_coincidence_has_a_seed() -> None:
    assert {moment for _, moment in _MET} == {*LandersSometimes}
