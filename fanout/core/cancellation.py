"""Cancellation: of the running task, of work in threads, and of the tasks of a block."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Self, TypeVar, final

from fanout.core.error_text import text_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

_T = TypeVar("_T")

log = logging.getLogger(__name__)


def cancellations() -> int:
    """Return how often the running task has been cancelled, and not uncancelled since."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def cancelled_by_us() -> bool:
    """Return whether the running task has been cancelled, and not uncancelled since.

    A library may raise CancelledError for other reasons. A task group takes that for a task that
    was stopped on purpose, so a split would be lost without an error.
    """
    return cancellations() > 0


def prefer_cancellation(error: Exception, *, after: int = 0) -> None:
    """Raise CancelledError if the running task has been cancelled and `error` came out instead.

    Closing a broken connection may fail, also while the task that holds it is being cancelled. The
    failure then replaces the CancelledError. Code that treats it like any other failure goes on
    working, and the caller that cancelled the task waits for ever. The error is logged.

    What a task does as it stops names the `cancellations` that came before: it goes on after them.
    """
    if cancellations() > after:
        log.warning("an error while stopping: %s", text_of(error))
        raise asyncio.CancelledError from error


async def finished(work: asyncio.Future[_T]) -> _T:
    """Wait for work that cannot be stopped, such as a call in a thread; return its result.

    Cancellation: raised when the work is done, so that nothing of it outlives the caller.
    """
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if (failure := work.exception()) is not None:
            log.warning("an error while stopping: %s", text_of(failure))
        raise cancelled
    return work.result()


async def in_thread(work: Callable[[], _T]) -> _T:
    """Run blocking work in a thread, such as a call of the disk.

    Cancellation: it waits for the work first, so that two threads never use one segment.
    """
    return await finished(asyncio.get_running_loop().run_in_executor(None, work))


@final
class TaskScope:
    """Run tasks while a block runs, and cancel those that are left at its end.

    An error of the block passes as it is: a task group would wrap it in a group. The error of a
    task ends the block, and comes in a group.
    """

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        # In the order in which they began: a simulation repeats it.
        self._running: dict[asyncio.Task[Any], None] = {}

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()
        await self._group.__aexit__(None, None, None)

    def spawn(self, work: Coroutine[Any, Any, _T], name: str | None = None) -> asyncio.Task[_T]:
        """Start a task."""
        task = self._group.create_task(work, name=name)
        self._running[task] = None
        task.add_done_callback(self._running.pop)
        return task

    def cancel(self) -> None:
        """Cancel all tasks."""
        for task in self._running:
            task.cancel()


@final
class FailingTasks:
    """Run tasks while a block runs, which `failure` ends with the first error, as it is.

    A task group of Python below 3.13 leaves the task that waits for it marked as cancelled when one
    of its tasks fails, so that the error would be taken for one that came while it was stopped.
    """

    def __init__(self) -> None:
        self._scope = TaskScope()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> Self:
        await self._scope.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._scope.__aexit__(None, None, None)
        finally:
            self._failed.cancel()

    def spawn(
        self, name: str, work: Callable[..., Awaitable[None]], *args: Any
    ) -> asyncio.Task[None]:
        """Start a task."""
        return self._scope.spawn(self._run(work, *args), name)

    async def _run(self, work: Callable[..., Awaitable[None]], *args: Any) -> None:
        try:
            await work(*args)
        except Exception as error:  # noqa: BLE001 - `failure` raises it
            if self._failed.done():
                log.warning("another failure after the first: %s", text_of(error))
            else:
                self._failed.set_exception(error)

    async def failure(self) -> None:
        """Wait until a task fails, and raise its error."""
        await self._failed
