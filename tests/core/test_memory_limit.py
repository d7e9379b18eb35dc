from __future__ import annotations

import asyncio

import pytest

from fanout.core.limits import MemoryLimit
from fanout.testing.virtual_time.cancellation import Cancellation, sweep
from fanout.testing.virtual_time.loop import DeadlockError, simulate
from tests.support.virtual_time import in_virtual_time


@in_virtual_time
async def test_bytes_are_handed_out_up_to_the_limit() -> None:
    memory_limit = MemoryLimit(10)
    await memory_limit.reserve(6)
    await memory_limit.reserve(4)
    assert memory_limit.used == 10


@in_virtual_time
async def test_what_does_not_fit_waits_for_a_release() -> None:
    loop = asyncio.get_running_loop()
    memory_limit = MemoryLimit(10)
    await memory_limit.reserve(6)
    loop.call_later(5, memory_limit.release, 6)
    await memory_limit.reserve(5)
    assert (loop.time(), memory_limit.used) == (5, 5)


@in_virtual_time
async def test_a_reservation_beyond_the_limit_waits_for_all_others_and_then_passes_alone() -> None:
    loop = asyncio.get_running_loop()
    memory_limit = MemoryLimit(10)
    await memory_limit.reserve(1)
    loop.call_later(5, memory_limit.release, 1)
    await memory_limit.reserve(11)
    assert (loop.time(), memory_limit.used) == (5, 11)
    loop.call_later(5, memory_limit.release, 11)
    await memory_limit.reserve(1)
    assert (loop.time(), memory_limit.used) == (10, 1)


def test_the_first_to_ask_is_the_first_to_get() -> None:
    async def main() -> list[int]:
        memory_limit, order = MemoryLimit(10), []

        async def ask(nbytes: int) -> None:
            await memory_limit.reserve(nbytes)
            order.append(nbytes)

        await memory_limit.reserve(8)
        async with asyncio.TaskGroup() as tasks:
            for nbytes in (9, 1, 2):  # 1 and 2 would fit, and wait behind 9
                tasks.create_task(ask(nbytes))
            await asyncio.sleep(1)
            assert not order
            memory_limit.release(8)
            await asyncio.sleep(1)
            assert order == [9, 1]
            memory_limit.release(9)
        return order

    assert simulate(main) == [9, 1, 2]


@in_virtual_time
async def test_the_next_one_passes_at_once_when_the_first_in_line_gives_up() -> None:
    memory_limit, loop = MemoryLimit(10), asyncio.get_running_loop()
    await memory_limit.reserve(8)
    first = asyncio.create_task(memory_limit.reserve(5))
    await asyncio.sleep(1)
    loop.call_later(1, first.cancel)
    await memory_limit.reserve(2)
    assert (loop.time(), memory_limit.used) == (2, 10)


def test_what_is_never_released_is_waited_for_for_ever() -> None:
    async def main() -> None:
        memory_limit = MemoryLimit(1)
        await memory_limit.reserve(1)
        await memory_limit.reserve(1)

    with pytest.raises(DeadlockError, match="in reserve"):
        simulate(main)


def test_more_bytes_cannot_come_back_than_were_taken() -> None:
    with pytest.raises(AssertionError, match="more bytes"):
        MemoryLimit(1).release(1)


def test_a_cancelled_reservation_keeps_nothing_and_lets_the_next_one_pass() -> None:
    async def scenario(cancellation: Cancellation) -> None:
        memory_limit, loop = MemoryLimit(10), asyncio.get_running_loop()
        got: list[int] = []

        async def ask(nbytes: int) -> None:
            await memory_limit.reserve(nbytes)
            got.append(nbytes)

        await memory_limit.reserve(8)
        timer = loop.call_later(5, memory_limit.release, 8)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(cancellation.run(ask(5)))
            await asyncio.sleep(1)
            tasks.create_task(ask(2))
            tasks.create_task(ask(3))
        assert got[-2:] == [2, 3]
        await asyncio.sleep(5)
        timer.cancel()
        assert memory_limit.used == sum(got)

    assert sweep(scenario) == 4
