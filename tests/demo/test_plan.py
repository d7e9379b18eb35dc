from __future__ import annotations

from dataclasses import replace

import pytest

from fanout.demo.options import DemoOptions, ServiceName
from fanout.demo.plan import Action, Kind, SparkProcess, draw_plan

SEEDS = range(50)
KINESIS, KAFKA, KAFKA_SHARE, QUEUE = ServiceName
OF_DATAFRAMES = {SparkProcess.PLANNER, SparkProcess.WORKER}

every_source = pytest.mark.parametrize("source", ServiceName)


def options(seed: int = 1, *, kill: bool = True, source: ServiceName = KINESIS) -> DemoOptions:
    return DemoOptions(records=10_000, seed=seed, kill=kill, source=source)


def test_a_seed_draws_the_same_plan_again() -> None:
    assert draw_plan(options()) == draw_plan(options())


def test_another_seed_draws_another_plan() -> None:
    assert draw_plan(options(1)) != draw_plan(options(2))


@pytest.mark.long
@every_source
@pytest.mark.parametrize("seed", SEEDS)
def test_a_lander_is_killed_before_its_driver_and_changes_nothing_else(
    seed: int, source: ServiceName
) -> None:
    alone = options(seed, source=source)
    plan = draw_plan(alone)
    assert plan.kill_processes == ()
    if source.lender:
        return
    with_landers = draw_plan(replace(alone, landers=2))
    (kill,) = with_landers.kill_processes
    assert kill.process is SparkProcess.LANDER
    assert plan.kill is not None
    assert 500 <= kill.after < plan.kill.after
    assert 0 <= kill.delay < 1
    assert plan == replace(with_landers, kill_processes=())
    assert draw_plan(replace(alone, landers=2, kill=False)).kill_processes == ()


@pytest.mark.long
@pytest.mark.parametrize("source", [KINESIS, KAFKA])
@pytest.mark.parametrize("seed", SEEDS)
def test_processes_of_a_dataframe_are_killed_before_its_driver_and_change_nothing_else(
    seed: int, source: ServiceName
) -> None:
    alone = options(seed, source=source)
    plan = draw_plan(alone)
    with_dataframe = draw_plan(replace(alone, dataframe=True))
    kills = with_dataframe.kill_processes
    assert {kill.process for kill in kills} == OF_DATAFRAMES
    assert plan.kill is not None
    assert 500 <= kills[0].after <= kills[1].after < plan.kill.after
    assert all(0 <= kill.delay < 1 for kill in kills)
    assert plan == replace(with_dataframe, kill_processes=())
    assert draw_plan(replace(alone, dataframe=True, kill=False)).kill_processes == ()


def test_the_planner_is_killed_before_the_workers_or_after_them() -> None:
    plans = [draw_plan(replace(options(seed), dataframe=True)) for seed in SEEDS]
    assert {plan.kill_processes[0].process for plan in plans} == OF_DATAFRAMES


def test_the_kill_changes_nothing_else() -> None:
    assert draw_plan(options(kill=True)).actions == draw_plan(options(kill=False)).actions


def test_nobody_is_killed_unless_asked_for() -> None:
    plan = draw_plan(options(kill=False))
    assert (plan.kill, plan.kill_reader, plan.while_down) == (None, None, ())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_reader_of_a_shuffle_is_killed_after_its_writer_and_at_the_other_moment(
    seed: int,
) -> None:
    alone = DemoOptions(records=10_000, seed=seed, kill=True, source=KAFKA)
    plan = draw_plan(replace(alone, shuffle=True))
    assert plan.kill is not None
    assert plan.kill_reader is not None
    assert plan.kill.after < plan.kill_reader.after < 8_000
    assert plan.kill.written is not plan.kill_reader.written
    assert draw_plan(alone) == replace(plan, kill_reader=None)


