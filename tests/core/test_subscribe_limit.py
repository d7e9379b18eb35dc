from __future__ import annotations

import asyncio

import pytest

from fanout.core.limits import SubscribeLimit
from fanout.testing.virtual_time.cancellation import Cancellation, sweep
from tests.support.virtual_time import in_virtual_time


class Calls:
    """Calls that each take a turn, in the order in which they got it."""

    def __init__(self, limit: int) -> None:
        self.made: list[tuple[float, str]] = []
        self.pending = 0
        self.most_pending = 0
        self._subscribe_limit = SubscribeLimit(limit)

    async def call(self, name: str, seconds: float) -> None:
        async with self._subscribe_limit.turn():
            self.made.append((asyncio.get_running_loop().time(), name))
            self.pending += 1
            self.most_pending = max(self.most_pending, self.pending)
            try:
                if seconds < 0:
                    raise ValueError("negative")
                await asyncio.sleep(seconds)
            finally:
                self.pending -= 1


@in_virtual_time
async def test_calls_are_pending_up_to_the_limit_and_the_first_to_ask_is_the_first_to_call() -> (
    None
):
    calls = Calls(2)
    async with asyncio.TaskGroup() as tasks:
        for name, seconds in (("a", 3), ("b", 1), ("c", 1), ("d", 1), ("e", 1)):
            tasks.create_task(calls.call(name, seconds))
    assert calls.made == [(0, "a"), (0, "b"), (1, "c"), (2, "d"), (3, "e")]
    assert calls.most_pending == 2


@in_virtual_time
async def test_a_call_that_fails_gives_its_turn_back() -> None:
    calls = Calls(1)
    with pytest.raises(ValueError, match="negative"):
        await calls.call("a", -1)
    await calls.call("b", 1)
    assert calls.made == [(0, "a"), (0, "b")]


@in_virtual_time
async def test_calls_that_hang_keep_the_others_for_5_seconds_and_no_longer() -> None:
    calls = Calls(2)
    async with asyncio.TaskGroup() as tasks:
        for name, seconds in (("a", 60), ("b", 60), ("c", 1), ("d", 1), ("e", 1)):
            tasks.create_task(calls.call(name, seconds))
    assert calls.made[2:] == [(5, "c"), (5, "d"), (6, "e")]


@in_virtual_time
async def test_a_turn_that_was_given_up_is_not_given_back_again() -> None:
    calls = Calls(1)
    async with asyncio.TaskGroup() as tasks:
        for name, seconds in (("a", 6), ("b", 4), ("c", 1), ("d", 1)):
            tasks.create_task(calls.call(name, seconds))
    assert calls.made == [(0, "a"), (5, "b"), (9, "c"), (10, "d")]


def test_a_cancelled_call_keeps_no_turn_and_takes_none_from_the_next() -> None:
    async def scenario(cancellation: Cancellation) -> None:
        calls = Calls(1)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(calls.call("a", 1))
            await asyncio.sleep(0)
            tasks.create_task(cancellation.run(calls.call("b", 7)))
            await asyncio.sleep(0)
            tasks.create_task(calls.call("c", 1))
        again = asyncio.get_running_loop().time()
        await calls.call("d", 1)
        assert calls.made[-1] == (again, "d")
        assert [name for _, name in calls.made if name != "b"] == ["a", "c", "d"]

    assert sweep(scenario) > 5
