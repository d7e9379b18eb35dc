"""A defect on purpose, for tests of what is made of defects."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.provers.simulation.kinesis.faults import KinesisFault, KinesisFaultKind
from tests.provers.simulation.kinesis.plan_draws import draw_kinesis_plan

if TYPE_CHECKING:
    import pytest

    from fanout.core.positions import Position

__all__ = ("SHOWING", "begin_again")

SHOWING = replace(
    draw_kinesis_plan(0),
    schedule="shuffled",
    mode="efo",
    start="TRIM_HORIZON",
    shards=2,
    records=50,
    reshards=1,
    large=False,
    seconds=250.0,  # before the end of the first subscription nothing but a fault shows it
    reading="drain",
    checkpoint_every=1,
    acknowledging="each",
    storing="positions",
    deregister="never",
    broken=None,
    faults=tuple(
        KinesisFault(kind=kind, at=float(at), seconds=1.0)
        for at in range(100, 250, 20)
        for kind in (KinesisFaultKind.SLOW, KinesisFaultKind.CRASH, KinesisFaultKind.STORE_SLOW)
    ),
)
"""A plan that shows the defect, and has more in it than that needs."""


def begin_again(patch: pytest.MonkeyPatch) -> None:
    """Let subscribers resume at the oldest record, and not after the last that was handed on."""

    def wrong(_: Position) -> dict[str, Any]:
        return {"Type": "TRIM_HORIZON"}

    patch.setattr("fanout.kinesis.reading.subscription.starting_position", wrong)
