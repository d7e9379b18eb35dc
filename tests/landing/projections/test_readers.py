"""Engines that read tables while a landing writes them see whole entries, each once."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from fanout.landing.lander import land
from fanout.landing.projections import delta, iceberg, table_projection
from tests.landing.projections.tables import Delta, Iceberg, iceberg_catalog
from tests.support.timed_source import DAY, TimedSource

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.landing.projections.tables import Kind

# An entry has a file for each of these days.
DAYS = 3
ENTRIES = 12


def _in_polars(kind: Any) -> Any:
    if isinstance(kind, Delta):
        return pl.read_delta(f"{kind.root}/segments").to_arrow()
    return pl.scan_iceberg(kind.open()).collect().to_arrow()


READERS: dict[str, Callable[[Any], Any]] = {
    "deltalake or pyiceberg": lambda kind: kind.read(),
    "DuckDB": lambda kind: kind.in_duckdb(),
    "Polars": _in_polars,
}


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("form", ["delta", "iceberg"])
async def test_no_reader_sees_a_part_of_an_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # or it warns
    monkeypatch.setattr(table_projection, "_RETRY_SECONDS", 0.0)
    _fails_in_turn(monkeypatch, delta._Delta if form == "delta" else iceberg._Iceberg)
    location = str(tmp_path / "landing")
    kind: Kind = Delta(location, None)
    if form == "iceberg":
        kind = Iceberg(iceberg_catalog(tmp_path))
    source: Any = TimedSource()
    looked = {name: asyncio.Event() for name in READERS}
    ended = asyncio.Event()
    options: dict[str, Any] = {"partition_by_date": "time", "tables": [kind.option()]}
    async with (
        land(source, location, max_wait=0.0, **options) as landing,
        asyncio.TaskGroup() as tasks,
    ):
        source.put(*(b"%d" % (day * DAY) for day in range(DAYS)))
        await anext(landing)
        for name in READERS:
            tasks.create_task(_look(kind, name, looked[name], ended))
        for number in range(1, ENTRIES):
            source.put(*(b"%d" % (day * DAY + number) for day in range(DAYS)))
            await anext(landing)
            if number % 4 == 0:
                for look in looked.values():
                    look.clear()
                    await look.wait()
        ended.set()


def _fails_in_turn(monkeypatch: pytest.MonkeyPatch, commits: Any) -> None:
    """Let each second commit lose its answer, or fail before it begins."""
    add, calls = commits.add, list[int]()

    def failing(table: Any, *arguments: Any) -> None:
        calls.append(len(calls))
        if len(calls) % 4 == 2:
            raise ConnectionRefusedError
        add(table, *arguments)
        if len(calls) % 4 == 0:
            raise ConnectionResetError

    monkeypatch.setattr(commits, "add", failing)


async def _look(kind: Kind, name: str, looked: asyncio.Event, ended: asyncio.Event) -> None:
    entries = 0
    while not ended.is_set():
        found = await asyncio.to_thread(READERS[name], kind)
        times = sorted(int(data) for data in found.column("data").to_pylist())
        seen = len(times) // DAYS
        whole = sorted(day * DAY + number for day in range(DAYS) for number in range(seen))
        assert times == whole, name
        assert seen >= entries, name
        entries = seen
        looked.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await ended.wait()
