from __future__ import annotations

import time
from math import ceil
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout.landers.assignment import Assignment

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fanout.landers.assignment import Plan

LANDERS = st.sets(st.integers(0, 20), min_size=1, max_size=8)
RATES = st.dictionaries(
    st.sampled_from([f"split-{number:03}" for number in range(60)]),
    st.none() | st.floats(0, 1e6),
    min_size=1,
    max_size=60,
)


class Cluster:
    """Do what is planned, as the coordinator does it."""

    def __init__(self, landers: Iterable[int], rates: Mapping[str, float | None]) -> None:
        self.assignment = Assignment()
        self.landers = set(landers)
        self.rates = {name: rate for name, rate in rates.items() if rate is not None}
        self.owners: dict[str, int] = {}
        self.waiting = set(rates)
        self.on_their_way: set[str] = set()
        self.now = 0.0
        self.moves = 0

    def step(self) -> Plan:
        self.now += 1.0
        ready, self.on_their_way = self.on_their_way, set()
        plan = self.assignment.plan(self.landers, self.owners, self.waiting, self.rates, self.now)
        given_away = [name for names in plan.assigned.values() for name in names]
        assert sorted(given_away) == sorted(self.waiting if self.landers else ())
        assert set(plan.assigned) <= self.landers
        for lander, names in plan.assigned.items():
            self.owners |= dict.fromkeys(names, lander)
        self.waiting = ready | (set() if self.landers else self.waiting)
        for name in plan.moved:
            del self.owners[name]
        self.on_their_way |= set(plan.moved)
        self.moves += len(plan.moved)
        assert len({*plan.moved}) == len(plan.moved)
        return plan

    def settle(self, steps: int = 200) -> None:
        for _ in range(steps):
            self.step()

    def leave(self, lander: int) -> None:
        self.landers.remove(lander)
        gone = {name for name, owner in self.owners.items() if owner == lander}
        self.owners = {name: owner for name, owner in self.owners.items() if owner != lander}
        self.waiting |= gone

    def counts(self) -> list[int]:
        return sorted(
            sum(owner == lander for owner in self.owners.values()) for lander in self.landers
        )

    def load(self, lander: int) -> float:
        return sum(self.rates[name] for name, owner in self.owners.items() if owner == lander)


@given(LANDERS, RATES)
def test_each_waiting_split_gets_one_lander_and_then_stays(
    landers: set[int], rates: dict[str, float | None]
) -> None:
    cluster = Cluster(landers, rates)
    cluster.step()
    first = dict(cluster.owners)
    assert set(first) == set(rates)
    for _ in range(50):  # less than the patience with an overloaded lander
        assert cluster.step().moved == ()
    assert cluster.owners == first


@given(LANDERS, st.integers(0, 60), st.none() | st.sampled_from([0.0, 1.0, 1234.5]))
def test_equal_splits_are_spread_evenly(landers: set[int], splits: int, rate: float | None) -> None:
    cluster = Cluster(landers, dict.fromkeys((str(number) for number in range(splits)), rate))
    cluster.step()
    counts = cluster.counts()
    assert counts[-1] - counts[0] <= 1
    cluster.settle(100)
    assert cluster.moves == 0


