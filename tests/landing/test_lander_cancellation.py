"""A landing that is cancelled at each of its awaits."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow.parquet as pq
import pytest

from fanout.core.positions import Cursor
from fanout.landers.land import land
from fanout.landing.claims import ThisProcess
from fanout.landing.log.followed import followed
from fanout.testing.virtual_time.cancellation import Cancellation, sweep
from fanout.testing.virtual_time.loop import running_loop
from tests.support.manual_source import ManualSource

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fanout.landing.lander import Landing
    from fanout.landing.log.followed import LandedEntry

T = TypeVar("T")
RECORDS = [b"%d" % number for number in range(5)]


@pytest.fixture
def places(tmp_path: Path) -> Callable[[], Path]:
    """Return a new location on each call."""
    numbers = itertools.count()
    return lambda: tmp_path / str(next(numbers))


def as_in_a_thread(work: Callable[[], T]) -> T:
    """Do blocking work where no loop runs, as far as it can tell."""
    loop = asyncio.get_running_loop()
    asyncio._set_running_loop(None)
    try:
        return work()
    finally:
        asyncio._set_running_loop(loop)


def let_threads_work() -> None:
    """Let blocking work take its time on the simulated loop."""
    loop = running_loop()

    def start(work: Callable[[], Any]) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = loop.create_future()

        def run() -> None:
            try:
                answer.set_result(as_in_a_thread(work))
            except Exception as error:  # noqa: BLE001 - it belongs to the caller
                answer.set_exception(error)

        loop.call_later(0.01, run)
        return answer

    loop.workers = start


def filled() -> ManualSource:
    source = ManualSource()
    source.put(*RECORDS)
    return source


def read(entries: list[LandedEntry]) -> list[bytes]:
    files = (file for entry in entries for file in entry.files)
    return [data for file in files for data in pq.read_table(file).column("data").to_pylist()]


async def following(place: Path) -> list[LandedEntry]:
    """Return the entries of a landing that has ended."""
    entries: list[LandedEntry] = []
    # An iterator that is left is closed in a task of its own, sooner or later.
    async with aclosing(followed(str(place))) as found:
        async for entry in found:
            entries.append(entry)
            position = entry.positions.splits["a"].position
            if isinstance(position, Cursor) and position.sequence == len(RECORDS):
                break
    return entries


async def check(place: Path) -> None:
    entries = await following(place)
    as_in_a_thread(lambda: check_files(place, entries))


def check_files(place: Path, entries: list[LandedEntry]) -> None:
    assert read(entries) == RECORDS
    files = [file for entry in entries for file in entry.files]
    assert files == sorted(map(str, (place / "segments").glob("*.parquet")))
    assert [*(place / "_scratch").iterdir()] == []


@pytest.mark.long
def test_a_landing_cancelled_at_any_step_leaves_nothing_and_is_continued(
    places: Callable[[], Path],
) -> None:
    async def scenario(cancellation: Cancellation) -> None:
        let_threads_work()
        place, source = places(), filled()

        async def run() -> None:
            async with land(source, str(place), max_records=2, available_now=True) as landing:
                assert [entry async for entry in landing]

        await cancellation.run(run())
        assert len(asyncio.all_tasks()) == 1
        assert not as_in_a_thread(lambda: ThisProcess("test").has_locked(place / "owner.lock"))
        async with land(source, str(place), available_now=True) as landing:
            async for _ in landing:
                pass
        await check(place)

    assert sweep(scenario) > 50


@pytest.mark.long
def test_iteration_cancelled_at_any_step_loses_and_repeats_nothing(
    places: Callable[[], Path],
) -> None:
    async def scenario(cancellation: Cancellation) -> None:
        let_threads_work()
        place, source = places(), filled()
        entries: list[LandedEntry] = []
        ended = False

        async def iterate(landing: Landing) -> None:
            nonlocal ended
            while True:
                entry = await anext(landing, None)
                if entry is None:
                    break
                entries.append(entry)
            ended = True

        async with land(source, str(place), max_records=2, available_now=True) as landing:
            while not ended:
                await cancellation.run(iterate(landing))
        await check(place)
        # Each was yielded, and once.
        assert [entry.number for entry in entries] == [e.number for e in await following(place)]

    assert sweep(scenario) > 10


@pytest.mark.long
def test_following_cancelled_at_any_step_leaves_nothing(places: Callable[[], Path]) -> None:
    async def scenario(cancellation: Cancellation) -> None:
        let_threads_work()
        place, source = places(), filled()
        async with land(source, str(place), max_records=2, available_now=True) as landing:
            async for _ in landing:
                pass

        async def follow() -> None:
            assert len(await following(place)) == 3

        await cancellation.run(follow())
        assert len(asyncio.all_tasks()) == 1
        await follow()

    assert sweep(scenario) > 10
