"""Tasks that run for as long as a block."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self, TypeVar, final

if TYPE_CHECKING:
    from collections.abc import Coroutine

_T = TypeVar("_T")


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
