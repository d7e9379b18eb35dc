"""The examples and tables of docs/kinesis-queues.md."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fanout.kinesis.queue.options import QueueOptions
from fanout.kinesis.queue.records import SCHEMA
from tests.support.kinesis.queue import EmbeddedWork

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = (Path(__file__).parents[2] / "docs" / "kinesis-queues.md").read_text()
(EXAMPLE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def orders(
    aws: None,  # noqa: ARG001 - used for what it does
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[EmbeddedWork]:
    with EmbeddedWork() as work:
        work.create("orders", "billing")
        work.put(range(5), "orders")
        for name, value in work.server.environment.items():
            monkeypatch.setenv(name, value)
        yield work


@pytest.mark.usefixtures("orders")
async def test_the_example_reads_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    exec(EXAMPLE.removesuffix("asyncio.run(main())\n"), names)  # noqa: S102 - the page is ours
    example = asyncio.create_task(names["main"]())
    printed = ""
    async with asyncio.timeout(30):
        while sum(map(int, re.findall(r"^receiver-\d (\d+)$", printed, re.MULTILINE))) < 5:
            await asyncio.sleep(0.05)
            printed += capsys.readouterr().out
    example.cancel()
    with suppress(asyncio.CancelledError):
        await example


def test_the_table_has_every_option_with_its_default() -> None:
    section = PAGE.split("## Options")[1].split("## ")[0]
    told: dict[str, str] = {}
    for names, default in re.findall(r"^\| (`[a-z_`, ]+`) \| ([^|]+) \|", section, re.MULTILINE):
        told |= dict.fromkeys(re.findall("[a-z_]+", names), default)
    assert told.keys() == {field.name for field in fields(QueueOptions)}
    for field in fields(QueueOptions):
        if field.default is not MISSING and field.name not in {"backoff", "max_bytes_in_flight"}:
            assert told[field.name].strip(' `"') == f"{field.default}".removesuffix(".0")


def test_the_page_names_every_column() -> None:
    for name in SCHEMA.names:
        assert f"`{name}`" in PAGE
