"""What a service allows about one split holds over all landers that read it, in virtual time."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest

from fanout.core.backoff import FullJitter, Pacing
from fanout.core.lifecycle_log import LifecycleLog
from fanout.core.lineage import Lineage
from fanout.core.progress import Progress
from fanout.core.statistics import SplitState
from fanout.kinesis import KinesisSource
from fanout.landers.assignment import Assignment
from fanout.landers.coordinator import Coordinator
from fanout.landers.messages import (
    Assign,
    Hello,
    Released,
    Report,
    SplitReport,
    encode,
    from_coordinator,
)
from fanout.testing.virtual_time.loop import simulate
from tests.landers.rig import MemoryChannel
from tests.support.manual_source import ManualSource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

EFO = KinesisSource(stream="orders", consumer="etl").pacing
POLLING = KinesisSource(stream="orders", mode="polling").pacing


def now() -> float:
    return asyncio.get_running_loop().time()


class FakeLander:
    """One session of a lander that only says what a test lets it say."""

    def __init__(self, cluster: Cluster, lander: int) -> None:
        self._cluster = cluster
        self._lander = lander
        self._channel, theirs = MemoryChannel.pair()
        self._serving = cluster.tasks.create_task(cluster.coordinator.serve(theirs))
        self._beating: asyncio.Task[None] | None = None
        self._said = Report((), 0)

    async def begin(self, attempt: int) -> None:
        """Connect."""
        await self._channel.send(encode(Hello(self._lander, attempt, "here", 1)))
        self._beating = self._cluster.tasks.create_task(self._beat())

    async def assigned(self) -> float:
        """Return when the split is assigned."""
        while not isinstance(from_coordinator(await self._channel.receive()), Assign):
            pass
        return now()

    async def report(self, state: SplitState, subscriptions: int) -> None:
        """Tell the state of the split."""
        split = SplitReport("a", state, 0, subscriptions=subscriptions)
        await self._channel.send(encode(Report((split,), 0)))

    async def release(self) -> None:
        """Tell that the split is read no longer."""
        await self._channel.send(encode(Released(("a",))))

    async def die(self) -> None:
        """Break the connection off, and let Spark notice."""
        assert self._beating is not None
        self._beating.cancel()
        await self._channel.close()
        await self._serving
        self._cluster.coordinator.task_ended(self._lander, None)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            await self._channel.send(encode(self._said))


class Cluster:
    """A coordinator of one split."""

    coordinator: Coordinator
    tasks: asyncio.TaskGroup

    @asynccontextmanager
    async def running(self, pacing: Pacing) -> AsyncIterator[Cluster]:
        """Run the coordinator, with the pacing of a service."""
        source = ManualSource("a")
        async with source.connect() as connection:
            connection.pacing = pacing
            listed = await connection.splits()
            progress = Progress(connection.identity, source.arrival)
            for split_id, position in (await connection.resolve(listed)).items():
                progress.add(next(s for s in listed if s.id == split_id), position)
            lifecycle = LifecycleLog(connection.identity, connection.capabilities)
            lineage = Lineage(
                connection,
                progress,
                jitter=FullJitter(pacing.backoff, Random(1)),
                listed=listed,
                lifecycle=lifecycle,
            )
            self.coordinator = Coordinator(
                connection, progress, lineage, Assignment(), lifecycle=lifecycle
            )
            async with asyncio.TaskGroup() as self.tasks:
                running = self.tasks.create_task(self.coordinator.run())
                yield self
                running.cancel()

    async def lander(self, number: int, attempt: int = 1) -> FakeLander:
        """Let a lander connect."""
        lander = FakeLander(self, number)
        await lander.begin(attempt)
        return lander


async def pause_after_death(pacing: Pacing, live_for: float | None) -> float:
    """Let a lander die; return after how long its next attempt may read its split.

    Args:
        live_for: For how long its subscription was live; None if it was just being made.
    """
    async with Cluster().running(pacing) as cluster:
        first = await cluster.lander(0)
        await first.assigned()
        if live_for is None:
            await first.report(SplitState.SUBSCRIBING, 0)
            await asyncio.sleep(20.0)
        else:
            await first.report(SplitState.LIVE, 1)
            await asyncio.sleep(live_for)
        await first.die()
        died = now()
        second = await cluster.lander(0, attempt=2)
        pause = await second.assigned() - died
        await second.die()
    return pause


@pytest.mark.parametrize(
    ("live_for", "pause"),
    [
        (20.0, 1.0),  # one subscribe call a second
        (2.5, 2.5),  # 5 s after a successful one
        (None, 5.0),  # it may just have succeeded
    ],
)
def test_a_shard_is_not_subscribed_to_sooner_after_a_death_than_the_service_allows(
    live_for: float | None, pause: float
) -> None:
    assert pause <= simulate(pause_after_death, EFO, live_for) <= pause + 1.0


@pytest.mark.parametrize("live_for", [2.5, 20.0])
def test_a_polled_shard_rests_after_a_death_as_after_the_largest_answer(live_for: float) -> None:
    assert 5.0 <= simulate(pause_after_death, POLLING, live_for) <= 6.0


def test_without_such_limits_a_split_is_read_on_at_once() -> None:
    pacing = replace(EFO, floor=0.0, spacing=0.0, handover=0.0)
    assert simulate(pause_after_death, pacing, 20.0) == 0.0


@pytest.mark.parametrize("pacing", [EFO, POLLING], ids=["efo", "polling"])
def test_a_split_that_was_released_rests_too(pacing: Pacing) -> None:
    async def main() -> float:
        async with Cluster().running(pacing) as cluster:
            lander = await cluster.lander(0)
            await lander.assigned()
            await lander.report(SplitState.LIVE, 1)
            await asyncio.sleep(60.0)
            await lander.release()
            released = now()
            pause = await lander.assigned() - released
            await lander.die()
        return pause

    assert 5.0 <= simulate(main) <= 6.0
