"""The fixed seeds of the suite, in parts that share the processes of one campaign."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.provers.simulation.campaign.campaign import run_campaign
from tests.provers.simulation.campaign.shrink import shrink
from tests.provers.simulation.kinesis.plan_draws import draw_kinesis_plan
from tests.provers.simulation.moments.moments import check_met
from tests.provers.tests.simulation.campaign.campaigns import Campaign, parts_of, selected

if TYPE_CHECKING:
    from collections.abc import Iterator

SEEDS = range(2000)


@pytest.fixture(scope="module")
def campaign(request: pytest.FixtureRequest) -> Iterator[Campaign]:
    with closing(run_campaign(selected(request, SEEDS))) as results:
        yield Campaign(results)


@pytest.mark.parametrize("part", parts_of(SEEDS), ids=str)
def test_fifty_of_two_thousand_seeds_keep_every_promise(campaign: Campaign, part: range) -> None:
    failures = campaign.totals_of(part).failures
    for failure in failures:
        smallest = None
        if not failure.kind.of_the_process:
            smallest = shrink(draw_kinesis_plan(failure.seed), max_seconds=10)
        plan = draw_kinesis_plan(failure.seed) if smallest is None else smallest.plan
        others = [f"{each.command}: {each.summary}" for each in failures[1:]]
        pytest.fail("\n".join([failure.command, failure.text, plan.to_json(), *others]))


@pytest.mark.timeout(600)  # where it is run alone, it runs them all
def test_two_thousand_seeds_meet_every_coincidence(campaign: Campaign) -> None:
    totals = campaign.totals_of(SEEDS)
    assert [failure.command for failure in totals.failures] == []
    assert totals.seeds == len(SEEDS)
    check_met(totals.moments)
