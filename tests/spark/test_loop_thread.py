from __future__ import annotations

import asyncio
import gc
import threading
from concurrent.futures import CancelledError
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from fanout.errors import StreamStateError
from fanout.spark.workers.loop_thread import LoopThread
from tests.support.spark.harness import PATIENCE, fanout_threads

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def test_a_call_runs_in_the_loops_thread_and_returns_its_result() -> None:
    async def work() -> str:
        return threading.current_thread().name

    with LoopThread() as loop:
        assert loop.call(work()) == "fanout loop"


def test_a_call_raises_what_the_work_raises() -> None:
    async def work() -> None:
        raise ValueError("no")

    with LoopThread() as loop, pytest.raises(ValueError, match="no"):
        loop.call(work())


def test_started_work_goes_on_beside_the_caller() -> None:
    async def work(go: asyncio.Event) -> str:
        await go.wait()
        return "done"

    with LoopThread() as loop:
        go = asyncio.Event()
        future = loop.start(work(go))
        assert not future.done()
        loop.call_soon(go.set)
        assert future.result(PATIENCE) == "done"


def test_leaving_cancels_what_runs_and_waits_for_it() -> None:
    cleaned = []
    running = threading.Event()

    async def work() -> None:
        running.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(0.01)
            cleaned.append("up")

    with LoopThread() as loop:
        future = loop.start(work())
        assert running.wait(PATIENCE)
    assert cleaned == ["up"]
    with pytest.raises(CancelledError):
        future.result(0)


def test_leaving_waits_for_the_threads_of_the_loop() -> None:
    left = threading.Event()
    entered = threading.Event()

    def block() -> None:
        entered.set()
        left.wait(PATIENCE)

    async def work() -> None:
        await asyncio.to_thread(block)

    with LoopThread() as loop:
        loop.start(work())
        assert entered.wait(PATIENCE)
        threading.Timer(0.05, left.set).start()
    assert left.is_set()
    assert fanout_threads() == []


def test_an_error_in_the_block_still_ends_the_thread() -> None:
    with pytest.raises(ValueError, match="no"), LoopThread():
        raise ValueError("no")
    assert fanout_threads() == []


def test_what_is_held_is_entered_once_for_a_key_and_left_with_the_loop() -> None:
    events: list[str] = []

    @asynccontextmanager
    async def resource(name: str) -> AsyncIterator[str]:
        events.append(f"enter {name}")
        yield name
        await asyncio.sleep(0)
        events.append(f"leave {name}")

    with LoopThread() as loop:
        assert loop.hold("a", lambda: resource("one")) == "one"
        gc.collect()  # nothing but the loop refers to it
        assert loop.hold("a", lambda: resource("two")) == "one"
        assert loop.hold("b", lambda: resource("two")) == "two"
        assert events == ["enter one", "enter two"]
    assert sorted(events[2:]) == ["leave one", "leave two"]


def test_what_could_not_be_entered_is_tried_anew() -> None:
    @asynccontextmanager
    async def broken() -> AsyncIterator[str]:
        raise ValueError("no")
        yield "never"

    @asynccontextmanager
    async def whole() -> AsyncIterator[str]:
        yield "whole"

    with LoopThread() as loop:
        with pytest.raises(ValueError, match="no"):
            loop.hold("a", broken)
        assert loop.hold("a", whole) == "whole"


@pytest.mark.parametrize("end", [SystemExit(1), KeyboardInterrupt(), GeneratorExit()])
@pytest.mark.parametrize("later", [False, True])
def test_a_task_that_would_end_the_loop_fails_and_the_loop_goes_on(
    end: BaseException, *, later: bool
) -> None:
    async def inner() -> None:
        if later:
            await asyncio.sleep(0)
        raise end

    async def work() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(inner())

    async def fine() -> str:
        return "fine"

    with LoopThread() as loop:
        with pytest.raises(ExceptionGroup) as e:
            loop.call(work())
        [error] = e.value.exceptions
        assert isinstance(error, StreamStateError)
        assert type(end).__name__ in str(error)
        assert error.__cause__ is end
        assert loop.call(fine()) == "fine"


def test_a_task_that_is_cancelled_before_it_runs_is_closed() -> None:
    async def never() -> None:
        raise AssertionError("it runs")

    async def work() -> bool:
        task = asyncio.create_task(never(), name="never")
        task.cancel()
        return (await asyncio.wait([task]))[0].pop().cancelled()

    with LoopThread() as loop:
        assert loop.call(work())
    gc.collect()  # a coroutine that was never awaited would warn
