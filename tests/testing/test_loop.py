from __future__ import annotations

import asyncio
import gc
import signal
import socket
from typing import TYPE_CHECKING

import pytest

from fanout.testing.virtual_time.loop import DeadlockError, LeakError, SimLoop, simulate
from fanout.testing.virtual_time.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable


def test_an_hour_passes_at_once() -> None:
    async def main() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    assert simulate(main) == 3600


def test_timers_run_in_the_order_of_their_times() -> None:
    async def main() -> list[int]:
        order: list[int] = []

        async def wait(seconds: int) -> None:
            await asyncio.sleep(seconds)
            order.append(seconds)

        async with asyncio.TaskGroup() as tasks:
            for seconds in (3, 1, 2):
                tasks.create_task(wait(seconds))
        return order

    assert simulate(main) == [1, 2, 3]


def test_a_deadlock_shows_the_stack_of_every_task() -> None:
    async def wait_for_nothing() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(wait_for_nothing(), name="the stuck one")

    with pytest.raises(DeadlockError, match=r"(?s)the stuck one:.*in wait_for_nothing"):
        simulate(main)


def test_a_run_of_more_than_two_days_counts_as_hanging() -> None:
    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            for day in range(4):
                tasks.create_task(asyncio.sleep(day * 24 * 3600))

    with pytest.raises(DeadlockError, match="still running"):
        simulate(main)


def test_a_task_that_is_left_is_a_leak() -> None:
    kept: list[asyncio.Task[None]] = []

    async def main() -> None:
        kept.append(asyncio.create_task(asyncio.sleep(1)))

    with pytest.raises(LeakError, match="task"):
        simulate(main)


def test_a_timer_that_is_left_is_a_leak() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_later(1, print)

    with pytest.raises(LeakError, match="timer"):
        simulate(main)


def test_an_error_in_a_callback_is_a_leak() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        await asyncio.sleep(1)

    with pytest.raises(LeakError, match="ZeroDivisionError"):
        simulate(main)


def test_the_error_of_the_coroutine_comes_out_as_itself() -> None:
    async def main() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        simulate(main)


def test_threads_networks_signals_and_sockets_are_refused() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        with pytest.raises(RuntimeError, match="no threads"):
            await asyncio.to_thread(print)
        with pytest.raises(RuntimeError, match="no network"):
            await loop.getaddrinfo("localhost", 80)
        with pytest.raises(RuntimeError, match="no signals"):
            loop.add_signal_handler(signal.SIGTERM, print)
        with socket.socket() as unused, pytest.raises(RuntimeError, match="no sockets"):
            loop.add_reader(unused, print)

    simulate(main)


def test_time_is_skipped_only_when_nothing_happens_meanwhile() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        assert loop.skip(5)
        assert loop.time() == 5
        timer = loop.call_later(3, print)
        assert not loop.skip(3)
        assert loop.skip(2)
        timer.cancel()
        soon = loop.call_soon(print)
        assert not loop.skip(1)
        soon.cancel()
        assert loop.time() == 7

    simulate(main)


def test_blocking_work_goes_to_the_workers_where_there_are_some() -> None:
    async def main() -> str:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)

        def work(job: Callable[[], str]) -> asyncio.Future[str]:
            future = loop.create_future()
            loop.call_later(60, lambda: future.set_result(job()))
            return future

        loop.workers = work
        return f"{await asyncio.to_thread(str, 7)} at {loop.time():g} s"

    assert simulate(main) == "7 at 60 s"


def test_no_garbage_is_collected_within_a_run() -> None:
    async def main() -> bool:
        return gc.isenabled()

    assert gc.isenabled()
    assert not simulate(main)
    assert gc.isenabled()


def test_what_asyncio_does_behind_a_run_is_not_traced() -> None:
    trace = Trace()
    kept: list[asyncio.Task[None]] = []

    async def main() -> None:
        kept.extend(asyncio.create_task(asyncio.sleep(60)) for _ in range(9))
        await asyncio.sleep(1)

    with pytest.raises(LeakError):
        simulate(main, loop_factory=lambda: SimLoop(trace=trace))
    assert all(task.cancelled() for task in kept)
    assert trace.steps == 2 + len(kept)
