from __future__ import annotations

import asyncio

import pytest

from fanout.core.cancellation import TaskScope
from tests.support.virtual_time import in_virtual_time


async def _until_cancelled(seen: list[str], name: str) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        seen.append(name)


@in_virtual_time
async def test_tasks_end_with_the_block_in_their_order() -> None:
    seen: list[str] = []
    async with TaskScope() as tasks:
        for name in "abc":
            tasks.spawn(_until_cancelled(seen, name))
        await asyncio.sleep(0)
    assert seen == ["a", "b", "c"]


@in_virtual_time
async def test_an_error_of_the_block_passes_as_it_is() -> None:
    seen: list[str] = []
    error = ValueError("of the block")

    async def block() -> None:
        async with TaskScope() as tasks:
            tasks.spawn(_until_cancelled(seen, "a"))
            await asyncio.sleep(0)
            raise error

    with pytest.raises(ValueError, match="of the block") as raised:
        await block()
    assert raised.value is error
    assert seen == ["a"]


@in_virtual_time
async def test_an_error_of_a_task_ends_the_block_and_the_other_tasks() -> None:
    seen: list[str] = []

    async def fail() -> None:
        await asyncio.sleep(1)
        raise ValueError("of a task")

    async def block() -> None:
        async with TaskScope() as tasks:
            tasks.spawn(_until_cancelled(seen, "a"))
            tasks.spawn(fail())
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as raised:
        await block()
    assert [str(one) for one in raised.value.exceptions] == ["of a task"]
    assert seen == ["a"]


@in_virtual_time
async def test_a_cancellation_passes_when_the_tasks_have_ended() -> None:
    seen: list[str] = []

    async def block() -> None:
        async with TaskScope() as tasks:
            tasks.spawn(_until_cancelled(seen, "a"))
            await asyncio.Event().wait()

    task = asyncio.create_task(block())
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["a"]
