"""Look at what a destination holds while the job runs."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from fanout.testing.trials.oracle import OutputOracle
from tests.provers.crash.moments import SUFFIX

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from tests.provers.crash.moments import Pipeline
    from tests.provers.crash.sinks.destination import Destination

__all__ = ("judge", "keep_looking")

_PAUSE = 0.3


async def keep_looking(
    destination: Destination, oracles: MutableMapping[Pipeline, OutputOracle]
) -> None:
    """Read all that a destination holds, again and again, until cancelled.

    Args:
        destination: What the job writes to.
        oracles: Where each look puts a new oracle, for the one pipeline.
    """
    [pipeline] = oracles
    while True:
        # A file may go while the job writes a batch again; the last look has to find all of them.
        with suppress(FileNotFoundError):
            oracles[pipeline] = await asyncio.to_thread(judge, destination, pipeline)
        await asyncio.sleep(_PAUSE)


def judge(destination: Destination, pipeline: Pipeline) -> OutputOracle:
    """Let an oracle read all that a destination holds; it blocks.

    Args:
        destination: What the job writes to.
        pipeline: The pipeline.
    """
    oracle = OutputOracle(pipeline, SUFFIX, ordered=destination.ordered)
    for key, value in destination.rows():
        oracle.read(key, value)
    return oracle
