"""Runs of seeds that end in every way; other processes import them."""

from __future__ import annotations

import os
import threading

from tests.provers.simulation.moments.moments import KinesisSometimes
from tests.provers.simulation.run import RunOutcome

__all__ = ("DEADLY", "ENDLESS", "answer", "misbehave")

DEADLY = 5
ENDLESS = 12


def answer(seed: int) -> RunOutcome:
    """Return an outcome in which every number is the seed's."""
    return RunOutcome(
        seed=seed,
        digest="",
        steps=seed,
        seconds=seed / 10,
        records=seed,
        replayed=seed,
        restarts=seed,
        calls={"ListShards": seed, f"call {seed % 2}": 1},
        faults={"stall": seed, f"fault {seed % 2}": 1},
        moments={KinesisSometimes.END_FIRST: seed, tuple(KinesisSometimes)[seed % 2]: 1},
        recovery=seed / 3,
        close=seed / 7,
    )


def misbehave(seed: int) -> RunOutcome:
    """Answer, except for two seeds: one ends its process, the other never returns."""
    if seed == DEADLY:
        os._exit(3)
    if seed == ENDLESS:
        threading.Event().wait()
    return answer(seed)
