"""Run the tasks of a stream: discovery, and one subscriber for each split, parents first."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, final

from fanout.errors import ServiceError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fanout.core.events import End, Split
    from fanout.core.lineage import Lineage
    from fanout.core.progress import Progress
    from fanout.core.source import Connection
    from fanout.core.subscribers import Subscribers


@final
class Supervisor:
    """Have every split of the progress read whose parents are out of the way, in this process."""

    def __init__(
        self,
        connection: Connection,
        progress: Progress,
        lineage: Lineage,
        subscribers: Subscribers,
    ) -> None:
        self._connection = connection
        self._progress = progress
        self._lineage = lineage
        self._subscribers = subscribers

    @asynccontextmanager
    async def supervise(self) -> AsyncIterator[None]:
        """Run the subscribers and the discovery while the block runs; stop them all after it."""
        async with self._subscribers.running(self._finish, self._at_end):
            self._subscribers.spawn(self._discover(), "discovery")
            self._start()
            yield

    def _start(self) -> None:
        """Subscribe to every split whose parents are out of the way, while the stream runs."""
        for split in self._lineage.startable():
            self._subscribers.start(split, self._progress[split.id].delivered)

    def _finish(self, end: End) -> None:
        self._lineage.finish(end)
        self._start()

    def _at_end(self) -> bool:
        bounded = self._connection.capabilities.bounded
        return bounded and all(self._is_read(state.split) for state in self._progress)

    def _is_read(self, split: Split) -> bool:
        """Return whether a split of a bounded stream has been read to its stop, or to its end."""
        return self._lineage.is_finished(split.id) or self._subscribers.caught_up(split.id)

    async def _discover(self) -> None:
        try:
            await self._lineage.discover(self._listed)
        except ServiceError as error:
            self._subscribers.fail(error)

    def _listed(self) -> None:
        for split_id in [id_ for id_ in self._subscribers.by_split if id_ not in self._progress]:
            self._subscribers.forget(split_id)
        self._start()
