"""Check the example and the facts of docs/kinesis-members.md."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING

from fanout.kinesis import LeaseTable
from tests.support.pages import defined_by, page, python_blocks
from tests.support.patience import PATIENCE

if TYPE_CHECKING:
    import pytest

    from tests.support.kinesis.reading import Stream

(EXAMPLE,) = python_blocks("kinesis-members.md")


async def test_the_example_prints_what_arrives(
    stream: Stream, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in stream.server.environment.items():
        monkeypatch.setenv(name, value)
    stream.put(10)
    example = asyncio.create_task(defined_by(EXAMPLE)["main"]())
    printed = ""
    async with asyncio.timeout(PATIENCE):
        while "shardId-000000000000 10" not in printed:
            assert not example.done()
            await asyncio.sleep(0.05)
            printed += capsys.readouterr().out
    example.cancel()
    with suppress(asyncio.CancelledError):
        await example


def test_the_options_are_those_of_the_table() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\S*) ?\|", page("kinesis-members.md"), re.MULTILINE)
    defaults = {
        each.name: "" if each.default is MISSING else str(each.default)
        for each in fields(LeaseTable)
    }
    assert dict(rows) == defaults
