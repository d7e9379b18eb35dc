from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fanout.demo import run
from fanout.demo.options import DemoOptions
from fanout.demo.report import RunProgress
from fanout.demo.run import MAX_CALL_RECORDS, Conductor
from fanout.demo.verification import SentRecord
from fanout.demo.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pytest

    from fanout.testing.trials.records import Record


class Counting:
    """A stream that takes everything, and counts how many records come in each call."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    async def put(self, records: Sequence[Record]) -> Sequence[SentRecord]:
        self.calls.append(len(records))
        return [SentRecord("split", str(record.number)) for record in records]


async def test_a_call_carries_no_more_than_the_service_takes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("_SHORTEST", "_LONGEST"):
        monkeypatch.setattr(run, name, 1e-6)
    stream: Any = Counting()
    progress = RunProgress(Console(quiet=True), 1_200)
    conductor = Conductor(
        DemoOptions(records=1_200),
        stream=stream,
        workspace=Workspace(str(tmp_path)),
        progress=progress,
    )
    conductor._actions.clear()
    conductor._patience = asyncio.Timeout(None)
    async with conductor._patience:
        await conductor._send()
    assert [int(record.sequence) for record in conductor.evidence.sent] == list(range(1_200))
    assert stream.calls == [MAX_CALL_RECORDS, MAX_CALL_RECORDS, 200]
    assert progress.sent == 1_200
