from __future__ import annotations

from dataclasses import MISSING, fields, replace
from typing import TYPE_CHECKING

import pytest

from tests.provers.simulation.campaign.failures import kind_of
from tests.provers.simulation.campaign.shrink import shrink
from tests.provers.simulation.errors import OracleError, SimulationError
from tests.provers.simulation.kinesis.faults import KinesisFault, KinesisFaultKind
from tests.provers.simulation.kinesis.plan import KinesisPlan
from tests.provers.simulation.kinesis.plan_draws import draw_kinesis_plan
from tests.provers.simulation.plans import read_plan
from tests.provers.simulation.run import run_plan
from tests.provers.tests.simulation.planted_defect import SHOWING, begin_again

if TYPE_CHECKING:
    from collections.abc import Callable

PLAN = replace(
    draw_kinesis_plan(0),
    schedule="shuffled",
    start="LATEST",
    shards=16,
    records=50,
    reshards=5,
    large=True,
    seconds=600.0,
    reading="drain",
    checkpoint_every=10,
    acknowledging="some",
    broken="shardId-000000000000",
    faults=tuple(KinesisFault(kind=KinesisFaultKind.STALL, at=float(at)) for at in range(100)),
)


def failing_if(
    lost: Callable[[KinesisPlan], bool], altered: Callable[[KinesisPlan], bool] = lambda _: False
) -> Callable[[KinesisPlan], None]:
    """Make a stand-in for `run_plan` that loses or alters records under some conditions."""

    def run(plan: KinesisPlan) -> None:
        for condition, kind in ((lost, "lost"), (altered, "altered")):
            if condition(plan):
                raise SimulationError(kind) from OracleError(f"{kind}: a row")

    return run


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[KinesisPlan], None]], None]:
    return lambda run: monkeypatch.setattr("tests.provers.simulation.campaign.shrink.run_plan", run)


def test_a_plan_that_does_not_fail_cannot_be_shrunk(
    runs: Callable[[Callable[[KinesisPlan], None]], None],
) -> None:
    runs(failing_if(lambda _: False))

    assert shrink(PLAN) is None


@pytest.mark.parametrize("needed", [set(), {0}, {99}, {49, 50}, {3, 50, 77, 98}, set(range(100))])
def test_exactly_the_faults_stay_that_matter(
    runs: Callable[[Callable[[KinesisPlan], None]], None], needed: set[int]
) -> None:
    faults = {fault for fault in PLAN.faults if fault.at in needed}
    runs(failing_if(lambda plan: faults.issubset(plan.faults)))

    shrunk = shrink(PLAN)

    assert shrunk is not None
    assert shrunk.done
    assert set(shrunk.plan.faults) == faults


def test_everything_becomes_as_small_and_plain_as_it_may(
    runs: Callable[[Callable[[KinesisPlan], None]], None],
) -> None:
    runs(
        failing_if(
            lambda plan: (
                plan.records >= 7
                and plan.shards >= 3
                and plan.seconds >= 45
                and plan.reading == "drain"
            )
        )
    )

    shrunk = shrink(PLAN)

    assert shrunk is not None
    assert shrunk.plan == replace(
        PLAN,
        schedule="fifo",
        mode="efo",
        start="TRIM_HORIZON",
        shards=3,
        records=7,
        reshards=0,
        large=False,
        seconds=45.0,
        checkpoint_every=1,
        broken=None,
        faults=(),
        **{each.name: each.default for each in fields(KinesisPlan) if each.default is not MISSING},
    )


def test_it_goes_on_failing_in_the_same_way(
    runs: Callable[[Callable[[KinesisPlan], None]], None],
) -> None:
    runs(failing_if(lambda plan: len(plan.faults) > 9, altered=lambda _: True))

    shrunk = shrink(PLAN)

    assert shrunk is not None
    assert len(shrunk.plan.faults) == 10
    assert kind_of(shrunk.error) == "lost"


def test_the_number_of_runs_and_the_time_are_bounded(
    runs: Callable[[Callable[[KinesisPlan], None]], None],
) -> None:
    runs(failing_if(lambda _: True))

    few, fast = shrink(PLAN, max_runs=3), shrink(PLAN, max_seconds=0)

    assert few is not None
    assert (few.runs, few.done) == (3, False)
    assert len(few.plan.faults) == 25
    assert fast is not None
    assert (fast.plan, fast.runs, fast.done) == (PLAN, 1, False)


def test_a_real_failure_fails_as_before_when_its_smallest_plan_was_written_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin_again(monkeypatch)

    shrunk = shrink(SHOWING)

    assert shrunk is not None
    assert isinstance(shrunk.plan, KinesisPlan)
    assert [fault.kind for fault in shrunk.plan.faults] == [KinesisFaultKind.CRASH]
    assert shrunk.plan.records < SHOWING.records
    with pytest.raises(SimulationError) as again:
        run_plan(read_plan(shrunk.plan.to_json()))
    assert str(again.value) == str(shrunk.error)
