from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.provers.simulation.campaign.failures import FailureKind, RunFailure
from tests.provers.simulation.campaign.totals import Totals
from tests.provers.simulation.moments.moments import KinesisSometimes
from tests.provers.tests.simulation.campaign.seed_runs import answer

if TYPE_CHECKING:
    from tests.provers.simulation.campaign.worker import Result

RESULTS: list[Result] = [
    *(answer(seed) for seed in range(101)),
    RunFailure(102, FailureKind.LOST, "lost: a row"),
    RunFailure(101, FailureKind.STUCK, "stuck: a row"),
]


def test_the_order_in_which_runs_end_does_not_matter() -> None:
    totals = sum(map(Totals.of, RESULTS), Totals())
    shuffled = random.Random(0).sample(RESULTS, len(RESULTS))
    middle = len(shuffled) // 2
    halves = (
        sum(map(Totals.of, part), Totals()) for part in (shuffled[:middle], shuffled[middle:])
    )

    assert sum(halves, Totals()) == totals


def test_everything_is_added_up() -> None:
    totals = sum(map(Totals.of, RESULTS), Totals())

    assert totals.seeds == 103
    assert totals.steps == totals.records == totals.replayed == totals.restarts == 5050
    assert totals.milliseconds == 505_000
    assert totals.calls == {"ListShards": 5050, "call 0": 51, "call 1": 50}
    assert totals.faults == {"stall": 5050, "fault 0": 51, "fault 1": 50}
    first, second, *_ = KinesisSometimes
    assert totals.moments == {KinesisSometimes.END_FIRST: 5050, first: 51, second: 50}
    assert totals.slowest_close == 100 / 7


def test_time_is_added_up_exactly() -> None:
    tenths = [replace(answer(0), seconds=0.1004) for _ in range(10)]

    assert sum(map(Totals.of, tenths), Totals()).milliseconds == 1000


def test_recovery_is_told_for_any_share_of_the_runs() -> None:
    totals = sum(map(Totals.of, RESULTS), Totals())

    assert [totals.recovery(share) for share in (0.0, 0.5, 0.99, 1.0)] == [0, 17, 33, 34]
    assert Totals().recovery(0.99) == 0


def test_failures_are_told_by_seed_and_counted_by_kind() -> None:
    totals = sum(map(Totals.of, RESULTS), Totals())

    assert [failure.seed for failure in totals.failures] == [101, 102]
    counted = totals.failures_by_kind
    assert (counted[FailureKind.LOST], counted[FailureKind.STUCK], sum(counted.values())) == (
        1,
        1,
        2,
    )
    assert list(counted) == list(FailureKind)
