"""Choose the order of task steps that are ready at the same moment.

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
    from collections.abc import Callable, Sequence
    from random import Random

    Step: TypeAlias = asyncio.Task[Any]

# Priorities change at steps that are chosen among this many; our runs have some hundreds to some
# ten thousand.
_PROGRAM_STEPS: Final = 10_000


class Schedule(Protocol):
    """Choose the task step that runs next."""

    def choose(self, ready: Sequence[asyncio.Handle]) -> int:
        """Return the place of a handle that is a task's step.

        Args:
            ready: What may run, at least two handles, in asyncio's order; the first is a step.
        """


@final
class Fifo:
    """Run task steps in asyncio's own order."""

    def choose(self, ready: Sequence[asyncio.Handle]) -> int:
        """Return the first."""
        del ready
        return 0


@final
class Shuffled:
    """Run any task that is ready.

    Args:
        random: Where chance comes from.
    """

    def __init__(self, random: Random) -> None:
        self._random = random

    def choose(self, ready: Sequence[asyncio.Handle]) -> int:
        """Return any: the first step from some place on, backwards."""
        place = int(self._random.random() * len(ready))
        while task_of(ready[place]) is None:
            place -= 1
        return place


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

    def choose(self, ready: Sequence[asyncio.Handle]) -> int:
        """Return the one of the highest priority."""
        steps = {place: task for place, each in enumerate(ready) if (task := task_of(each))}
        best = max(steps, key=lambda place: self._priority(steps[place]))
        if self._steps in self._demotions:
            self._priorities[steps[best]] = self._demotions[self._steps]
        self._steps += 1
        return best

    def _priority(self, task: Step) -> float:
        if task not in self._priorities:
            self._priorities[task] = self._random.random()
        return self._priorities[task]


@final
class ReadyQueue(deque[asyncio.Handle]):
    """Hold the handles that an event loop runs next, in the order of a schedule."""

    def __init__(self, schedule: Schedule, on_step: Callable[[Step], None]) -> None:
        super().__init__()
        self._schedule = schedule
        self._on_step = on_step

    def popleft(self) -> asyncio.Handle:
        """Take the next handle."""
        task = task_of(self[0])
        if task is None:
            return super().popleft()
        if len(self) > 1 and (chosen := self._schedule.choose(self)):
            self[0], self[chosen] = self[chosen], self[0]
            task = task_of(self[0])
            assert task is not None, "a schedule chooses among tasks"
        self._on_step(task)
        return super().popleft()


def task_of(handle: asyncio.Handle) -> Step | None:
    """Return the task whose step a handle is."""
    # asyncio has no public way to tell; the tests of this module fail if it changes.
    owner = getattr(getattr(handle, "_callback", None), "__self__", None)
    return owner if isinstance(owner, asyncio.Task) else None
