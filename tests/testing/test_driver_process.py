from __future__ import annotations

import asyncio
import fcntl
import os
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from fanout.testing.spark.driver_process import (
    DriverFailed,
    DriverProcess,
    DriverStarted,
    start_driver,
)
from tests.testing.small_driver import Did, Task

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Report = DriverStarted | DriverFailed | Did
DECODER: msgspec.json.Decoder[Report] = msgspec.json.Decoder(Report)


@asynccontextmanager
async def driver(task: str, scratch: Path) -> AsyncIterator[DriverProcess[Report]]:
    root = str(Path(__file__).parents[2])
    with (scratch / "driver.log").open("wb") as log:
        async with (
            asyncio.timeout(30),
            start_driver(
                "tests.testing.small_driver",
                Task(task),
                DECODER,
                scratch=scratch,
                environment={"PYTHONPATH": root},
                log=log,
            ) as process,
        ):
            yield process


async def test_a_driver_is_given_its_options_and_ends_when_it_is_stopped(tmp_path: Path) -> None:
    async with driver("a task", tmp_path) as process:
        messages = aiter(process.messages())
        assert isinstance(await anext(messages), DriverStarted)  # what a JVM printed is skipped
        process.stop()
        assert [message async for message in messages] == [Did("stopped a task")]


async def test_the_error_of_a_driver_is_its_last_message(tmp_path: Path) -> None:
    async with driver("fail", tmp_path) as process:
        _, *others = [message async for message in process.messages()]
    assert others == [DriverFailed("ServiceError", "the stream is gone")]


async def test_nothing_is_left_of_a_driver_when_its_block_ends(tmp_path: Path) -> None:
    async with driver("a task", tmp_path) as process:
        started = await anext(process.messages())
        assert isinstance(started, DriverStarted)
        os.kill(started.jvm_pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(started.jvm_pid, 0)


async def test_a_driver_that_is_killed_sends_nothing_more(tmp_path: Path) -> None:
    async with driver("a task", tmp_path) as process:
        messages = aiter(process.messages())
        await anext(messages)
        process.kill_all()
        assert [message async for message in messages] == []


def assert_gone(jvm_lock: Path) -> None:
    with jvm_lock.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


async def test_a_jvm_that_outlives_its_driver_is_killed_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanout.testing.spark.driver_process._JVM_GRACE", 0.1)
    async with driver("start a JVM", tmp_path) as process:
        await anext(process.messages())
    assert_gone(tmp_path / "jvm.lock")


async def test_a_driver_is_killed_together_with_its_jvm(tmp_path: Path) -> None:
    async with driver("start a JVM", tmp_path) as process:
        messages = aiter(process.messages())
        await anext(messages)
        process.kill_all()
        assert [message async for message in messages] == []
        assert_gone(tmp_path / "jvm.lock")
