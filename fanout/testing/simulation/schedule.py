"""In which order task steps run that are ready at the same moment.

asyncio runs them first in, first out, but no code may count on it: which of two sockets is read
first is chance. A schedule takes that chance from a seed. Only steps of tasks change places;
plain callbacks keep asyncio's documented order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, final
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from random import Random

    Step: TypeAlias = asyncio.Task[Any]

__all__ = ("Fifo", "Priorities", "ReadyQueue", "Schedule", "Shuffled")

# Priorities change at steps that are chosen among this many; our runs have some hundreds to some
# ten thousand.
_PROGRAM_STEPS: Final = 10_000


class Schedule(Protocol):
    """Choose the task step that runs next."""

    def choose(self, ready: Mapping[int, Step]) -> int:
        """Return a key of `ready`.

        Args:
            ready: The tasks that may run, at least two, by their place in asyncio's order.
        """


@final
class Fifo:
    """Run task steps in asyncio's own order."""

    def choose(self, ready: Mapping[int, Step]) -> int:
        """Return the first."""
        return next(iter(ready))


@final
class Shuffled:
    """Run any task that is ready, each as likely as the others.

    Args:
        random: Where chance comes from.
    """

    def __init__(self, random: Random) -> None:
        self._random = random

    def choose(self, ready: Mapping[int, Step]) -> int:
        """Return any."""
        return self._random.choice(list(ready))


@final
class Priorities:
    """Run the task of the highest priority, and demote the running one at a few moments.

    A defect that needs `depth` steps of n tasks in one order, among k steps, shows with a
    probability of at least 1 / (n * k ** (depth - 1)): probabilistic concurrency testing, by
    Burckhardt, Kothari, Musuvathi and Nagarakatte, ASPLOS 2010.

    Args:
        random: Where chance comes from.
        depth: One more than the number of demotions.
    """

    def __init__(self, random: Random, depth: int = 3) -> None:
        self._random = random
        self._priorities: WeakKeyDictionary[Step, float] = WeakKeyDictionary()
        self._demotions = {random.randrange(_PROGRAM_STEPS): -rank for rank in range(1, depth)}
        self._steps = 0

    def choose(self, ready: Mapping[int, Step]) -> int:
        """Return the one of the highest priority."""
        best = max(ready, key=lambda place: self._priority(ready[place]))
        if self._steps in self._demotions:
            self._priorities[ready[best]] = self._demotions[self._steps]
        self._steps += 1
        return best

    def _priority(self, task: Step) -> float:
        if task not in self._priorities:
            self._priorities[task] = self._random.random()
        return self._priorities[task]


@final
class ReadyQueue(deque[asyncio.Handle]):
    """What an event loop runs next, in the order of a schedule.

    Args:
        schedule: The order.
        on_step: Told each task whose step is about to run.
    """

    def __init__(self, schedule: Schedule, on_step: Callable[[Step], None]) -> None:
        super().__init__()
        self._schedule = schedule
        self._on_step = on_step

    def popleft(self) -> asyncio.Handle:
        """Take the next handle."""
        handle = super().popleft()
        task = _task_of(handle)
        if task is None:
            return handle
        others = {
            place: other for place, waiting in enumerate(self, 1) if (other := _task_of(waiting))
        }
        if others:
            chosen = self._schedule.choose({0: task, **others})
            if chosen:
                handle, self[chosen - 1] = self[chosen - 1], handle
                task = others[chosen]
        self._on_step(task)
        return handle


def _task_of(handle: asyncio.Handle) -> Step | None:
    """Return the task whose step a handle is."""
    # asyncio has no public way to tell; the tests of this module fail if it changes.
    owner = getattr(getattr(handle, "_callback", None), "__self__", None)
    return owner if isinstance(owner, asyncio.Task) else None
