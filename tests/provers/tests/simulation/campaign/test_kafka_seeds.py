"""The fixed seeds over Kafka, in parts, as those of Kinesis in `test_seeds`."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.provers.planted.hunt import planted
from tests.provers.planted.kafka_bugs import KAFKA_BUGS
from tests.provers.simulation.campaign.campaign import run_campaign
from tests.provers.simulation.campaign.failures import try_kafka_seed
from tests.provers.simulation.campaign.shrink import shrink
from tests.provers.simulation.kafka.faults import KafkaFaultKind
from tests.provers.simulation.kafka.moments import KafkaSometimes
from tests.provers.simulation.kafka.plan import KafkaPlan
from tests.provers.simulation.kafka.plan_draws import draw_kafka_plan
from tests.provers.simulation.plans import read_plan
from tests.provers.simulation.run import run_plan
from tests.provers.tests.simulation.campaign.campaigns import Campaign, parts_of, selected

if TYPE_CHECKING:
    from collections.abc import Iterator

SEEDS = range(500)
LARGE = 30


@pytest.fixture(scope="module")
def campaign(request: pytest.FixtureRequest) -> Iterator[Campaign]:
    with closing(run_campaign(selected(request, SEEDS), run=try_kafka_seed)) as results:
        yield Campaign(results)


@pytest.mark.parametrize("part", parts_of(SEEDS), ids=str)
def test_fifty_of_five_hundred_seeds_over_kafka_keep_every_promise(
    campaign: Campaign, part: range
) -> None:
    failures = campaign.totals_of(part).failures
    for failure in failures:
        plan = draw_kafka_plan(failure.seed)
        others = [f"{each.command}: {each.summary}" for each in failures[1:]]
        pytest.fail("\n".join([failure.command, failure.text, plan.to_json(), *others]))


@pytest.mark.timeout(600)  # where it is run alone, it runs them all
def test_five_hundred_seeds_meet_every_kind_of_fault_and_every_coincidence(
    campaign: Campaign,
) -> None:
    totals = campaign.totals_of(SEEDS)

    assert [failure.command for failure in totals.failures] == []
    assert totals.seeds == len(SEEDS)
    assert {str(kind) for kind in KafkaFaultKind} <= totals.faults.keys()
    assert [moment.name for moment in KafkaSometimes if not totals.moments[moment]] == []


def test_a_plan_over_kafka_is_shrunk_and_read_back() -> None:
    large = draw_kafka_plan(LARGE)
    with planted(KAFKA_BUGS["aborted records are delivered"]):
        shrunk = shrink(large, max_runs=200)

        assert shrunk is not None
        assert isinstance(shrunk.plan, KafkaPlan)
        assert (len(large.faults) > 10, len(large.cluster_faults) > 10) == (True, True)
        assert (shrunk.plan.faults, shrunk.plan.cluster_faults) == ((), ())
        assert shrunk.plan.batches < large.batches
        with pytest.raises(type(shrunk.error)):
            run_plan(read_plan(shrunk.plan.to_json()))
