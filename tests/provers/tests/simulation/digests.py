"""Print the digests of some runs of each kind, to compare the runs of other processes."""

from __future__ import annotations

import asyncio
import logging
import sys
from random import Random
from typing import TYPE_CHECKING, Final

from fanout.testing.virtual_time.loop import SimLoop, simulate
from fanout.testing.virtual_time.schedule import Shuffled
from fanout.testing.virtual_time.trace import Trace
from tests.provers.simulation.landers.run import run_landers_seed
from tests.provers.simulation.run import run_kafka_seed, run_kinesis_seed
from tests.provers.simulation.spark import run_query_seed

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("DIGESTS",)


async def _wait(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    await asyncio.sleep(seconds)
    loop.note(f"{seconds} s are over")
    await asyncio.sleep(99)


async def _cancel_sets_of_tasks() -> None:
    tasks = {asyncio.create_task(_wait(n % 5), name=f"wait {n}") for n in range(50)}
    try:
        async with asyncio.timeout(9), asyncio.TaskGroup() as group:
            for n in range(50):
                group.create_task(_wait(n % 3))
    except TimeoutError:
        pass
    for task in {"a": tasks}["a"]:
        task.cancel()
    await asyncio.wait(tasks)


def _of_tasks() -> list[str]:
    trace = Trace()
    loop = SimLoop(schedule=Shuffled(Random(7)), trace=trace)
    simulate(_cancel_sets_of_tasks, loop_factory=lambda: loop)
    assert trace.steps > 200
    return [trace.digest]


DIGESTS: Final[dict[str, Callable[[], list[str]]]] = {
    "tasks in sets": _of_tasks,
    "a reader of Kinesis": lambda: [run_kinesis_seed(seed).digest for seed in range(3)],
    "a reader of Kafka": lambda: [run_kafka_seed(seed).digest for seed in range(5)],
    "a driver": lambda: [run_query_seed(seed).digest for seed in range(8)],
    "landers": lambda: [run_landers_seed(seed).digest for seed in range(8)],
}


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    for name, digests in DIGESTS.items():
        sys.stdout.write(f"{name}: {' '.join(digests())}\n")