@pytest.mark.long
@given(LANDERS, RATES, st.integers(21, 23))
def test_a_lander_that_comes_gets_its_share_in_few_steps_and_then_all_stays(
    landers: set[int], rates: dict[str, float | None], comer: int
) -> None:
    cluster = Cluster(landers, rates)
    cluster.settle(3)
    before = dict(cluster.owners)
    cluster.landers.add(comer)
    for _ in range(200):
        plan = cluster.step()
        assert len(plan.moved) <= max(1, len(rates) // 10)
    settled, moves = dict(cluster.owners), cluster.moves
    assert set(settled) == set(rates)
    cluster.settle(200)
    assert (cluster.owners, cluster.moves) == (settled, moves)
    # No split moved twice.
    assert moves == sum(settled[name] != before[name] for name in before)


@pytest.mark.long
@given(st.integers(1, 8), st.integers(0, 60), st.randoms())
def test_rates_that_change_all_the_time_bring_a_lander_no_more_than_its_share(
    landers: int, splits: int, random: Random
) -> None:
    names = [str(number) for number in range(splits)]
    cluster = Cluster(range(landers), dict.fromkeys(names, 7.0))
    cluster.settle(3)
    cluster.landers.add(landers)
    for _ in range(50):  # less than the patience with an overloaded lander
        cluster.rates = {name: random.uniform(0, 100) for name in names}
        cluster.step()
    assert cluster.moves <= ceil(splits / (landers + 1))


@given(st.integers(1, 8), st.integers(0, 60), st.integers(1, 4))
def test_landers_that_come_get_equal_shares_of_equal_splits(
    landers: int, splits: int, comers: int
) -> None:
    cluster = Cluster(range(landers), dict.fromkeys((str(n) for n in range(splits)), 7.0))
    cluster.settle(3)
    cluster.landers |= set(range(landers, landers + comers))
    cluster.settle(200)
    share = splits / (landers + comers)
    assert cluster.counts()[0] >= int(share * 0.9)
    assert cluster.moves <= comers * ceil(share)


@given(st.sets(st.integers(0, 20), min_size=2, max_size=8), RATES, st.integers(0, 7))
def test_only_the_splits_of_a_lander_that_leaves_move(
    landers: set[int], rates: dict[str, float | None], which: int
) -> None:
    cluster = Cluster(landers, rates)
    cluster.settle(3)
    gone = sorted(landers)[which % len(landers)]
    kept = {name: owner for name, owner in cluster.owners.items() if owner != gone}
    cluster.leave(gone)
    cluster.settle(50)
    assert set(cluster.owners) == set(rates)
    assert {name: cluster.owners[name] for name in kept} == kept
    assert cluster.moves == 0


@given(st.permutations(sorted(f"split-{number}" for number in range(20))), st.randoms())
def test_the_order_of_what_it_is_given_changes_nothing(names: list[str], random: Random) -> None:
    rates = {name: float(len(name) * 3 + int(name[6:])) for name in names}
    landers = [3, 1, 2]
    random.shuffle(landers)
    plan = Assignment().plan(landers, {}, names, rates, 0.0)
    assert plan == Assignment().plan([1, 2, 3], {}, sorted(names), dict(sorted(rates.items())), 0.0)


def test_the_heaviest_goes_first_to_the_lander_with_the_least_load() -> None:
    rates = {"a": 100.0, "b": 60.0, "c": 50.0, "d": 10.0}
    plan = Assignment().plan([1, 0], {}, sorted(rates), rates, 0.0)
    assert plan.assigned == {0: ("a", "d"), 1: ("b", "c")}


def test_an_unknown_rate_is_the_mean_of_the_known_ones() -> None:
    plan = Assignment().plan([0, 1], {}, ["heavy", "light", "new"], {"heavy": 9, "light": 1}, 0)
    assert plan.assigned == {0: ("heavy",), 1: ("new", "light")}


def test_splits_without_records_are_spread_too() -> None:
    rates = {"busy": 1000.0} | {f"idle-{number}": 0.0 for number in range(90)}
    cluster = Cluster(range(10), rates)
    cluster.step()
    assert cluster.counts()[1] > 0
    assert cluster.counts()[-1] == 10


def overloaded() -> Cluster:
    """Four landers with two splits each, of which two of one have become ten times as fast."""
    cluster = Cluster(range(4), dict.fromkeys("abcdefgh", 10.0))
    cluster.settle(3)
    hot = [name for name, owner in cluster.owners.items() if owner == 2]
    cluster.rates |= dict.fromkeys(hot, 100.0)
    return cluster


def test_an_overloaded_lander_gives_splits_away_after_a_minute() -> None:
    cluster = overloaded()
    for _ in range(60):
        assert cluster.step().moved == ()
    cluster.settle(5)
    assert cluster.moves == 1
    # A minute later the two that were there before it leave its new lander, as that has too much.
    cluster.settle(500)
    assert cluster.moves == 3
    assert max(map(cluster.load, range(4))) == 100


def test_an_overload_that_ends_within_a_minute_moves_nothing() -> None:
    cluster = overloaded()
    hot, cold = dict(cluster.rates), dict.fromkeys("abcdefgh", 10.0)
    for _ in range(10):
        cluster.rates = hot
        cluster.settle(59)
        cluster.rates = cold
        cluster.settle(1)
    assert cluster.moves == 0


def test_one_split_that_is_an_overload_by_itself_does_not_move_to_and_fro() -> None:
    cluster = Cluster(range(3), {"hot": 1000.0, "a": 1.0, "b": 1.0, "c": 1.0})
    cluster.step()
    owner = cluster.owners["hot"]
    cluster.settle(1_000)
    assert cluster.owners["hot"] == owner
    assert cluster.moves == 0


def test_a_split_that_ends_on_its_way_is_forgotten_after_a_minute() -> None:
    assignment = Assignment()
    owners = dict.fromkeys("abcd", 0)
    assignment.plan([0], owners, [], {}, 0.0)
    (moved,) = assignment.plan([0, 1], owners, [], {}, 1.0).moved
    del owners[moved]
    assert assignment.plan([0, 1], owners, [], {}, 60.0).moved == ()
    assert assignment.plan([0, 1], owners, [], {}, 61.0).moved != ()


def test_a_split_whose_new_lander_has_gone_goes_to_another() -> None:
    assignment = Assignment()
    owners = dict.fromkeys("abcd", 0)
    assignment.plan([0], owners, [], {}, 0.0)
    (moved,) = assignment.plan([0, 1], owners, [], {}, 1.0).moved
    del owners[moved]
    assert assignment.plan([0], owners, [moved], {}, 2.0).assigned == {0: (moved,)}


def test_without_landers_nothing_is_assigned() -> None:
    assert Assignment().plan([], {}, ["a"], {}, 0.0).assigned == {}


def test_the_first_assignment_waits_for_all_landers() -> None:
    assignment = Assignment(landers=2)
    assert assignment.plan([], {}, ["a", "b"], {}, 0.0).assigned == {}
    assert assignment.plan([1], {}, ["a", "b"], {}, 5.0).assigned == {}
    plan = assignment.plan([0, 1], {}, ["a", "b"], {}, 6.0)
    assert plan.assigned == {0: ("a",), 1: ("b",)}
    # Afterwards one lander is enough.
    assert assignment.plan([0], {"a": 0}, ["b"], {}, 6.5).assigned == {0: ("b",)}


def test_the_first_assignment_waits_for_seconds_at_most() -> None:
    assignment = Assignment(landers=10)
    assert assignment.plan([2], {}, ["a", "b"], {}, 5.0).assigned == {}
    assert assignment.plan([1, 2], {}, ["a", "b"], {}, 7.9).assigned == {}
    assert assignment.plan([1, 2], {}, ["a", "b"], {}, 8.0).assigned == {1: ("a",), 2: ("b",)}


def test_5_000_splits_and_50_landers_take_little_time() -> None:
    random = Random(0)
    rates = {f"split-{number}": random.uniform(0, 1e6) for number in range(5_000)}
    assignment = Assignment()
    owners: dict[str, int] = {}
    seconds = []
    for landers, waiting in ((range(45), rates.keys()), (range(50), ()), (range(50), ())):
        began = time.thread_time()
        plan = assignment.plan(landers, owners, waiting, rates, 0.0)
        seconds.append(time.thread_time() - began)
        owners |= {name: lander for lander, names in plan.assigned.items() for name in names}
    assert len(plan.moved) == 0  # as many as may move at once already do
    assert max(seconds) < 0.5
