"""A source that landers read: it is opened, coordinated, and swept of what lost landers leave."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, final

from fanout.core.cancellation import in_thread
from fanout.core.error_text import text_of
from fanout.core.opening import open_lineage
from fanout.errors import FanOutError
from fanout.landers.coordinator import Coordinator

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from fanout.core.checkpoint import Checkpoint
    from fanout.core.opening import Opened
    from fanout.core.source import Source
    from fanout.core.statistics import OnResubscribe
    from fanout.landers.assignment import Assignment
    from fanout.landers.channel import Channel
    from fanout.landers.control_server import ControlServer
    from fanout.landing.log.reading import LandingPlace

log = logging.getLogger(__name__)

_SWEEP_SECONDS: Final = 60.0


@final
class LandersReading:
    """What landers read: their coordinator, and the address to which they connect."""

    def __init__(
        self,
        opened: Opened,
        coordinator: Coordinator,
        place: LandingPlace,
        address: tuple[str, int],
    ) -> None:
        self.opened = opened
        self.coordinator = coordinator
        self.address = address
        self._place = place

    async def run(self) -> None:
        """Coordinate until cancelled, and delete what lost landers leave."""
        sweeping = asyncio.create_task(self._keep_sweeping())
        try:
            await self.coordinator.run()
        finally:
            sweeping.cancel()
            await asyncio.wait([sweeping])

    async def acknowledge(self, positions: Checkpoint) -> None:
        """Acknowledge everything up to `positions` to the service."""
        reached = {id_: state.position for id_, state in positions.splits.items()}
        moved = self.opened.progress.acknowledge(reached)
        commits = self.opened.connection.capabilities.commits
        if moved and commits is not None:
            await commits.acknowledge(moved)

    async def _keep_sweeping(self) -> None:
        """Delete what lost landers left, again and again: one may go on for a while."""
        orphans, place = self.coordinator.orphans, self._place
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            try:
                await in_thread(lambda: orphans.sweep(place.storage, place.run))
            except (FanOutError, OSError) as error:
                log.warning("what lost landers left is not deleted yet: %s", text_of(error))


@asynccontextmanager
async def open_for_landers(
    source: Source,
    place: LandingPlace,
    control: Callable[[Callable[[Channel], Awaitable[None]]], ControlServer],
    *,
    assignment: Assignment,
    bounded: bool,
    eager: bool,
    min_records: int = 1,
    on_resubscribe: OnResubscribe | None = None,
) -> AsyncIterator[LandersReading]:
    """Open a source, and serve landers that connect, while the block runs.

    `control` makes the server of what serves a lander; the other options are those of
    `Coordinator`. Cancellation: what serves landers has ended before the block is left.
    """
    opening = open_lineage(source, place.resume, available_now=bounded)
    async with opening as opened:
        coordinator = Coordinator(
            opened.connection,
            opened.progress,
            opened.lineage,
            assignment,
            bounded=bounded,
            eager=eager,
            min_records=min_records,
            lifecycle=opened.lifecycle,
            on_resubscribe=on_resubscribe,
        )
        try:
            async with control(coordinator.serve) as server:
                yield LandersReading(opened, coordinator, place, server.address)
        finally:
            opened.lifecycle.stopped(opened.progress, coordinator.failure)
