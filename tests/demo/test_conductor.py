from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from fanout.demo.options import DemoFailedError, DemoOptions
from fanout.demo.plan import SparkProcess
from fanout.demo.queries import BatchWritten, ProcessesKilled, QueryName
from fanout.demo.report import RunProgress
from fanout.demo.run import Conductor, run_demo
from fanout.demo.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

QUIET = Console(quiet=True)


@pytest.fixture(autouse=True)
def temporary_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(directory))
    return directory


@pytest.mark.long
def test_a_driver_that_ends_by_itself_ends_the_demo_with_its_last_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, temporary_files: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(DemoFailedError, match=r"ended by itself(?s:.*)JAVA_GATEWAY_EXITED"):
        run_demo(DemoOptions(), QUIET)
    assert list(temporary_files.iterdir()) == []


def test_a_demo_in_which_nothing_happens_ends(
    monkeypatch: pytest.MonkeyPatch, temporary_files: Path
) -> None:
    monkeypatch.setattr("fanout.demo.run._PATIENCE", 0.1)
    with pytest.raises(DemoFailedError, match="nothing happened"):
        run_demo(DemoOptions(), QUIET)
    assert list(temporary_files.iterdir()) == []


class StandIn:
    """Stands for a service; nothing is read from it."""

    address = "http://127.0.0.1:1"
    environment: Mapping[str, str] = {}


async def test_a_new_driver_that_begins_again_fails_the_demo(tmp_path: Path) -> None:
    options = DemoOptions(kill=True)
    stream: Any = StandIn()
    progress = RunProgress(QUIET, options.records)
    conductor = Conductor(
        options,
        stream=stream,
        workspace=Workspace(str(tmp_path)),
        progress=progress,
    )
    query = QueryName.ONLY
    conductor.killed_in[query] = 5
    conductor._patience = asyncio.Timeout(None)
    async with conductor._patience:
        conductor._on_message(query, ProcessesKilled(SparkProcess.LANDER, 1, "SIGKILL lander 2"))
        conductor._on_message(query, ProcessesKilled(SparkProcess.WORKER, 2, "SIGKILL each worker"))
        with pytest.raises(DemoFailedError, match=r"begun with batch 4, .* killed in batch 5"):
            conductor._on_message(query, BatchWritten(4, 100))
        conductor._on_message(query, BatchWritten(5, 100))
    assert progress.replayed == [5]
    assert progress.processes_killed == {SparkProcess.LANDER: 1, SparkProcess.WORKER: 2}
