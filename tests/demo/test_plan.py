from __future__ import annotations

import pytest

from fanout.demo.options import DemoOptions
from fanout.demo.plan import Act, Kind, draw_plan

SEEDS = range(50)


def options(seed: int = 1, *, kill: bool = True) -> DemoOptions:
    return DemoOptions(records=10_000, seed=seed, kill=kill)


def test_a_seed_draws_the_same_plan_again() -> None:
    assert draw_plan(options()) == draw_plan(options())


def test_another_seed_draws_another_plan() -> None:
    assert draw_plan(options(1)) != draw_plan(options(2))


def test_the_kill_changes_nothing_else() -> None:
    assert draw_plan(options(kill=True)).acts == draw_plan(options(kill=False)).acts


def test_nobody_is_killed_unless_asked_for() -> None:
    plan = draw_plan(options(kill=False))
    assert (plan.kill, plan.second) == (None, None)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_kind_of_act_is_in_a_plan(seed: int) -> None:
    assert {act.kind for act in draw_plan(options(seed)).acts} == set(Kind)


@pytest.mark.parametrize("seed", SEEDS)
def test_acts_happen_one_after_the_other_while_records_flow(seed: int) -> None:
    moments = [act.at for act in draw_plan(options(seed)).acts]
    assert moments == sorted(moments)
    assert 1_000 <= moments[0] < moments[-1] < 8_500


@pytest.mark.parametrize("seed", SEEDS)
def test_a_split_comes_first(seed: int) -> None:
    assert draw_plan(options(seed)).acts[0].kind is Kind.SPLIT


@pytest.mark.parametrize("seed", SEEDS)
def test_batches_come_before_and_after_the_kill(seed: int) -> None:
    kill = draw_plan(options(seed)).kill
    assert kill is not None
    assert 2_500 <= kill.after < 6_000


@pytest.mark.parametrize("seed", SEEDS)
def test_the_killed_driver_has_read_beyond_the_first_reshard(seed: int) -> None:
    plan = draw_plan(options(seed))
    assert plan.kill is not None
    assert plan.acts[0].at < plan.kill.after


def test_the_shards_of_the_second_reshard_differ_between_seeds() -> None:
    assert len({draw_plan(options(seed)).second for seed in SEEDS}) == len(SEEDS)


def test_both_halves_of_the_handler_are_killed_by_some_seed() -> None:
    kills = [draw_plan(options(seed)).kill for seed in SEEDS]
    assert {kill.written for kill in kills if kill is not None} == {False, True}


@pytest.mark.parametrize(("where", "chosen"), [(0.0, "a"), (0.34, "b"), (0.999, "c")])
def test_an_act_chooses_among_what_is_there(where: float, chosen: str) -> None:
    assert Act(1, Kind.CUT, where).choose(["a", "b", "c"]) == chosen
