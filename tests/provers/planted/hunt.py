"""Search for the planted bugs with the simulator, and know the seed that shows each.

A simulator that has never been seen failing proves nothing. `shown.json` has the seed that shows
each mistake. To search for them anew, write them down there, and print how many seeds each mistake
took, and as what it was seen: `python -m tests.provers.planted.hunt [WORD...]`.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

from tests.provers.planted.kafka_bugs import KAFKA_BUGS
from tests.provers.planted.kinesis_bugs import HARMLESS, KINESIS_BUGS
from tests.provers.planted.lander_bugs import LANDER_BUGS
from tests.provers.planted.landing_bugs import LANDING_BUGS
from tests.provers.planted.shuffle_bugs import SHUFFLE_BUGS
from tests.provers.simulation.errors import SimulationError
from tests.provers.simulation.kafka.plan import KafkaPlan
from tests.provers.simulation.kafka.plan_draws import draw_kafka_plan
from tests.provers.simulation.kinesis.plan_draws import draw_kinesis_plan
from tests.provers.simulation.landers.plan import LandersPlan, draw_landers_plan
from tests.provers.simulation.run import run_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.provers.planted.edits import Change
    from tests.provers.simulation.plans import AnyPlan

__all__ = (
    "CHANGES",
    "SEEDS",
    "SHOWN",
    "BugFound",
    "check_words",
    "find",
    "hunt",
    "hunters",
    "planted",
)

SEEDS: Final = 500
_WRITTEN_DOWN: Final = Path(__file__).with_name("shown.json")
SHOWN: Final[dict[str, int]] = json.loads(_WRITTEN_DOWN.read_text())
CHANGES: Final = KINESIS_BUGS | HARMLESS | KAFKA_BUGS | SHUFFLE_BUGS | LANDER_BUGS | LANDING_BUGS
# Errors of Python for text that is no program: then the mistake is in these tests.
_OF_THE_EDIT: Final = (AttributeError, NameError, TypeError)


@final
@dataclass(frozen=True, slots=True)
class BugFound:
    """The seed and error that show a change.

    Args:
        tried: How many seeds were run, the one that showed it included.
        seed: That seed.
        error: The error of the simulator, in one line.
    """

    tried: int
    seed: int
    error: str


@contextmanager
def planted(change: Change) -> Iterator[None]:
    """Change the product within the block."""
    with ExitStack() as edits:
        for edit in change:
            edits.enter_context(edit.made())
        yield


def find(name: str) -> BugFound | None:
    """Try the seed that is written down for a change, and hunt where that one does not show it."""
    if name in SHOWN:
        error = _shown(name, SHOWN[name])
        if error is not None:
            return BugFound(1, SHOWN[name], error)
    return hunt(name)


def hunt(name: str, seeds: int = SEEDS) -> BugFound | None:
    """Run seeds until one shows a change; return None where none does.

    Args:
        name: A name of CHANGES.
        seeds: How many seeds to run, the cheapest ones first.
    """
    cheapest = _cheapest_first(_draw_for(name), _WANTED.get(name, _any))
    for tried, seed in enumerate(cheapest[:seeds], 1):
        error = _shown(name, seed)
        if error is not None:
            return BugFound(tried, seed, error)
    return None


def _shown(name: str, seed: int) -> str | None:
    """Return what the simulator says of a change; None if nothing, or if it says it without."""
    draw = _draw_for(name)
    with planted(CHANGES[name]):
        error = _error_of(draw(seed))
    return error if error is not None and _passes(draw, seed) else None


def _draw_for(name: str) -> Callable[[int], AnyPlan]:
    if name in LANDER_BUGS | LANDING_BUGS:
        return draw_landers_plan
    return draw_kinesis_plan if name in KINESIS_BUGS | HARMLESS else draw_kafka_plan


@contextmanager
def hunters(processes: int | None = None) -> Iterator[ProcessPoolExecutor]:
    """Start some processes, or one for each core."""
    # Nothing is inherited: a fork would copy the threads that other tests have left.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, _silence_logs) as pool:
        try:
            yield pool
        finally:
            pool.shutdown(cancel_futures=True)


def _silence_logs() -> None:
    logging.disable(logging.CRITICAL)


def _any(_: AnyPlan) -> bool:
    return True


def _shuffles(plan: AnyPlan) -> bool:
    return isinstance(plan, KafkaPlan) and bool(plan.producers)


def _lands(plan: AnyPlan) -> bool:
    return isinstance(plan, LandersPlan) and plan.lands


def _lands_nothing(plan: AnyPlan) -> bool:
    return not _lands(plan)


_WANTED: Final = {
    **dict.fromkeys(SHUFFLE_BUGS, _shuffles),
    **dict.fromkeys(LANDER_BUGS, _lands_nothing),
    **dict.fromkeys(LANDING_BUGS, _lands),
}


@cache
def _cheapest_first(draw: Callable[[int], AnyPlan], wanted: Callable[[AnyPlan], bool]) -> list[int]:
    """Return the first seeds of plans that are wanted, those first whose plans run fastest."""
    seeds = (seed for seed in count() if wanted(draw(seed)))
    return sorted(islice(seeds, SEEDS), key=lambda seed: _cost(draw(seed)))


def _cost(plan: AnyPlan) -> float:
    """Estimate how long a plan takes: mostly by its heartbeats, then its records and faults."""
    if isinstance(plan, KafkaPlan):
        waits = plan.brokers * plan.seconds / plan.max_wait
        faults = len(plan.faults) + len(plan.cluster_faults)
        return plan.partitions * plan.batches + waits + faults
    if isinstance(plan, LandersPlan):
        return plan.seconds * plan.landers + plan.splits * plan.records + 10 * len(plan.faults)
    splits = plan.shards + plan.reshards
    heartbeats = plan.seconds / plan.heartbeat
    return splits * (heartbeats + plan.records) + len(plan.faults)


@cache
def _passes(draw: Callable[[int], AnyPlan], seed: int) -> bool:
    return _error_of(draw(seed)) is None


def _error_of(plan: AnyPlan) -> str | None:
    try:
        run_plan(plan)
    except SimulationError as error:
        check_words(error)
        return str(error).partition("\n")[0]
    return None


def check_words(error: BaseException) -> None:
    """Check that an error is the product's, as a person might have made it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, _OF_THE_EDIT):
            raise cause
        cause = cause.__cause__


def _write_down(words: list[str]) -> None:
    """Hunt every change whose name has any of some words; print and keep how it was found."""
    names = [name for name in CHANGES if not words or any(w in name for w in words)]
    shown = {name: seed for name, seed in SHOWN.items() if name in CHANGES and name not in names}
    with hunters() as pool:
        hunts = {name: pool.submit(hunt, name) for name in names}
        for name, future in hunts.items():
            match future.result():
                case None:
                    sys.stdout.write(f"   - {name}\n")
                case BugFound(tried, seed, error):
                    shown[name] = seed
                    sys.stdout.write(f"{tried:4} {name}: seed {seed}: {error}\n")
            sys.stdout.flush()
    in_order = {name: shown[name] for name in CHANGES if name in shown}
    _WRITTEN_DOWN.write_text(json.dumps(in_order, indent=2) + "\n")


if __name__ == "__main__":
    _write_down(sys.argv[1:])
