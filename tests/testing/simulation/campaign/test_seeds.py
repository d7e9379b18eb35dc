from __future__ import annotations

from contextlib import closing

import pytest

from fanout.testing.simulation import draw_plan
from fanout.testing.simulation.campaign.campaign import run_campaign
from fanout.testing.simulation.campaign.shrink import shrink
from fanout.testing.simulation.campaign.totals import Totals
from fanout.testing.simulation.moments.moments import check_met

SEEDS = range(2000)


# It takes less than a minute of two cores that have nothing else to do.
@pytest.mark.timeout(600)
def test_two_thousand_seeds_keep_every_promise() -> None:
    totals = Totals()
    with closing(run_campaign(SEEDS)) as results:
        for result in results:
            totals += Totals.of(result)

    assert totals.seeds == len(SEEDS)
    check_met(totals.moments)
    for failure in totals.failures:
        smallest = None
        if not failure.kind.of_the_process:
            smallest = shrink(draw_plan(failure.seed), max_seconds=10)
        plan = draw_plan(failure.seed) if smallest is None else smallest.plan
        others = [f"{each.command}: {each.summary}" for each in totals.failures[1:]]
        pytest.fail("\n".join([failure.command, failure.text, plan.to_json(), *others]))
