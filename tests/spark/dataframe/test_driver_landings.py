"""What the driver lands for planners, which call it from other processes; without Spark."""

from __future__ import annotations

import asyncio
import stat
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark import cloudpickle

from fanout.errors import CheckpointError, FanOutError, ServiceError, SetupError, SplitFailedError
from fanout.landers.channel import ChannelClosedError
from fanout.landers.control_client import connect
from fanout.landers.control_handshake import SECRET_BYTES
from fanout.landers.land import land
from fanout.landing import lander
from fanout.landing.log import landed_log
from fanout.spark.dataframe.driver_landings import DriverLandings
from fanout.spark.dataframe.landing_thread import LandingOptions, LandingThread
from fanout.spark.dataframe.options import ReadOptions
from fanout.spark.dataframe.source_reader import SourceStreamReader
from tests.spark.dataframe.test_source_reader import ALL, put, read, rows
from tests.support.manual_source import SCHEMA, ManualSource
from tests.support.spark.harness import eventually, fanout_threads

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

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
        self.ended = False

    def has_ended(self) -> bool:
        return self.ended

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

        def reported() -> tuple[object, ...]:
            found = first.reportLatestOffset() or {}
            return found["recordsLanded"], found["sourceMillisBehind"]

        # The query sees the entry in the landing's log, maybe before the driver tells of it.
        eventually(lambda: reported() == (25, 0), "the report of what was landed")
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


def test_what_spark_sends_has_no_secret(driver: DriverLandings, landing: OwnLanding) -> None:
    """Spark sends the class of a data source to planners and workers, and the call in it."""
    call = driver.add(landing)  # type: ignore[arg-type]
    secret = call.read_secret()
    assert len(secret) == SECRET_BYTES
    sent: bytes = cloudpickle.dumps(call)  # type: ignore[no-untyped-call]
    assert secret not in sent
    assert repr(secret) not in repr(call)
    file = Path(call.secret_file)
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    driver.close()
    assert not file.parent.exists()
    with pytest.raises(SetupError, match="the Python process that has called read_stream"):
        call.read_secret()


def test_an_equal_landing_is_the_same_and_one_of_a_stopped_session_is_forgotten(
    driver: DriverLandings, landing: OwnLanding
) -> None:
    first = driver.add(landing)  # type: ignore[arg-type]
    assert driver.add(landing) == first  # type: ignore[arg-type]
    landing.ended = True
    other = OwnLanding(landing.source, landing.options.location)
    second = driver.add(other)  # type: ignore[arg-type]
    assert second != first
    assert [*driver._landings] == [second.landing]


def test_a_planner_that_talks_nonsense_ends_nothing(
    driver: DriverLandings, landing: OwnLanding
) -> None:
    async def talk() -> None:
        secret = await asyncio.to_thread(call.read_secret)
        async with connect(call.address, secret) as channel:
            await channel.send(b"nonsense")
            with pytest.raises(ChannelClosedError):
                await channel.receive()

    with planner(driver, landing) as reader:
        start = reader.initialOffset()
        call = driver.add(landing)  # type: ignore[arg-type]
        asyncio.run(talk())
        expected = put(landing.source, 1, 5)
        assert rows(reader, start, read(reader, start, 5)) == expected


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
