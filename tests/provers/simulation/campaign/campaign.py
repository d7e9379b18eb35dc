"""Run many seeds on all cores."""

from __future__ import annotations

import os
import time
from itertools import islice
from multiprocessing import connection
from typing import TYPE_CHECKING, Final, final

from tests.provers.simulation.campaign.failures import try_kinesis_seed
from tests.provers.simulation.campaign.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from multiprocessing.connection import Connection

    from tests.provers.simulation.campaign.worker import Result

__all__ = ("run_campaign",)

# Of seeds that a process is given at once: enough that it rarely waits for more, and few enough
# that all processes end at about the same time.
_CHUNK: Final = 8


def run_campaign(
    seeds: Iterable[int],
    *,
    processes: int | None = None,
    patience: float = 180.0,
    run: Callable[[int], Result] = try_kinesis_seed,
) -> Generator[Result]:
    """Run seeds, and yield what each has come to as soon as it is known.

    A caller that stops before the end closes the generator (`contextlib.closing`), which ends the
    processes.

    Args:
        seeds: The seeds.
        processes: In how many processes; None for one on each core, 0 for none but this one, where
            a debugger and the patches of a test reach, and nothing ends a seed that hangs.
        patience: How long a seed may take, in real seconds.
        run: Runs one seed; a function that other processes can import.

    Returns:
        The outcome or the failure of each seed, in the order in which they end. A seed that hangs,
        or that its process dies of, is a failure like others.

    Raises:
        SetupError: If a process cannot even begin.
    """
    if processes == 0:
        return (run(seed) for seed in seeds)
    return _run_in_processes(_Waiting(seeds), processes or os.cpu_count() or 1, patience, run)


def _run_in_processes(
    waiting: _Waiting, most: int, patience: float, run: Callable[[int], Result]
) -> Generator[Result]:
    workers: dict[Connection, Worker] = {}
    try:
        while True:
            while len(workers) < most and waiting:
                worker = Worker(run, patience)
                workers[worker.connection] = worker
                worker.give(waiting.take())
            if not workers:
                return
            for worker in _due(workers):
                answer = worker.answer()
                if answer is not None:
                    yield answer
                if worker.over:
                    waiting.put_back(worker.seeds)
                elif worker.seeds:
                    continue
                elif waiting:
                    worker.give(waiting.take())
                    continue
                worker.end()
                del workers[worker.connection]
    finally:
        for worker in workers.values():
            worker.end()


def _due(workers: dict[Connection, Worker]) -> list[Worker]:
    """Wait until some workers have answered, or should have; return them."""
    first = min(worker.deadline for worker in workers.values())
    ready = connection.wait(workers, max(0.0, first - time.monotonic()))
    now = time.monotonic()
    return [each for key, each in workers.items() if key in ready or each.deadline < now]


@final
class _Waiting:
    """Seeds that no process has been given yet."""

    def __init__(self, seeds: Iterable[int]) -> None:
        self._seeds = iter(seeds)
        self._next: list[int] = list(islice(self._seeds, _CHUNK))

    def __bool__(self) -> bool:
        return bool(self._next)

    def take(self) -> list[int]:
        chunk = self._next
        self._next = list(islice(self._seeds, _CHUNK))
        return chunk

    def put_back(self, seeds: Iterable[int]) -> None:
        self._next = [*seeds, *self._next]