@pytest.mark.parametrize("seed", SEEDS)
def test_everything_that_can_be_done_to_a_service_is_in_its_plan(seed: int) -> None:
    plans = {source: draw_plan(options(seed, source=source)) for source in ServiceName}
    done = {
        source: {action.kind for action in plan.actions + plan.while_down}
        for source, plan in plans.items()
    }
    several = draw_plan(replace(options(seed, source=KAFKA), nodes=3))
    of_nodes = {action.kind for action in several.actions} - done[KAFKA]
    assert done[KINESIS] | done[KAFKA] | done[QUEUE] | of_nodes == set(Kind)
    assert not done[QUEUE] & done[KINESIS]
    assert of_nodes == {Kind.MOVE, Kind.HANG}
    assert not done[KINESIS] & done[KAFKA]
    assert done[KAFKA_SHARE] == done[KAFKA]


@pytest.mark.long
@every_source
@pytest.mark.parametrize("seed", SEEDS)
def test_acts_happen_one_after_the_other_while_records_flow(seed: int, source: ServiceName) -> None:
    moments = [action.at for action in draw_plan(options(seed, source=source)).actions]
    assert moments == sorted(moments)
    assert 1_000 <= moments[0] < moments[-1] < 8_500


@pytest.mark.parametrize("seed", SEEDS)
def test_a_split_comes_first(seed: int) -> None:
    assert draw_plan(options(seed)).actions[0].kind is Kind.SPLIT


@pytest.mark.parametrize("seed", SEEDS)
def test_batches_come_before_and_after_the_kill(seed: int) -> None:
    kill = draw_plan(options(seed)).kill
    assert kill is not None
    assert 2_500 <= kill.after < 6_000


@pytest.mark.long
@every_source
@pytest.mark.parametrize("seed", SEEDS)
def test_the_killed_driver_has_read_beyond_the_first_act(seed: int, source: ServiceName) -> None:
    plan = draw_plan(options(seed, source=source))
    assert plan.kill is not None
    assert plan.actions[0].at < plan.kill.after


def test_what_is_done_while_nobody_reads_differs_between_seeds() -> None:
    assert len({draw_plan(options(seed)).while_down for seed in SEEDS}) == len(SEEDS)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_topic_grows_midway_and_a_transaction_is_aborted_after_that(seed: int) -> None:
    actions = draw_plan(options(seed, source=KAFKA)).actions
    (grown,) = (action.at for action in actions if action.kind is Kind.GROW)
    assert 4_000 <= grown < 5_500
    assert grown < max(action.at for action in actions if action.kind is Kind.ABORT)


def test_a_topic_grows_while_nobody_reads() -> None:
    plan = draw_plan(options(source=KAFKA))
    assert [action.kind for action in plan.while_down] == [Kind.GROW]


@pytest.mark.parametrize("seed", SEEDS[:5])
def test_nodes_of_a_cluster_fail_and_all_else_stays_in_its_order(seed: int) -> None:
    one = options(seed, source=KAFKA)
    alone, several = draw_plan(one), draw_plan(replace(one, nodes=3))
    kinds = [action.kind for action in several.actions]
    assert kinds[:2] == [Kind.RESTART, Kind.MOVE]
    assert kinds[-1] is Kind.HANG
    assert [kinds[0], *kinds[2:-1]] == [action.kind for action in alone.actions]
    assert several.actions[0].at < 2_500  # before the driver is killed


def test_both_halves_of_the_handler_are_killed_by_some_seed() -> None:
    kills = [draw_plan(options(seed)).kill for seed in SEEDS]
    assert {kill.written for kill in kills if kill is not None} == {False, True}


@pytest.mark.parametrize(("where", "chosen"), [(0.0, "a"), (0.34, "b"), (0.999, "c")])
def test_an_act_chooses_among_what_is_there(where: float, chosen: str) -> None:
    assert Action(1, Kind.CUT, where).choose(["a", "b", "c"]) == chosen
