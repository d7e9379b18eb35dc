"""A simulation that has never found anything proves nothing: these mistakes it must find."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.provers.planted.hunt import check_words
from tests.provers.planted.object_bugs import OBJECT_BUGS
from tests.provers.planted.spark_bugs import SPARK_BUGS, planted
from tests.provers.simulation.spark import (
    DriverRun,
    PowerLoss,
    QueryPlan,
    QueryViolationError,
    draw_object_race_plan,
    draw_query_plan,
    draw_race_plan,
    on_objects,
    run_query_plan,
)
from tests.provers.tests.simulation.spark.corpus import FOUND

if TYPE_CHECKING:
    from collections.abc import Callable

SEEDS = 200
# Where the search for a rare mistake begins: from 0 on, it takes 157 runs.
FIRST = {"segments of a newer run are orphans": 156}

RACES = {
    "creation replaces",
    "the owner of the checkpoint is not checked",
    "orphans go before the first entry",
    "segments of a newer run are orphans",
    "the lock is not waited for",
    "the owner is checked by a list",
    "a run takes the number after the newest of a list",
    "another writer's object is taken for an own one",
    "a put has no condition",
}


def draw_forgetful(seed: int) -> QueryPlan:
    """Draw a run in which Spark, after a loss of power, asks for older batches than the newest."""
    lost = PowerLoss(Random(seed).randint(24, 50), forgotten=3)
    return QueryPlan(seed=seed, runs=(DriverRun(stop_after=2.0), DriverRun(faults=(lost,))))


def draw_query_on_objects(seed: int) -> QueryPlan:
    return on_objects(draw_query_plan(seed))


def drawing(name: str) -> Callable[[int], QueryPlan]:
    if name == "an older batch id is taken for a new one":
        return draw_forgetful
    if name in OBJECT_BUGS:
        return draw_object_race_plan if name in RACES else draw_query_on_objects
    return draw_race_plan if name in RACES else draw_query_plan


@pytest.mark.parametrize("name", SPARK_BUGS)
def test_a_planted_mistake_is_found(name: str) -> None:
    draw, first = drawing(name), FIRST.get(name, 0)
    with planted(name):
        for plan in (*FOUND.values(), *map(draw, range(first, first + SEEDS))):
            try:
                run_query_plan(plan)
            except QueryViolationError as error:
                check_words(error)
                return
    raise AssertionError(f"{SEEDS} runs did not show that {name}")
