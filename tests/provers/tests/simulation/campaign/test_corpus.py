"""The plans that have found defects, each named for what it found.

A failure that a campaign finds gets a file of its own in `corpus`, before it is mended:
`python -m tests.provers sim replay SEED --shrink --json | jq .plan > what-it-was.json`.
What a plan comes to depends on the simulator too, so the defect needs a test of its own as well.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.provers.simulation.plans import read_plan
from tests.provers.simulation.run import run_plan

pytestmark = pytest.mark.regression

PLANS = sorted(Path(__file__).parent.glob("corpus/*.json"))


def test_there_is_a_corpus() -> None:
    assert PLANS


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_what_was_once_broken_holds(path: Path) -> None:
    run_plan(read_plan(path.read_bytes()))
