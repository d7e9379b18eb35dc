from __future__ import annotations

from collections import Counter
from itertools import islice
from random import Random
from typing import Any

import pytest

from fanout.errors import OptionError
from tests.provers.crash.moments import CrashMoment, Pipeline, Sink, Strike, StrikeKind
from tests.provers.crash.plan import CrashOptions, draw_crash_plan

ALL = tuple(Pipeline)
SINKS = tuple(sink for sink in Sink if sink is not Sink.KAFKA)
BOTH = (Pipeline.KINESIS, Pipeline.KAFKA)
LANDERS = (Pipeline.KINESIS_LANDERS, Pipeline.KAFKA_LANDERS)
OF_LANDERS = {StrikeKind.KILL_LANDER, StrikeKind.KILL_EXECUTOR, StrikeKind.KILL_SPARK_WORKER}
IN_LANDERS = {CrashMoment.BEFORE_LANDING, CrashMoment.AFTER_LANDING, CrashMoment.AFTER_TELLING}


def strikes(**options: object) -> list[tuple[Strike, ...]]:
    return [each.strikes for each in draw_crash_plan(CrashOptions(**options))]  # type: ignore[arg-type]


def catalogue(*pipelines: Pipeline, sink: Sink = Sink.KAFKA) -> int:
    """Count the strikes that come before any comes again."""
    kinds = [
        tuple((each.moment, each.kind) for each in both)
        for both in strikes(rounds=200, sink=sink, pipelines=pipelines)
    ]
    return next(count for count in range(1, 200) if kinds[count] in kinds[:count])


def test_the_same_seed_draws_the_same_plan_and_another_does_not() -> None:
    options = CrashOptions(rounds=50, seed=4)
    assert draw_crash_plan(options) == draw_crash_plan(options)
    assert strikes(rounds=50, seed=4) != strikes(rounds=50, seed=5)


def test_every_step_of_a_batch_is_struck_in_one_deal_of_some_sink() -> None:
    dealt = [*strikes(rounds=catalogue(*ALL) + 10, nodes=3, seed=Random(0).randrange(100))]
    for sink in SINKS:
        deal = catalogue(Pipeline.KINESIS, sink=sink)
        dealt += strikes(rounds=deal, sink=sink, pipelines=(Pipeline.KINESIS,))
    moments = {each.moment for both in dealt for each in both}
    assert moments == set(CrashMoment)
    assert {each.kind for both in dealt for each in both} == set(StrikeKind)


@pytest.mark.parametrize("sink", SINKS)
def test_thirty_rounds_strike_every_step_of_a_sink_but_no_broker(sink: Sink) -> None:
    assert catalogue(Pipeline.KINESIS, sink=sink) <= CrashOptions().rounds
    dealt = strikes(rounds=100, sink=sink, pipelines=(Pipeline.KINESIS,))
    kinds = {each.kind for both in dealt for each in both}
    assert kinds == {
        StrikeKind.KILL_DRIVER,
        StrikeKind.KILL_WORKER,
        StrikeKind.KILL_KINESIS,
        StrikeKind.CUT_KINESIS,
    }


@pytest.mark.parametrize("pipelines", [(Pipeline.KAFKA,), BOTH, ALL])
def test_the_other_sinks_write_what_kinesis_has(pipelines: tuple[Pipeline, ...]) -> None:
    with pytest.raises(OptionError, match="the pipeline into delta is kinesis alone"):
        CrashOptions(sink=Sink.DELTA, pipelines=pipelines)


def test_the_next_deal_strikes_the_other_pipeline() -> None:
    deal = catalogue(*BOTH)
    dealt = strikes(rounds=2 * deal, pipelines=BOTH)
    struck = Counter(each for both in dealt for each in both[:1])
    assert all(Strike(each.moment, each.kind, other) in struck for each in struck for other in BOTH)


def test_a_driver_that_takes_over_is_struck_as_one_that_was_killed_before() -> None:
    taking_over = {CrashMoment.BEFORE_RECOVERY, CrashMoment.AFTER_RECOVERY}
    for first, *others in strikes(rounds=catalogue(*BOTH)):
        assert first.moment not in taking_over
        assert all(first.kind is each.kind is StrikeKind.KILL_DRIVER for each in others)


def test_kinesis_is_left_alone_where_nobody_reads_it() -> None:
    dealt = strikes(rounds=100, pipelines=(Pipeline.KAFKA,))
    assert {each.pipeline for both in dealt for each in both} == {Pipeline.KAFKA}
    kinds = {each.kind for both in dealt for each in both}
    of_kinesis = {StrikeKind.KILL_KINESIS, StrikeKind.CUT_KINESIS}
    of_clusters = {StrikeKind.MOVE_LEADERS}
    assert kinds == set(StrikeKind) - of_kinesis - OF_LANDERS - of_clusters


@pytest.mark.parametrize("pipelines", [ALL, LANDERS])
def test_landers_are_struck_where_they_are(pipelines: tuple[Pipeline, ...]) -> None:
    dealt = [each for both in strikes(rounds=300, pipelines=pipelines) for each in both]
    of_landers = [each for each in dealt if each.kind in OF_LANDERS or each.moment in IN_LANDERS]
    assert {each.kind for each in of_landers} >= OF_LANDERS | {StrikeKind.KILL_DRIVER}
    assert {each.pipeline for each in of_landers} == set(LANDERS)
    published = {CrashMoment.BEFORE_SEGMENT, CrashMoment.AFTER_SEGMENT}
    assert not [each for each in dealt if each.moment in published and each.pipeline.by_landers]


def test_one_of_two_rounds_strikes_in_a_lander() -> None:
    for seed in range(50):
        moments = [each.moment for both in strikes(rounds=2, seed=seed) for each in both]
        assert set(moments) & IN_LANDERS


def test_nodes_of_a_cluster_are_struck_one_at_a_time_and_leaders_move() -> None:
    rounds = draw_crash_plan(CrashOptions(rounds=60, nodes=3))
    alone = draw_crash_plan(CrashOptions(rounds=60))
    assert {each.node for each in rounds} == {1, 2, 3}
    assert {each.node for each in alone} == {1}
    moved = [s for each in rounds for s in each.strikes if s.kind is StrikeKind.MOVE_LEADERS]
    assert len(moved) >= 3
    assert not any(s.kind is StrikeKind.MOVE_LEADERS for each in alone for s in each.strikes)
    assert max(each.outage for each in rounds) > 5  # longer than a session of three seconds


@pytest.mark.parametrize("options", [{"nodes": 2}, {"nodes": 3, "sink": Sink.PARQUET}])
def test_nodes_of_which_none_may_fail_or_that_nobody_needs_are_refused(
    options: dict[str, Any],
) -> None:
    pipelines = (Pipeline.KINESIS,)
    with pytest.raises(OptionError, match="nodes"):
        CrashOptions(**{"pipelines": pipelines, **options})


def test_outages_and_delays_are_short() -> None:
    plan = list(islice(draw_crash_plan(CrashOptions(rounds=100)), 100))
    assert all(0 < each.delay <= 1 and 0 < each.outage <= 3 for each in plan)


@pytest.mark.parametrize("options", [{"rounds": 0}, {"rounds": 10_001}, {"pipelines": ()}])
def test_a_campaign_of_nothing_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(OptionError):
        CrashOptions(**options)  # type: ignore[arg-type]
