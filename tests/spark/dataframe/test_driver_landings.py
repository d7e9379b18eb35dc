"""What the driver lands for planners, which call it from other processes; without Spark."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from fanout.errors import CheckpointError, FanOutError, ServiceError, SetupError, SplitFailedError
from fanout.landing import landed_log, lander
from fanout.landing.lander import land
from fanout.spark.dataframe.driver_landings import DriverLandings
from fanout.spark.dataframe.landing_thread import LandingOptions, LandingThread
from fanout.spark.dataframe.options import ReadOptions
from fanout.spark.dataframe.source_reader import SourceStreamReader
from tests.spark.dataframe.test_source_reader import ALL, put, read, rows, sent
from tests.spark.harness import eventually, fanout_threads
from tests.spark.manual import SCHEMA, ManualSource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from fanout.landing.lander import Landing


class OwnLanding:
    """A landing that the driver fills by itself, where in truth landers do.

    Args:
        source: The source.
        location: Where it is landed.
    """

    def __init__(self, source: ManualSource, location: str) -> None:
        self.source = source
        self.options = LandingOptions(location)
        self.running = 0
        self.opened: list[bool] = []
        self.may_open = asyncio.Event()
        self.may_open.set()

    @asynccontextmanager
    async def open(self, _: object, *, available_now: bool) -> AsyncIterator[Landing]:
        self.opened.append(available_now)
        await self.may_open.wait()
        location = self.options.location
        opening = land(self.source, location, max_wait=0.0, available_now=available_now)
        async with opening as landing:
            self.running += 1
            try:
                yield landing
            finally:
                self.running -= 1


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(landed_log, "_POLL_SECONDS", 0.0)
    monkeypatch.setattr(lander, "_WAIT_FOR_LOCK", 0.0)
    yield
    assert fanout_threads() == []


@pytest.fixture
def landing(tmp_path: Path) -> OwnLanding:
    return OwnLanding(ManualSource(), str(tmp_path / "landing"))


@pytest.fixture
def driver() -> Iterator[DriverLandings]:
    found = DriverLandings()
    yield found
    found.close()


@contextmanager
def planner(driver: DriverLandings, landing: OwnLanding) -> Iterator[SourceStreamReader]:
    """Run the reader of a planner process in the block."""
    call = driver.add(landing)  # type: ignore[arg-type]
    location = landing.options.location
    reader = SourceStreamReader(
        ReadOptions(landing=location),
        SCHEMA,
        LandingOptions(location, driver=call),
        lambda: landing.source,
    )
    try:
        yield reader
    finally:
        reader.stop()


def test_the_driver_lands_while_a_planner_is_there(
    driver: DriverLandings, landing: OwnLanding
) -> None:
    before = put(landing.source, 1, 25)
    with planner(driver, landing) as first:
        start = first.initialOffset()
        middle = read(first, start, 25)
        assert rows(first, start, middle) == before
        assert landing.running == 1
    during = put(landing.source, 26, 30)
    # The one before may be ending still.
    with planner(driver, landing) as second:
        assert rows(second, middle, read(second, middle, 5)) == during
    eventually(lambda: landing.running == 0, "the end")
    assert landing.opened == [False, False]


def test_a_run_of_what_is_available_ends(driver: DriverLandings, landing: OwnLanding) -> None:
    expected = put(landing.source, 1, 25)
    with planner(driver, landing) as reader:
        reader.prepareForTriggerAvailableNow()
        start = offset = reader.initialOffset()
        while (end := reader.latestOffset(offset, ALL)) != offset:
            offset = end
        assert rows(reader, start, offset) == expected
    assert landing.opened == [True]


def test_the_error_of_the_source_is_told(driver: DriverLandings, landing: OwnLanding) -> None:
    with planner(driver, landing) as reader:
        start = reader.initialOffset()
        landing.source.fail(ServiceError("the stream is gone"))
        raised: list[FanOutError] = []

        def fails() -> bool:
            try:
                reader.latestOffset(start, ALL)
            except FanOutError as error:
                raised.append(error)
            return bool(raised)

        eventually(fails, "the error")
        assert isinstance(raised[0], SplitFailedError)
        assert isinstance(raised[0].__cause__, ServiceError)
        # Nothing goes on behind it.
        eventually(lambda: landing.running == 0, "the end")


def test_a_landing_that_cannot_be_opened_is_an_error_at_once(
    driver: DriverLandings, landing: OwnLanding, tmp_path: Path
) -> None:
    (tmp_path / "landing").write_text("a file")
    with planner(driver, landing) as reader, pytest.raises(CheckpointError, match="cannot"):
        reader.initialOffset()


def test_of_two_queries_one_lands(driver: DriverLandings, landing: OwnLanding) -> None:
    with planner(driver, landing) as first, planner(driver, landing) as second:
        start = first.initialOffset()
        with pytest.raises(CheckpointError, match="in use by another run of this process"):
            second.initialOffset()
        expected = put(landing.source, 1, 5)
        assert rows(first, start, read(first, start, 5)) == expected


def test_a_query_that_is_stopped_while_it_starts_leaves_nothing(
    driver: DriverLandings, landing: OwnLanding
) -> None:
    landing.may_open.clear()
    with planner(driver, landing) as reader:
        thread = LandingThread(landing.source, reader._landing, available_now=False)
        thread._thread.start()
        eventually(lambda: landing.opened, "the call")
        assert thread.stop()
    eventually(lambda: not driver._ending, "the end")
    landing.may_open.set()
    with planner(driver, landing) as reader:
        reader.initialOffset()


def test_a_planner_is_told_that_the_driver_has_gone(
    driver: DriverLandings, landing: OwnLanding
) -> None:
    with planner(driver, landing) as reader:
        start = reader.initialOffset()
        driver.close()
        with pytest.raises(SetupError, match="the Python process that has called read_stream"):
            eventually(lambda: reader.latestOffset(start, ALL) is None, "the error")
    with planner(driver, landing) as late, pytest.raises(SetupError, match="call read_stream"):
        late.initialOffset()


def test_workers_do_not_know_the_driver(driver: DriverLandings, landing: OwnLanding) -> None:
    with planner(driver, landing) as reader:
        reader.initialOffset()
        assert reader._landing.driver is not None
        assert "secret" not in repr(reader._landing)
        worker: Any = sent(reader)
        assert worker._landing.driver is None


def test_nothing_is_landed_that_the_planner_does_not_want(
    driver: DriverLandings, landing: OwnLanding
) -> None:
    call = driver.add(landing)  # type: ignore[arg-type]
    options = LandingOptions(landing.options.location, driver=call, max_bytes_ahead=1)
    thread = LandingThread(landing.source, options, available_now=False)
    thread.start()
    try:
        put(landing.source, 1, 5)
        number = thread.wait_for_entry(1)
        put(landing.source, 6, 10)
        acknowledged = len(landing.source.trace)
        for _ in range(20):
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), driver._loop._loop).result(10)
        assert len(landing.source.trace) == acknowledged
        thread.needed_from(number)
        thread.wait_for_entry(number)
    finally:
        assert thread.stop()
