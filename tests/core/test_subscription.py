from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from fanout.core.events import End, Split
from fanout.core.limits import MemoryLimit, SubscribeLimit
from fanout.core.positions import Cursor, Horizon
from fanout.core.subscription import Subscription
from fanout.errors import SubscriptionEndedError, SubscriptionSilentError
from fanout.testing.virtual_time.loop import simulate
from tests.support.scripted_source import PACING
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from fanout.core.backoff import Pacing
    from fanout.core.events import Batch
    from fanout.core.positions import Position
    from fanout.core.source import Reserve

A = Split("a")
LIMIT = 100


class Service:
    """A service whose subscriptions send what a function yields."""

    def __init__(self, events: Callable[[Reserve], AsyncGenerator[Batch | End]]) -> None:
        self.pacing: Pacing = PACING
        self.open = 0
        self.positions: list[Position] = []
        self._events = events

    @asynccontextmanager
    async def subscribe(
        self, split: Split, position: Position, reserve: Reserve
    ) -> AsyncIterator[AsyncIterator[Batch | End]]:
        del split
        self.positions.append(position)
        self.open += 1
        try:
            async with aclosing(self._events(reserve)) as events:
                yield events
        finally:
            self.open -= 1


def subscription(service: Any, memory_limit: MemoryLimit | None = None) -> Subscription:
    return Subscription(
        A,
        service,
        memory_limit=memory_limit or MemoryLimit(LIMIT),
        subscribe_limit=SubscribeLimit(1),
    )


async def in_pieces(reserve: Reserve) -> AsyncGenerator[Batch | End]:
    """Assemble an event that takes all the memory, and that is known only when it has begun."""
    await reserve(1)
    await asyncio.sleep(1)
    await reserve(LIMIT - 1)
    yield End(A)


def test_the_wait_for_memory_leaves_the_rest_of_the_silence_timeout() -> None:
    async def events(reserve: Reserve) -> AsyncGenerator[Batch | End]:
        await asyncio.sleep(30)
        await reserve(1)
        await asyncio.sleep(3600)
        yield End(A)

    async def main() -> None:
        memory_limit = MemoryLimit(LIMIT)
        await memory_limit.reserve(LIMIT)
        asyncio.get_running_loop().call_later(1000, memory_limit.release, LIMIT)
        held = subscription(Service(events), memory_limit)
        with pytest.raises(SubscriptionSilentError):
            async with held.open(Horizon()):
                await held.receive()
        assert asyncio.get_running_loop().time() == 1000 + PACING.silence_timeout - 30
        assert memory_limit.used == 0

    simulate(main)


@in_virtual_time
async def test_reserving_in_pieces_never_waits_while_holding_a_piece() -> None:
    memory_limit = MemoryLimit(LIMIT)

    async def receive() -> None:
        held = subscription(Service(in_pieces), memory_limit)
        async with held.open(Horizon()):
            await held.receive()
            assert memory_limit.used == held.reserved == LIMIT

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(receive())
        tasks.create_task(receive())
    assert memory_limit.used == 0


@in_virtual_time
async def test_memory_of_an_event_that_was_handed_over_stays_reserved() -> None:
    memory_limit = MemoryLimit(LIMIT)
    held = subscription(Service(in_pieces), memory_limit)
    async with held.open(Horizon()):
        await held.receive()
        held.handed_over()
        with pytest.raises(SubscriptionEndedError, match="ended the subscription to a"):
            await held.receive()
    assert memory_limit.used == LIMIT


@pytest.mark.parametrize("seconds", [0.5, 1.5])
@in_virtual_time
async def test_a_subscription_that_is_cancelled_is_closed_and_gives_its_memory_back(
    seconds: float,
) -> None:
    memory_limit, service = MemoryLimit(LIMIT), Service(in_pieces)
    held = subscription(service, memory_limit)

    async def receive() -> None:
        async with held.open(Cursor(7)):
            await held.receive()
            await asyncio.Event().wait()

    async with asyncio.TaskGroup() as tasks:
        receiving = tasks.create_task(receive())
        await asyncio.sleep(seconds)
        assert (service.open, memory_limit.used > 0) == (1, True)
        receiving.cancel()
    assert (service.open, memory_limit.used) == (0, 0)
    assert service.positions == [Cursor(7)]
