"""Cancel a coroutine at each of its steps in turn."""

from __future__ import annotations

import asyncio
import itertools
from enum import Enum
from typing import TYPE_CHECKING, Any, final

from fanout.testing.virtual_time.loop import simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator


@final
class Moment(Enum):
    """When within a step of a task its cancellation is requested."""

    RUNNING = "running"
    """While the step runs: CancelledError comes at the next await that really waits."""
    SUSPENDED = "suspended"
    """While the task waits at the end of the step: what it waits for is cancelled."""
    WOKEN = "woken"
    """When what the task waits for is done, but the task has not gone on yet: what it has waited
    for has happened, and it gets CancelledError instead."""


@final
class Cancellation:
    """Cancel what runs under it once, at one of its steps.

    A step is what a task does between two awaits that really wait. Steps are counted over all
    calls of `run`.

    Args:
        step: The number of the step, from 1.
        moment: When within the step.
    """

    def __init__(self, step: int, moment: Moment) -> None:
        self.moment = moment
        self.fired = False
        self._left = step

    def __repr__(self) -> str:
        return f"<Cancellation {self.moment.value} left={self._left} fired={self.fired}>"

    @property
    def beyond(self) -> bool:
        """Whether nothing that ran had so many steps."""
        return self._left > 0

    async def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in a task of its own, and cancel it when its step comes.

        Returns when the task is over, cancelled or not; what else it raises is raised.

        Raises:
            AssertionError: If the coroutine was cancelled but went on to return.
        """
        fired_before = self.fired
        task = asyncio.create_task(self._stepped(coroutine), name="swept")
        try:
            await task
        except asyncio.CancelledError:
            if not task.cancelled() or fired_before:
                raise
            return
        fired = self.fired and not fired_before
        assert not fired, f"{coroutine!r} has swallowed its cancellation"

    async def _stepped(self, coroutine: Coroutine[Any, Any, None]) -> None:
        await _Steps(coroutine, self)

    def begin(self, task: asyncio.Task[Any]) -> None:
        """Count a step that begins."""
        self._left -= 1
        if self._left == 0 and self.moment is Moment.RUNNING:
            self._fire(task)

    def suspend(self, task: asyncio.Task[Any], waited_for: asyncio.Future[Any] | None) -> None:
        """Take note that the step ends by waiting."""
        if self._left != 0:
            return
        if self.moment is Moment.SUSPENDED or (self.moment is Moment.WOKEN and not waited_for):
            # Queued before the task's own wake-up, which asyncio queues after this step.
            task.get_loop().call_soon(self._fire, task)
        elif self.moment is Moment.WOKEN:
            # Called before the task's own callback, which asyncio adds after this step.
            assert waited_for is not None
            waited_for.add_done_callback(lambda _: self._fire(task))

    def _fire(self, task: asyncio.Task[Any]) -> None:
        if not task.done():
            self.fired = True
            task.cancel()


def sweep(scenario: Callable[[Cancellation], Coroutine[Any, Any, None]]) -> int:
    """Simulate a scenario again and again, cancelled at each of its steps in each way.

    Args:
        scenario: Runs the work under the cancellation it is given, continues after it, and checks
            the outcome.

    Returns:
        The number of cancellations that were tried.
    """
    tried = 0
    for moment in Moment:
        for step in itertools.count(1):
            cancellation = Cancellation(step, moment)
            try:
                simulate(scenario, cancellation)
            except BaseException as error:
                error.add_note(f"cancelled at step {step} while {moment.value}")
                raise
            if cancellation.beyond:
                break
            tried += cancellation.fired
    return tried


@final
class _Steps:
    """Drive a coroutine like a task does, and report each step to the cancellation."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], cancellation: Cancellation) -> None:
        self._coroutine = coroutine
        self._cancellation = cancellation

    def __await__(self) -> Generator[Any, Any, None]:
        task = asyncio.current_task()
        assert task is not None
        error: BaseException | None = None
        while True:
            self._cancellation.begin(task)
            try:
                waited_for = (
                    self._coroutine.send(None) if error is None else self._coroutine.throw(error)
                )
            except StopIteration:
                return
            self._cancellation.suspend(task, waited_for)
            error = None
            try:
                yield waited_for
            except BaseException as raised:  # noqa: BLE001 - handed on to the coroutine
                error = raised
