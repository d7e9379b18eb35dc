from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from fanout.core.backoff import FullJitter
from fanout.core.checkpoint import Checkpoint
from fanout.core.events import Batch, End, Split
from fanout.core.lifecycle_log import LifecycleLog
from fanout.core.lineage import Lineage
from fanout.core.opening import Supervisor
from fanout.core.positions import Cursor, Horizon, Range
from fanout.core.progress import ABSENCES, Progress
from fanout.core.source import Capabilities
from fanout.core.subscribers import Subscribers
from fanout.testing.virtual_time.loop import SimLoop
from tests.support.scripted_source import (
    LISTED_EVERY,
    PACING,
    Log,
    ScriptedConnection,
    ScriptedSource,
    record_batch,
    seeded,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from fanout.core.positions import Position
    from fanout.core.source import Reserve

EXPIRED = "expired long ago"
PATIENT = replace(PACING, silence_timeout=1e6)
# A split is missing from fewer listings than after which it counts as expired.
MOST_LAG = (ABSENCES - 1) * LISTED_EVERY - 1
LAGS = st.sampled_from([MOST_LAG, 0.0])
NOTHING = record_batch(Log(split=Split("any")), [])


@dataclass(slots=True)
class Shard:
    """A split as the service has it: `expired` is when listings begin to leave it out."""

    split: Split
    born: float
    children: tuple[Split, ...] = ()
    named: bool = True
    expired: float = float("inf")


class Service(ScriptedConnection):
    """A service whose splits are replaced by others, and whose listings are of the past."""

    def __init__(self, loop: SimLoop) -> None:
        super().__init__(ScriptedSource(logs=(), pacing=PATIENT))
        self.loop = loop
        self.shards: dict[str, Shard] = {}
        self.lag = 0.0
        self.live: dict[str, asyncio.Queue[Batch | End]] = {}
        self.subscribed: list[str] = []

    def add(self, *parents: str) -> Split:
        split = Split(str(len(self.shards)), parents)
        self.shards[split.id] = Shard(split, self.loop.time())
        return split

    def replace(self, parents: Sequence[str], count: int, *, named: bool) -> None:
        children = tuple(self.add(*parents) for _ in range(count))
        for parent in parents:
            self.shards[parent].children = children
            self.shards[parent].named = named

    def listed(self) -> list[Split]:
        moment = self.loop.time() - self.lag
        return [s.split for s in self.shards.values() if s.born <= moment < s.expired]

    async def splits(self) -> Sequence[Split]:
        return self.listed()

    @asynccontextmanager
    async def subscribe(
        self, split: Split, position: Position, reserve: Reserve
    ) -> AsyncIterator[AsyncIterator[Batch | End]]:
        del position, reserve
        assert split.id not in self.live, "two live subscriptions"
        self.subscribed.append(split.id)
        self.live[split.id] = asyncio.Queue()
        try:
            yield _sent(self.live[split.id])
        finally:
            del self.live[split.id]

    def send_progress(self, split_id: str) -> None:
        until = Cursor(int(self.loop.time()) + 1)
        event = Batch(self.shards[split_id].split, NOTHING, Range(Horizon(), until))
        self.live[split_id].put_nowait(event)

    def send_end(self, split_id: str) -> None:
        shard = self.shards[split_id]
        self.live[split_id].put_nowait(End(shard.split, shard.children if shard.named else ()))


async def _sent(events: asyncio.Queue[Batch | End]) -> AsyncIterator[Batch | End]:
    while True:
        yield await events.get()


class Run:
    """One run of the supervisor, from an empty state or from stored positions."""

    def __init__(self, service: Service, stored: str | None) -> None:
        self.progress = Progress("scripted:one", lambda *_: None)
        listed = service.listed()
        if stored is None:
            for split in listed:
                self.progress.add(split, Horizon())
        else:
            for state in Checkpoint.from_json(stored).splits.values():
                self.progress.add(state.split, state.position, ended=state.ended)
        jitter = FullJitter(PACING.backoff, seeded())
        lifecycle = LifecycleLog(self.progress.source, Capabilities())
        self.subscribers = Subscribers(
            service, jitter=jitter, on_resubscribe=lambda *_: None, lifecycle=lifecycle
        )
        lineage = Lineage(
            service,
            self.progress,
            jitter=jitter,
            listed=listed,
            lifecycle=lifecycle,
        )
        self.supervisor = Supervisor(service, self.progress, lineage, self.subscribers)
        self._task = service.loop.create_task(self._supervise())

    async def _supervise(self) -> None:
        async with self.supervisor.supervise():
            await asyncio.get_running_loop().create_future()

    async def take(self) -> Batch | End | None:
        if (event := self.subscribers.take()) is not None:
            self.progress.deliver([event])
        return event

    async def kill(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


class ReshardingMachine(RuleBasedStateMachine):
    """Splits are replaced and listed late, the reader takes its time, and a run dies at any moment.

    The model: the splits whose end was taken, now and when positions were last stored. A split may
    be subscribed to once each of its parents is among them, or has expired before the first run.
    """

    def __init__(self) -> None:
        super().__init__()
        self.loop = SimLoop()
        self.service = Service(self.loop)
        self.read: set[str] = set()
        self.stored: tuple[str, set[str]] | None = None
        self.ending: set[str] = set()

    @initialize(originals=st.integers(1, 3), orphan=st.booleans(), lag=LAGS)
    def begin(self, originals: int, orphan: bool, lag: float) -> None:  # noqa: FBT001 - drawn
        for _ in range(originals):
            self.service.add()
        if orphan:
            self.service.add(EXPIRED)
        self.start()
        self.service.lag = lag

    def start(self) -> None:
        self.run = Run(self.service, self.stored and self.stored[0])
        self.ending.clear()
        self.settle()

    def settle(self, seconds: float = 0.001) -> None:
        """Let time pass, which it does once nothing can run any more."""
        self.loop.run_until_complete(asyncio.sleep(seconds))
        subscribed, self.service.subscribed = self.service.subscribed, []
        for id_ in subscribed:
            assert id_ not in self.read, f"{id_} was read to its end before"
            parents = set(self.service.shards[id_].split.parents)
            assert parents <= self.read | {EXPIRED}, f"{id_} began before its parents' end"

    def open_splits(self) -> list[str]:
        return [id_ for id_, shard in self.service.shards.items() if not shard.children]

    def endable(self) -> list[str]:
        return [
            id_
            for id_ in self.service.live
            if self.service.shards[id_].children and id_ not in self.ending
        ]

    @rule(data=st.data(), named=st.booleans())
    def split(self, data: st.DataObject, named: bool) -> None:  # noqa: FBT001 - drawn
        parent = data.draw(st.sampled_from(self.open_splits()))
        self.service.replace([parent], 2, named=named)
        if data.draw(st.booleans()):
            self.merge(data)

    @precondition(lambda self: len(self.open_splits()) > 1)
    @rule(data=st.data())
    def merge(self, data: st.DataObject) -> None:
        """Merge the newest split, which no listing has named yet, with any other."""
        *others, newest = self.open_splits()
        parents = [data.draw(st.sampled_from(others)), newest]
        self.service.replace(parents, 1, named=data.draw(st.booleans()))

    @precondition(lambda self: self.endable())
    @rule(data=st.data(), taken=st.integers(0, 4))
    def end_a_split(self, data: st.DataObject, taken: int) -> None:
        ended = data.draw(st.sampled_from(self.endable()))
        self.service.send_end(ended)
        self.ending.add(ended)
        self.settle()
        self.take(taken)

    @precondition(lambda self: self.service.live.keys() - self.ending)
    @rule(data=st.data())
    def send_progress(self, data: st.DataObject) -> None:
        live = [id_ for id_ in self.service.live if id_ not in self.ending]
        self.service.send_progress(data.draw(st.sampled_from(live)))
        self.settle()

    @rule(count=st.integers(1, 4))
    def take(self, count: int) -> None:
        while count and self.take_one():
            count -= 1

    def take_one(self) -> bool:
        event = self.loop.run_until_complete(self.run.take())
        if isinstance(event, End):
            assert event.split.id not in self.read, "an end was read twice"
            self.read.add(event.split.id)
        self.settle()
        return event is not None

    @rule(minutes=st.sampled_from([1, 4, 10]), lag=LAGS)
    def wait(self, minutes: int, lag: float) -> None:
        self.settle(60.0 * minutes)
        self.service.lag = lag

    @rule()
    def store(self) -> None:
        self.stored = self.run.progress.acknowledged().to_json(), set(self.read)

    @precondition(lambda self: self.stored)
    @rule()
    def die_and_begin_again(self) -> None:
        assert self.stored is not None
        self.loop.run_until_complete(self.run.kill())
        self.read = set(self.stored[1])
        self.start()

    @rule()
    def let_expire_what_is_known(self) -> None:
        """Leave out of the listings what was replaced long ago; it can be subscribed to still."""
        now = self.loop.time()
        stored = Checkpoint.from_json(self.stored[0]).splits if self.stored else {}
        for shard in self.service.shards.values():
            id_ = shard.split.id
            known = id_ in self.read or id_ in self.run.progress
            known_then = not self.stored or id_ in self.stored[1] or id_ in stored
            children = (self.service.shards[child.id] for child in shard.children)
            listed = shard.children and all(child.born + MOST_LAG <= now for child in children)
            if known and known_then and listed:
                shard.expired = min(shard.expired, now)

    def teardown(self) -> None:
        with closing(self.loop):
            if self.service.shards:  # else nothing was begun
                self.read_to_the_end()
                self.loop.run_until_complete(self.run.kill())
            self.loop.check_leaks()

    def read_to_the_end(self) -> None:
        self.service.lag = 0.0
        closed = {id_ for id_, shard in self.service.shards.items() if shard.children}
        for _ in self.service.shards:  # at least as many as there are generations
            self.settle(600.0)
            if self.read == closed:
                break
            for id_ in self.endable():
                self.service.send_end(id_)
                self.ending.add(id_)
            self.settle()
            while self.take_one():
                pass
        assert self.read == closed, "a split was not read to its end"
        assert set(self.service.live) == set(self.open_splits()), "a split is not read"


TestReshardingMachine = pytest.mark.long(ReshardingMachine.TestCase)
TestReshardingMachine.settings = settings(max_examples=2 * settings().max_examples)
