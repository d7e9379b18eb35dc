from __future__ import annotations

import asyncio
import gc
import signal
from typing import TYPE_CHECKING, Any

import pytest

from fanout.cli.common import run_coroutine

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _ctrl_c() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_comes_between_two_callbacks() -> None:
    failed: list[dict[str, Any]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: failed.append(context))
        connected = loop.create_future()

        def connect() -> None:
            signal.raise_signal(signal.SIGINT)
            connected.set_result(None)

        loop.call_soon(connect)
        await connected
        await asyncio.sleep(60)

    with pytest.raises(KeyboardInterrupt):
        run_coroutine(main())
    assert failed == []


def test_a_second_ctrl_c_ends_the_clean_up() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(signal.raise_signal, signal.SIGINT)
        try:
            await asyncio.sleep(60)
        finally:
            loop.call_soon(signal.raise_signal, signal.SIGINT)
            await asyncio.sleep(60)

    with pytest.raises(KeyboardInterrupt):
        run_coroutine(main())


def test_a_second_ctrl_c_ends_what_keeps_the_loop_busy() -> None:
    went_on = False

    async def main() -> None:
        nonlocal went_on
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        went_on = True

    with pytest.raises(KeyboardInterrupt):
        run_coroutine(main())
    assert not went_on
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_is_quiet_whichever_task_it_breaks_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def busy() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    async def main() -> None:
        tasks = [asyncio.create_task(busy()), asyncio.create_task(asyncio.sleep(60))]
        await asyncio.wait(tasks)

    with pytest.raises(KeyboardInterrupt):
        run_coroutine(main())
    gc.collect()
    assert caplog.text == ""


def test_a_result_an_error_and_a_cancellation_pass() -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    async def failed() -> None:
        raise LookupError

    assert run_coroutine(asyncio.sleep(0, "done")) == "done"
    with pytest.raises(LookupError):
        run_coroutine(failed())
    with pytest.raises(asyncio.CancelledError):
        run_coroutine(cancelled())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
