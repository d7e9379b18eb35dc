from __future__ import annotations

import asyncio
from random import Random

import pytest

from fanout.testing.virtual_time.loop import DeadlockError, SimLoop, simulate
from tests.provers.simulation.spark.process import SimDriverProcess, SimMachine
from tests.provers.simulation.spark.threads import Threads


def new_process(loop: SimLoop) -> SimDriverProcess:
    return SimDriverProcess("test", SimMachine(Random(1)), Threads(loop), Random(1))


def test_threads_take_turns_in_virtual_time() -> None:
    loop = SimLoop()
    process = new_process(loop)
    seen: list[tuple[str, float]] = []

    def work(name: str, seconds: float) -> None:
        for _ in range(3):
            seen.append((name, loop.time()))
            process.scheduler.sleep(seconds)

    async def main() -> None:
        start = process.scheduler.start
        await asyncio.gather(
            start(process, lambda: work("slow", 20.0)), start(process, lambda: work("fast", 9.0))
        )

    simulate(main, loop_factory=lambda: loop)
    slow, fast = "slow", "fast"
    assert seen == [(slow, 0), (fast, 0), (fast, 9), (fast, 18), (slow, 20), (slow, 40)]


def test_a_thread_waits_for_a_future_of_the_loop_and_returns_its_result() -> None:
    loop = SimLoop()
    process = new_process(loop)

    async def main() -> float:
        future: asyncio.Future[None] = loop.create_future()
        loop.call_later(5.0, future.set_result, None)

        def work() -> float:
            process.scheduler.until(future)
            return loop.time()

        return await process.scheduler.start(process, work)

    assert simulate(main, loop_factory=lambda: loop) == 5.0


def test_what_a_thread_raises_comes_out() -> None:
    loop = SimLoop()
    process = new_process(loop)

    async def main() -> None:
        await process.scheduler.start(process, lambda: 1 // 0)

    with pytest.raises(ZeroDivisionError):
        simulate(main, loop_factory=lambda: loop)


def test_the_threads_of_a_process_that_ends_are_over_wherever_they_block() -> None:
    loop = SimLoop()
    process = new_process(loop)
    went_on: list[str] = []

    def work() -> None:
        try:
            process.scheduler.sleep(100.0)
            went_on.append("work")
        finally:
            process.scheduler.sleep(1.0)
            went_on.append("finally")

    async def main() -> float:
        done = process.scheduler.start(process, work)
        await asyncio.sleep(3.0)
        process.end()
        await process.reap()
        assert done.cancelled()
        return loop.time()

    assert simulate(main, loop_factory=lambda: loop) == 3.0
    assert went_on == []


def test_threads_that_wait_for_each_other_are_a_deadlock() -> None:
    loop = SimLoop()
    process = new_process(loop)

    async def main() -> None:
        future: asyncio.Future[None] = loop.create_future()
        await process.scheduler.start(process, lambda: process.scheduler.until(future))

    with pytest.raises(DeadlockError):
        simulate(main, loop_factory=lambda: loop)
    process.abandon()
