"""Both ends of the link between a driver and the job that runs it."""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fanout.testing.spark.driver_process import DriverFailed, DriverStarted
from fanout.testing.trials.job import SparkJob
from tests.testing.small_driver import Did, Task

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Report = DriverStarted | DriverFailed | Did
DECODER: msgspec.json.Decoder[Report] = msgspec.json.Decoder(Report)


class Running:
    """A job whose first driver has been started."""

    def __init__(self, task: str, scratch: Path, log: Any, tasks: asyncio.TaskGroup) -> None:
        self.messages: list[Report] = []
        self.job = SparkJob(
            "tests.testing.small_driver",
            Task(task),
            DECODER,
            scratch=scratch,
            environment={"PYTHONPATH": str(Path(__file__).parents[2])},
            log=log,
            tasks=tasks,
            on_message=self.messages.append,
        )
        self.job.start()


@asynccontextmanager
async def job(task: str, scratch: Path) -> AsyncIterator[Running]:
    """Run a driver; it is killed where it still runs at the end of the block."""
    with (scratch / "driver.log").open("wb") as log:
        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            running = Running(task, scratch, log, tasks)
            await running.job.running.wait()
            yield running
            for owned in tuple(tasks._tasks):
                owned.cancel()


async def test_a_driver_is_given_its_options_and_ends_when_it_is_stopped(tmp_path: Path) -> None:
    async with job("a task", tmp_path) as running:
        running.job.stop()
        await running.job.gone.wait()
    started, *others = running.messages
    assert isinstance(started, DriverStarted)  # what a JVM printed is skipped
    assert others == [Did("stopped a task")]


async def test_the_error_of_a_driver_is_its_last_message(tmp_path: Path) -> None:
    async with job("fail", tmp_path) as running:
        await running.job.gone.wait()
    _, *others = running.messages
    assert others == [DriverFailed("ServiceError", "the stream is gone")]
    assert running.job.failure == "ServiceError: the stream is gone"


async def test_nothing_is_left_of_a_driver_when_its_task_is_cancelled(tmp_path: Path) -> None:
    async with job("a task", tmp_path) as running:
        (started,) = running.messages
        assert isinstance(started, DriverStarted)
        os.kill(started.jvm_pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(started.jvm_pid, 0)
    assert running.job.gone.is_set()
    assert not running.job.running.is_set()


async def test_a_driver_that_is_killed_sends_nothing_more_and_another_one_follows(
    tmp_path: Path,
) -> None:
    async with job("a task", tmp_path) as running:
        running.job.kill()
        await running.job.gone.wait()
        assert len(running.messages) == 1
        assert running.job.failure is not None
        running.job.options = Task("another task")
        running.job.start()
        await running.job.running.wait()
        running.job.stop()
        await running.job.gone.wait()
    assert running.messages[-1] == Did("stopped another task")


async def test_an_error_of_the_listener_kills_the_driver(tmp_path: Path) -> None:
    def refuse(_: Report) -> None:
        raise RuntimeError("no")

    async def run() -> None:
        async with job("a task", tmp_path) as running:
            running.job.stop()
            running.job._on_message = refuse
            await running.job.gone.wait()

    with pytest.raises(ExceptionGroup) as caught:
        await run()
    assert caught.group_contains(RuntimeError, match="no")


def assert_gone(jvm_lock: Path) -> None:
    with jvm_lock.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


async def test_a_jvm_that_outlives_its_driver_is_killed_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanout.testing.trials.job._JVM_GRACE", 0.1)
    async with job("start a JVM", tmp_path):
        pass
    assert_gone(tmp_path / "jvm.lock")


async def test_a_driver_is_killed_together_with_its_jvm(tmp_path: Path) -> None:
    async with job("start a JVM", tmp_path) as running:
        running.job.kill()
        await running.job.gone.wait()
        assert len(running.messages) == 1
        assert_gone(tmp_path / "jvm.lock")


async def test_a_driver_that_has_just_ended_is_killed_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wait, kill = os.waitpid, asyncio.subprocess.Process.kill

    def slow(pid: int, options: int) -> tuple[int, int]:
        if not options:  # the thread of asyncio that waits for the child
            time.sleep(1.0)
        return wait(pid, options)

    def late(process: asyncio.subprocess.Process) -> None:
        time.sleep(0.3)
        kill(process)

    monkeypatch.setattr(os, "waitpid", slow)
    monkeypatch.setattr(asyncio.subprocess.Process, "kill", late)
    async with job("a task", tmp_path) as running:
        running.job.stop()
        await running.job.gone.wait()
    assert not [record for record in caplog.records if record.name == "asyncio"]
