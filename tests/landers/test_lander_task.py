"""The process of a lander, from one session to the next."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

from fanout.landers import task as task_module
from fanout.landers.messages import Hello, encode
from fanout.landers.task import LanderTask
from fanout.landing.log.reading import BatchLimits
from tests.landers.rig import MemoryChannel, Rig, until
from tests.support.manual_source import ManualSource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import pytest


async def test_an_attempt_beside_a_newer_one_waits_until_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark takes the end of any attempt for the end of the task, and ends the other one."""
    source, calls = ManualSource("a"), 0
    monkeypatch.setattr(task_module, "_RECONNECT_SECONDS", 0.0)
    monkeypatch.setattr(task_module, "_STANDBY_SECONDS", 0.001)
    async with Rig(source, tmp_path).running() as rig, asyncio.TaskGroup() as tasks:

        @asynccontextmanager
        async def connect(*_: object, **__: object) -> AsyncIterator[MemoryChannel]:
            nonlocal calls
            calls += 1
            ours, theirs = MemoryChannel.pair()
            serving = tasks.create_task(rig.coordinator.serve(theirs))
            yield ours
            await ours.close()
            await serving

        monkeypatch.setattr(task_module, "connect", connect)
        newer, theirs = MemoryChannel.pair()
        serving = tasks.create_task(rig.coordinator.serve(theirs))
        await newer.send(encode(Hello(0, 2, "here", 1)))
        await until(lambda: 0 in rig.coordinator._sessions)
        work = LanderTask(
            source=cast("Any", source),
            location=str(tmp_path),
            storage_options=None,
            run=1,
            limits=BatchLimits(10, 1 << 20, 0.05),
            available_now=False,
            address=("driver", 1),
            secret=b"",
        )
        older = tasks.create_task(work._run(0, 1))
        await until(lambda: calls > 2)
        assert not older.done()
        assert rig.coordinator._sessions[0].attempt == 2
        await newer.close()
        await serving
        await until(lambda: 0 in rig.coordinator._sessions)
        await until(lambda: "a" in rig.coordinator._owners)
        assert rig.coordinator._sessions[0].attempt == 1
        await rig.coordinator.close()
        async with asyncio.timeout(20.0):
            await older  # was told to stop
